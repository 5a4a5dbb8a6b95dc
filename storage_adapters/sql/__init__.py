"""A store in SQLite or PostgreSQL: `sqlite:///path`, `sqlite://` (in memory) or `postgresql://user:pw@host/database`.

`?max_queue_qps=N` makes the store name a cap for one queue. The tables may live in the catalog's database or in one
of their own.

Offsets are given out under the lock of the queue's row, in the transaction that writes the messages: they are dense,
and no reader can see one before all lower ones are there. Locks are taken in one order everywhere: groups by id,
then queues by id. On SQLite the whole transaction holds the file's one write lock instead.
"""

from storage_adapters.sql.hostlock import HostLock, host_lock
from storage_adapters.sql.store import SqlStore, open_store

__all__ = ["HostLock", "SqlStore", "host_lock", "open_store"]
