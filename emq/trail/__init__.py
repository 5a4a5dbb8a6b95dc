"""The trail: a ledger of what happened to each message, and the proof that is drawn from it.

`Trail` (in `emq.trail.writer`) records, `prove` (in `emq.trail.proof`) checks. Both need pyarrow, so this package
offers only the names that the core needs: the protocol, and the sink that does nothing.
"""

from emq.trail.sink import NullTrail, TrailSink

__all__ = ["NullTrail", "TrailSink"]
