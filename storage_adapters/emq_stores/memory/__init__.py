"""A store in this process's memory, for embedding, for tests and for simulations.

The URL `memory:` is private to one store instance. All instances that the process opens as `memory://NAME` in one
environment share their data, until `forget(NAME)`. So several hosts of one process can hand groups to each other.
`?max_queue_qps=N` makes the store declare a cap for one queue. Nothing survives the process, whatever the durability.

The store has no threads and never sleeps, and no call suspends: the same calls always have the same effects.
"""

from emq_stores.memory.store import MemoryStore, forget, open_store
from emq_stores.memory.world import World

__all__ = ["MemoryStore", "World", "forget", "open_store"]
