"""A base for adapters of stores that offer only PUT and GET(i), such as the storage of the original EMQ.

Write a `PutGetClient` (two methods) for your storage, open another store for retries and dead letters, and give both to
`PutGetStore`. The base makes up for some of the gaps of such a storage:

- *The tail*: the base finds it by probing. It polls an armed queue at growing intervals (from `Options.poll_first_s`,
  doubled up to `poll_longest_s`), with one timer structure for all queues. A put through the same instance wakes at
  once.
- *Holes*: only messages above a missing offset tell a hole from the tail, see `Options.hole_window` and `hole_grace_s`.
- *Fences, seals and trims*: only this instance knows them, and a restart forgets them. They guard against mistakes
  inside one process. Against a stale owner elsewhere there are only the allocation and the fenced checkpoint. Lanes and
  slots lie in another store, which has fences of its own.
- *A put of several bodies* becomes several PUTs. If one of them fails after others were stored, the result is
  `OutcomeUnknown`.
- *max_length* is refused, since a writer does not know the length.
- *dedupe_s* is refused, since the storage cannot remember an id together with a PUT.
- *Durability* is that of a PUT of your storage, whichever durability the publisher asks for.
"""

from emq_stores.put_get.client import Options, PutGetClient
from emq_stores.put_get.log_store import PutGetLogStore
from emq_stores.put_get.store import PutGetStore

__all__ = ["Options", "PutGetClient", "PutGetLogStore", "PutGetStore"]
