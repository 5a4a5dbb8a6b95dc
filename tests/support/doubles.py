"""A database that works in the caller's thread, and stores and databases that are out of reach on demand."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Any, TypeVar

import emq_testing as testing
from emq.database.database import SLACK_S
from emq.runtime import errors
from emq.storage.lane_store import LaneClaimed, LaneStore
from emq.storage.log_store import LogStore
from emq.storage.slot_store import Slot, SlotClaimed, SortedStore
from emq.storage.store import Ended
from emq_stores.memory import MemoryStore

T = TypeVar("T")


class InlineDatabase(testing.InlineDatabase):
    """A database in memory that can fail.

    Attributes:
        down: True if the database is out of reach, and each call fails at once.
        silent: True if each call gets no answer until its deadline.
        restarting: True if simulated hosts cannot connect to it.
    """

    down = False
    silent = False
    restarting = False
    calls = 0

    async def _in_thread(self, work: Callable[[], T], timeout_s: float) -> T:
        self.calls += 1
        if self.silent:
            await asyncio.sleep(timeout_s - SLACK_S)
            raise errors.DatabaseUnavailable("the database is silent in this test")
        if self.down:
            raise errors.DatabaseUnavailable("the database is out of reach in this test")
        return work()


def has_entries(_: Any, answers: Any) -> bool:
    """Return whether a claim from lanes or slots has brought something; for `when` of a `Fault`."""
    return any(isinstance(answer, LaneClaimed | SlotClaimed) and answer.entries for answer in answers)


def group_of_entry(entry: Any) -> str:
    """Return the group of an entry of a call: of a queue, a lane or a slot."""
    name = entry if isinstance(entry, str) else getattr(entry, "queue", None) or getattr(entry, "slot", None)
    if name is None:
        name = entry if isinstance(entry, Slot) else entry[0]
    name = name.name if isinstance(name, Slot) else name
    return "/".join(name.split("/")[:2])


LOST = errors.OutcomeUnknown("the answer was lost in this test")


@dataclasses.dataclass
class Fault:
    """A fault that happens to calls of one name.

    Attributes:
        before: raised instead of the call, which is not carried out.
        after: raised in place of the answers: the call is carried out, and its answers are lost.
        before_s, after_s: seconds that the caller waits before, and after, the call is carried out.
        of: only these entries of a call are concerned; they get the error as their answer, the others are served.
        when: chooses the calls to which the fault happens, by entries and answers; before the call, answers are None.
        times: number of times that the fault still happens; None for always.
        happened: number of times that it has happened.
    """

    before: Exception | None = None
    after: Exception | None = None
    before_s: float = 0.0
    after_s: float = 0.0
    of: Callable[[Any], bool] | None = None
    when: Callable[[Any, Any], bool] = lambda entries, answers: True
    times: int | None = 1
    happened: int = 0

    @property
    def is_early(self) -> bool:
        return self.before is not None or self.before_s > 0

    def strikes(self, entries: Any, answers: Any) -> bool:
        """Return whether the fault happens to this call; count it if so."""
        if self.times == 0 or not self.when(entries, answers):
            return False
        self.times = self.times and self.times - 1
        self.happened += 1
        return True

    async def ahead(self) -> None:
        if self.before_s:
            await asyncio.sleep(self.before_s)
        if self.before is not None and self.of is None:
            raise self.before

    async def behind(self, entries: Any, answers: Any) -> Any:
        if self.after_s:
            await asyncio.sleep(self.after_s)
        if self.after is None:
            return answers
        if self.of is None:
            raise self.after
        return [self.after if self.of(entry) else answer for entry, answer in zip(entries, answers, strict=True)]


class Faulty:
    """Passes calls on to a store's half, with the faults that a test injects.

    `fail` makes calls fail until `heal`. `inject` makes one fault happen to some calls. `fail_parts` of the store takes
    the part of some groups down. A function in `after` under a call's name is awaited once, between that call and its
    return. `replace` is for behaviour that is not a fault.

    Attributes:
        calls: counts by name.
        parts: what each group's part of the store fails with, if it does: the answer of its entries, as of a server
            that is down. The entries of other groups are served.
        silent_s: how long a call waits for such a part, as for a server that is silent until a deadline passes.
    """

    def __init__(self, real: LogStore | LaneStore | SortedStore) -> None:
        self._real = real
        self.fault: Exception | None = None
        self.only: frozenset[str] = frozenset()
        self.calls: dict[str, int] = {}
        self._faults: dict[str, list[Fault]] = {}
        self._noted: dict[str, list[Any]] = {}
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
            entries = args[0] if args else None
            if name in self._noted:
                self._noted[name].append(entries)
            if self.fault is not None and (not self.only or name in self.only):
                raise self.fault
            answers = await self._with_faults(name, self._instead.get(name, found), entries, args, kwargs)
            if name in self.after:
                await self.after.pop(name)()
            return answers

        return called

    async def _with_faults(
        self, name: str, call: Callable[..., Awaitable[Any]], entries: Any, args: tuple[Any, ...], kw: dict[str, Any]
    ) -> Any:
        faults = self._faults.get(name, ())
        early = [fault for fault in faults if fault.is_early and fault.strikes(entries, None)]
        for fault in early:
            await fault.ahead()
        if type(entries) in (list, tuple):
            answers = await self._by_parts(call, early, entries, *args[1:], **kw)
        else:
            answers = await call(*args, **kw)
        for fault in faults:
            if not fault.is_early and fault.strikes(entries, answers):
                answers = await fault.behind(entries, answers)
        return answers

    async def _by_parts(
        self, call: Callable[..., Awaitable[Any]], faults: list[Fault], entries: Sequence[Any], *args: Any, **kw: Any
    ) -> Any:
        failures: list[Exception | None] = [self.parts(group_of_entry(entry)) for entry in entries]
        if any(failures):
            silent_s = self.silent_s
            self.refused += sum(failure is not None for failure in failures)
        else:
            silent_s = 0.0
        for fault in faults:
            if fault.of is not None:
                failures = [fault.before if fault.of(e) else f for e, f in zip(entries, failures, strict=True)]
        if not any(failures):
            return await call(entries, *args, **kw)
        well = [entry for entry, failure in zip(entries, failures, strict=True) if failure is None]
        answers = iter(await call(well, *args, **kw) if well else ())
        await asyncio.sleep(silent_s)
        return [next(answers) if failure is None else failure for failure in failures]

    def fail(self, fault: Exception | None = None, *only: str) -> None:
        """From now on every call (or every named one) raises `fault`."""
        self.fault = fault or errors.StoreUnavailable("the store is out of reach in this test")
        self.only = frozenset(only)

    def heal(self) -> None:
        """End the faults that `fail` began."""
        self.fault = None

    def inject(self, name: str, **fault: Any) -> Fault:
        """Make a fault happen to calls of this name; the arguments are those of `Fault`."""
        made = Fault(**fault)
        self._faults.setdefault(name, []).append(made)
        return made

    def lose(self, name: str, **fault: Any) -> Fault:
        """Lose the answers of calls of this name."""
        return self.inject(name, after=LOST, **fault)

    def noted(self, name: str) -> list[Any]:
        """Return a list that gets the entries of each call of this name from now on."""
        return self._noted.setdefault(name, [])

    def replace(self, name: str, call: Callable[..., Awaitable[Any]]) -> None:
        """From now on, run `call` in place of the method of that name."""
        self._instead[name] = call


class FaultyStore:
    """A memory store whose halves fail on demand."""

    def __init__(self, real: MemoryStore) -> None:
        self.real = real
        self.shared = real.shared
        self.log: Any = Faulty(real.log)
        self.lanes: Any = Faulty(real.lanes)
        self.sorted: Any = Faulty(real.sorted)
        self._heard: asyncio.Event | None = None

    def watch(self) -> AsyncIterator[Sequence[str] | None]:
        return self.real.watch() if self._heard is None else self._watch_deaf(self._heard)

    async def tell(self, topics: Collection[str]) -> None:
        await self.real.tell(topics)

    def deafen(self) -> asyncio.Event:
        """Let no wake-up arrive from now on; set the event to tell watchers that some may have been lost."""
        self._heard = asyncio.Event()
        return self._heard

    async def _watch_deaf(self, heard: asyncio.Event) -> AsyncIterator[Sequence[str] | None]:
        await heard.wait()
        yield None
        await asyncio.Event().wait()  # a watcher that ends is a store that was closed

    def fail(self, fault: errors.EMQError | None = None) -> None:
        self.log.fail(fault)
        self.lanes.fail(fault)
        self.sorted.fail(fault)

    def heal(self) -> None:
        self.log.heal()
        self.lanes.heal()
        self.sorted.heal()

    def fail_parts(self, parts: Callable[[str], errors.EMQError | None], silent_s: float = 0.0) -> None:
        """Take down the part of each group for which `parts` returns an error; `None` for every group heals."""
        for half in (self.log, self.lanes, self.sorted):
            half.parts, half.silent_s = parts, silent_s

    async def unarmed(self, names: Sequence[str], now_ms: int) -> Sequence[str]:
        if self.log.fault is not None:
            raise self.log.fault
        return await self.real.unarmed(names, now_ms)

    async def forget(self, ended: Sequence[Ended]) -> Sequence[Sequence[int] | None]:
        return await self.real.forget(ended)

    async def close(self) -> None:
        await self.real.close()
