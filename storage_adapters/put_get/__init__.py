"""A base for stores that offer only PUT and GET(i), such as the storage of the original EMQ.

Write a `PutGetClient` (two methods) for your storage, open some other store for retries and dead letters, and hand
both to `PutGetStore`. The base makes up for a part of what such a storage lacks:

- *The tail* is found by probing, and an armed queue is polled, ever more seldom (`Options.poll_first_s` doubling to
  `poll_longest_s`), by one timer structure for all queues. A put through the same instance wakes at once.
- *Holes* cannot be told from the tail except by what lies above them: see `Options.hole_window` and `hole_grace_s`.
- *Fences, seals and trims* are known to this instance only. They guard against mistakes inside one process; a stale
  owner elsewhere is held off by the allocation and by the fenced checkpoint alone, and a restart forgets them.
  The slots, in a store of their own, have fences of their own.
- *A put of several bodies* is several PUTs. One that fails half-way answers `OutcomeUnknown`.
- *max_length* is refused, as the length is not known to the writer.
- *dedupe_s* is refused, as the storage cannot remember ids together with a PUT.
- *Durability* is what a returned PUT means in your storage, whatever is asked.
"""

from storage_adapters.put_get.client import Options, PutGetClient
from storage_adapters.put_get.log_store import PutGetLogStore
from storage_adapters.put_get.store import PutGetStore

__all__ = ["Options", "PutGetClient", "PutGetLogStore", "PutGetStore"]
