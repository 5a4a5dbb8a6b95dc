"""The keepers of the data of the one store: memory, a real Redis or Valkey server, or a real SQLite file.

A keeper opens the store for a host, over data that all hosts share. A call of its stores is carried out in full, at the
real server too, before anything else happens in virtual time: it never suspends. So the order of calls is the seed's,
and a seed stands for the same history each time, whatever keeps the data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from emq.runtime.clock import Clock
from emq.storage.store import Store
from emq_stores.memory import MemoryStore, World

T = TypeVar("T")

LEFT_OUT: Mapping[str, frozenset[str]] = {
    "memory": frozenset(),
    "redis": frozenset(),
    # A file loses its last writes only with the machine, and then all hosts on it are gone, too.
    "sqlite": frozenset(("store_shorter", "store_empty", "growth_lost")),
}
"""Stores by name, each with the events of a schedule that cannot happen to it."""


class Contents(NamedTuple):
    """What a store holds.

    Attributes:
        queues: (tail, bodies by offset) by name.
        lanes: bodies of all entries by id, whatever their state.
        members: by slot (`<topic>/<index>`), whatever their state.
    """

    queues: dict[str, tuple[int, dict[int, bytes]]]
    lanes: dict[str, bytes]
    members: dict[str, list[bytes]]


class Keeper(Protocol):
    """Belongs to one simulation.

    Attributes:
        store: an instance for those who only look.
    """

    store: Store

    def open(self) -> Store:
        """Return another instance of the store."""

    def head_of(self, queue: str) -> int:
        """Return the offset of the first message in the queue."""

    def snapshot(self) -> object:
        """Return all stored data, for `restore`."""

    def restore(self, snapshot: object | None) -> None:
        """Return to a snapshot, or to an empty store for None; every instance hears that its connection broke."""

    def contents(self) -> Contents: ...

    def close(self) -> None: ...


class MemoryKeeper:
    """See `Keeper`."""

    def __init__(self, clock: Clock) -> None:
        self._world = World(clock)
        self.store = self.open()

    def open(self) -> Store:
        return MemoryStore(self._world)

    def head_of(self, queue: str) -> int:
        return self._world.queues[queue].head if queue in self._world.queues else 1

    def snapshot(self) -> object:
        return self._world.snapshot()

    def restore(self, snapshot: object | None) -> None:
        self._world.restore(snapshot)

    def contents(self) -> Contents:
        queues = {
            name: (queue.tail, {o: body for o in range(queue.head, queue.tail) if (body := queue.body(o)) is not None})
            for name, queue in self._world.queues.items()
        }
        lanes = {id_: body for lane in self._world.lanes.values() for id_, body in lane.bodies.items()}
        members = {name: [*slot.waiting, *slot.prepared, *slot.dead] for name, slot in self._world.sorted.items()}
        return Contents(queues, lanes, members)

    def close(self) -> None:
        pass


class Keep(NamedTuple):
    """How the data of a simulation is kept.

    Attributes:
        store: its name, see `LEFT_OUT`.
        keeper: makes a keeper with nothing in it; the clock stamps dead letters.
    """

    store: str
    keeper: Callable[[Clock], Keeper]


MEMORY = Keep("memory", MemoryKeeper)


@contextlib.contextmanager
def keeping(store: str) -> Iterator[Keep]:
    """Start the server or directory that a store's keepers need; `store` is a name of `LEFT_OUT`."""
    if store == "memory":
        yield MEMORY
    elif store == "redis":
        from support.simulation import redis_keeper

        with redis_keeper.keeping() as keep:
            yield keep
    else:
        from support.simulation import sqlite_keeper

        with sqlite_keeper.keeping() as keep:
            yield keep


def at_once(call: Coroutine[Any, Any, T]) -> T:
    """Carry out a call that never suspends.

    Raises:
        RuntimeError: it does suspend, and what happens next would not be the seed's any more.
    """
    try:
        call.send(None)
    except StopIteration as done:
        found: T = done.value
        return found
    call.close()
    raise RuntimeError("a call of a store has to end before virtual time goes on, and this one waits for something")
