"""A store in SQLite or PostgreSQL: `sqlite:///path`, `sqlite://` (in memory) or `postgresql://user:pw@host/database`.

`?max_queue_qps=N` makes the store declare a cap for one queue, in operations a second. The tables may be in the
catalog's database or in one of their own.

The transaction that writes messages gives out their offsets under the lock of the queue's row. So offsets are dense,
and no reader can see an offset before all lower ones are there. All transactions take locks in one order: groups by id,
then queues by id. On SQLite, each writing transaction holds the file's one write lock instead.
"""

from emq_stores.sql.hostlock import HostLock, host_lock
from emq_stores.sql.store import SqlStore, open_store

__all__ = ["HostLock", "SqlStore", "host_lock", "open_store"]
