"""Publish within a transaction of your own database: rows in a table, and a relay that publishes them.

`outbox.py` is the table and the insert, `relay.py` the relay, `turns.py` lets one relay work at a time, and
`engines.py` runs its statements on either kind of engine.
"""

from emq_outbox.outbox import Outbox

__all__ = ["Outbox"]
