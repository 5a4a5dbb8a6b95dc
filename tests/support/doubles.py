"""A database that works in the caller's thread, and stores and databases that are out of reach on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from emq import errors
from emq.database import Database
from emq.database.database import SLACK_S
from emq.storage.slot_store import Slot, SortedStore
from emq.storage.store import LaneStore, LogStore
from storage_adapters.memory import MemoryStore

T = TypeVar("T")


class InlineDatabase(Database):
    """In memory, without threads, so that it can be used in virtual time.

    Attributes:
        down: it is out of reach, and each call says so at once.
        silent: each call is told nothing until its deadline.
    """

    down = False
    silent = False
    calls = 0

    async def _in_thread(self, work: Callable[[], T], timeout_s: float) -> T:
        self.calls += 1
        if self.silent:
            await asyncio.sleep(timeout_s - SLACK_S)
            raise errors.DatabaseUnavailable("the database is silent in this test")
        if self.down:
            raise errors.DatabaseUnavailable("the database is out of reach in this test")
        return work()

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def close(self) -> None:
        self._closed = True
        self._engine.dispose()
        self._executor.shutdown()


def group_of_entry(entry: Any) -> str:
    """The group that an entry of a call is about: of a queue, a lane or a slot."""
    name = entry if isinstance(entry, str) else getattr(entry, "queue", None) or getattr(entry, "slot", None)
    if name is None:
        name = entry if isinstance(entry, Slot) else entry[0]
    name = name.name if isinstance(name, Slot) else name
    return "/".join(name.split("/")[:2])


class Faulty:
    """Passes calls on to a store's half; `fault` is raised instead while it is set, `calls` counts by name.

    What is put into `after` under a call's name is awaited once, between that call and its return.

    Attributes:
        parts: what each group's part of the store fails with, if it does: the answer of its entries, as of a server
            that is down. The entries of other groups are served.
        silent_s: how long a call waits for such a part, as for a server that is silent until a deadline passes.
    """

    def __init__(self, real: LogStore | LaneStore | SortedStore) -> None:
        self._real = real
        self.fault: errors.EMQError | None = None
        self.only: frozenset[str] = frozenset()
        self.calls: dict[str, int] = {}
        self._instead: dict[str, Callable[..., Awaitable[Any]]] = {}
        self.after: dict[str, Callable[[], Awaitable[None]]] = {}
        self.parts: Callable[[str], errors.EMQError | None] = lambda group: None
        self.silent_s = 0.0
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if not callable(found):
            return found

        async def called(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            if self.fault is not None and (not self.only or name in self.only):
                raise self.fault
            call = self._instead.get(name, found)
            if args and type(args[0]) in (list, tuple):
                result = await self._by_parts(call, *args, **kwargs)
            else:
                result = await call(*args, **kwargs)
            if name in self.after:
                await self.after.pop(name)()
            return result

        return called

    async def _by_parts(
        self, call: Callable[..., Awaitable[Any]], entries: Sequence[Any], *args: Any, **kw: Any
    ) -> Any:
        failures = [self.parts(group_of_entry(entry)) for entry in entries]
        if not any(failures):
            return await call(entries, *args, **kw)
        self.refused += sum(failure is not None for failure in failures)
        well = [entry for entry, failure in zip(entries, failures, strict=True) if failure is None]
        answers = iter(await call(well, *args, **kw) if well else ())
        await asyncio.sleep(self.silent_s)
        return [next(answers) if failure is None else failure for failure in failures]

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

    def fail_parts(self, parts: Callable[[str], errors.EMQError | None], silent_s: float = 0.0) -> None:
        """From now on the part of each group that `parts` has an error for is down; `None` for every group heals."""
        for half in (self.log, self.lanes, self.sorted):
            half.parts, half.silent_s = parts, silent_s

    async def close(self) -> None:
        await self.real.close()
