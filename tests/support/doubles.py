"""A database that works in the caller's thread, and stores and databases that are out of reach on demand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from emq import errors
from emq.database import Database
from emq.slots import SortedStore
from emq.storage import Durability, LaneStore, LogStore
from storage_adapters.memory import MemoryStore

T = TypeVar("T")


class InlineDatabase(Database):
    """In memory, without threads, so that it can be used in virtual time; `down` puts it out of reach."""

    down = False
    calls = 0

    async def run(
        self,
        fn: Callable[[sa.Connection], T],
        *,
        read_only: bool = False,
        durability: Durability | None = None,
        then: Callable[[T], None] | None = None,
    ) -> T:
        self.calls += 1
        if self.down:
            raise errors.DatabaseUnavailable("the database is out of reach in this test")
        result = self._transact(fn, read_only, durability)
        if then is not None:
            then(result)
        return result

    async def close(self) -> None:
        self._closed = True
        self._engine.dispose()
        self._executor.shutdown()


class Faulty:
    """Passes calls on to a store's half; `fault` is raised instead while it is set, `calls` counts by name.

    What is put into `after` under a call's name is awaited once, between that call and its return.
    """

    def __init__(self, real: LogStore | LaneStore | SortedStore) -> None:
        self._real = real
        self.fault: errors.EMQError | None = None
        self.only: frozenset[str] = frozenset()
        self.calls: dict[str, int] = {}
        self._instead: dict[str, Callable[..., Awaitable[Any]]] = {}
        self.after: dict[str, Callable[[], Awaitable[None]]] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if not callable(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            if self.fault is not None and (not self.only or name in self.only):
                raise self.fault
            result = await self._instead.get(name, found)(*args, **kwargs)
            if name in self.after:
                await self.after.pop(name)()
            return result

        return call

    def fail(self, fault: errors.EMQError | None = None, *only: str) -> None:
        """From now on every call (or those named) raises `fault`."""
        self.fault = fault or errors.StoreUnavailable("the store is out of reach in this test")
        self.only = frozenset(only)

    def heal(self) -> None:
        self.fault = None

    def replace(self, name: str, call: Callable[..., Awaitable[Any]]) -> None:
        """From now on `call` answers in place of the method of that name."""
        self._instead[name] = call


class FaultyStore:
    """A memory store whose halves fail on demand."""

    def __init__(self, real: MemoryStore) -> None:
        self.real = real
        self.shared = real.shared
        self.log: Any = Faulty(real.log)
        self.lanes: Any = Faulty(real.lanes)
        self.sorted: Any = Faulty(real.sorted)

    def watch(self) -> AsyncIterator[Sequence[str] | None]:
        return self.real.watch()

    def fail(self, fault: errors.EMQError | None = None) -> None:
        self.log.fail(fault)
        self.lanes.fail(fault)
        self.sorted.fail(fault)

    def heal(self) -> None:
        self.log.heal()
        self.lanes.heal()
        self.sorted.heal()

    async def close(self) -> None:
        await self.real.close()
