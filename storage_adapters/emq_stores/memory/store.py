"""Opens memory stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from urllib.parse import parse_qsl, urlsplit

from emq.runtime import errors
from emq.runtime.clock import Clock
from emq.runtime.environment import Environment
from emq.storage.lane_store import LaneStore
from emq.storage.log_store import LogStore
from emq.storage.slot_store import SortedStore
from emq.storage.store import Ended, Holding
from emq_stores.memory.lane_store import MemoryLanes
from emq_stores.memory.log_store import MemoryLog
from emq_stores.memory.slot_store import MemorySorted
from emq_stores.memory.wakeups import Wakeups
from emq_stores.memory.world import World
from emq_stores.refusals import queue_cap

# A name stands for the same data in the whole process, so the registry of names is module state.
_worlds: dict[tuple[str, Environment], World] = {}


class MemoryStore:
    """`emq.storage.store.Store` on a `World`; each instance has its own wake-ups.

    Args:
        world: data to share with other instances; None for data of its own.
        max_queue_qps: most operations a second that the store declares for one queue, or None. Not enforced here.
    """

    def __init__(self, world: World | None = None, *, max_queue_qps: float | None = None) -> None:
        self.shared = world is not None
        self._wakeups = Wakeups()
        world = self._world = world or World()
        world.joined(self._wakeups)
        self._log = MemoryLog(world, self._wakeups, max_queue_qps)
        self.log: LogStore = self._log
        self.lanes: LaneStore = MemoryLanes(world, self._wakeups)
        self.sorted: SortedStore = MemorySorted(world, self._wakeups)

    def watch(self) -> AsyncIterator[Sequence[str] | None]:
        """See `Store.watch`. Wake-ups wait for the watcher. Yields None only after `World.restore`."""
        return self._wakeups.watch()

    def follow(self, clock: Clock) -> None:
        """See `Store`. A shared world keeps its own clock, because the apps that share it have a clock each."""
        if not self.shared:
            self._world.clock = clock

    async def tell(self, topics: Collection[str]) -> None:
        """See `emq.storage.store.Store`."""
        self._world.tell(topics)

    async def unarmed(self, names: Sequence[str], now_ms: int) -> Sequence[str]:
        """See `emq.storage.store.Store`."""
        return [name for name in names if not self._world.is_armed(name, now_ms, self._wakeups)]

    async def holding(self) -> Holding:
        """See `emq.storage.store.Store`."""
        world = self._world
        return Holding(
            [name for name, queue in world.queues.items() if queue.held()],
            [name for name, lane in world.lanes.items() if lane.bodies],
            [name for name, slot in world.sorted.items() if slot.waiting or slot.prepared or slot.dead],
        )

    async def forget(self, ended: Sequence[Ended]) -> Sequence[Sequence[int] | None]:
        """See `emq.storage.store.Store`."""
        return [self._world.forget(each) for each in ended]

    async def close(self) -> None:
        """See `Store.close`. A shared world lives on."""
        self._wakeups.close()

    def lose(self, queue: str, offset: int) -> bool:
        """Make a hole, as a lost write would; for simulations. Return whether there was a message."""
        return self._log.lose(queue, offset)


async def open_store(url: str, environment: Environment) -> MemoryStore:
    """Open `memory:` or `memory://NAME`, each optionally with `?max_queue_qps=N`.

    Raises:
        InvalidSettings: the URL has another form. Correct it.
    """
    parts = urlsplit(url)
    if parts.path or parts.fragment:
        raise errors.InvalidSettings(f"store URL {url!r}: write memory: for a private store or memory://NAME")
    max_queue_qps = None
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name != "max_queue_qps":
            raise errors.InvalidSettings(f"store URL {url!r}: no parameter {name!r}; there is max_queue_qps")
        max_queue_qps = queue_cap(value, repr(url))
    world = _worlds.setdefault((parts.netloc, environment), World()) if parts.netloc else None
    return MemoryStore(world, max_queue_qps=max_queue_qps)


def forget(name: str) -> None:
    """Drop the data of `memory://name` in both environments; open instances keep the old data among themselves."""
    for environment in Environment:
        _worlds.pop((name, environment), None)
