"""A store in this process's memory, for embedding, for tests and for simulations.

`memory:` is private to the one store instance. `memory://NAME` is shared by all instances that the process opens
under that name and environment, until `forget(NAME)`; so several hosts of one process can hand groups to each other.
`?max_queue_qps=N` makes the store name a cap for one queue. Nothing survives the process, whatever the durability.

The store has no threads and never sleeps, and no call suspends: the same calls always have the same effects.
"""

from storage_adapters.memory.store import MemoryStore, forget, open_store
from storage_adapters.memory.world import World

__all__ = ["MemoryStore", "World", "forget", "open_store"]
