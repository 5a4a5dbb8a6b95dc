"""The way between a process and its store and database: delays, lost answers, outages."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import enum
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from emq.database.database import ANSWER_S
from emq.runtime import errors
from emq.storage.durability import Durability
from emq.storage.store import Store
from support.doubles import InlineDatabase, group_of_entry
from support.simulation.breaking import Breaks

T = TypeVar("T")

SHARDS = 3

DEADLINE_S = 1.0
"""Seconds that a caller waits for a silent shard."""

STORE_DEADLINE_S = 3.0
"""Seconds after which a call to a silent store ends."""

FOUND_S = 2.0
"""When a wake-up that was lost is found: stores keep a set of those that nobody has answered."""

TAKING = ("log.put", "lanes.add", "sorted.add")
"""Calls that a full store refuses."""


class Wakes(enum.Enum):
    """How wake-ups reach a host: at once; some time later; twice; or not, and then it is told that some were lost."""

    WELL = enum.auto()
    LATE = enum.auto()
    AGAIN = enum.auto()
    LOST = enum.auto()


Applied = Callable[[str, Sequence[Any], Any], None]
"""Called with a call's name ("log.put"), its arguments and its result, when the server has carried it out."""


class Shard(NamedTuple):
    """A part of the store that is out of reach.

    Attributes:
        number: of `SHARDS`, among which the groups are dealt out.
        silent: it accepts and does not answer until a deadline passes; it may have carried out the call.
    """

    number: int
    silent: bool

    def holds(self, entry: Any) -> bool:
        return zlib.crc32(group_of_entry(entry).encode()) % SHARDS == self.number


class Network:
    """One process's way to one server.

    What is on the way does not belong to the process any more: it arrives even if the process is stopped or killed.

    Attributes:
        down: nothing gets through, and the caller is told so at once.
        full: the server takes nothing more, and settles what it has.
        silent: calls arrive or do not, and the caller hears nothing until its deadline.
        delay: seconds that a call or an answer takes, asked for each; None for none.
        shard: what part of the store is out of reach, if one is; the entries of others are served.
        loses: asked for each call: whether its answer is lost after it was carried out.
        breaks: what the calls raise that nobody expects.
    """

    def __init__(self, unavailable: errors.EMQError, unknown: errors.EMQError) -> None:
        self.down = False
        self.silent = False
        self.full = False
        self.delay: Callable[[], float] | None = None
        self.loses: Callable[[], bool] | None = None
        self.lost = 0
        self.shard: Shard | None = None
        self.breaks: Breaks | None = None
        self._unavailable = unavailable
        self._unknown = unknown
        self._outside = contextvars.copy_context()
        self._under_way: dict[asyncio.Task[None], None] = {}

    @property
    def is_away(self) -> bool:
        return self.down or self.silent

    def heal(self) -> None:
        self.down, self.silent, self.delay, self.loses = False, False, None, None
        self.shard, self.full = None, False

    async def call(self, operation: Callable[[], Awaitable[T]], deadline_s: float = STORE_DEADLINE_S) -> T:
        if self.breaks is not None and self.breaks.share:
            return await self.breaks.call(operation)
        if self.down:
            raise self._unavailable
        if self.silent:
            await self._hear_nothing(operation, deadline_s)
        if self.delay is None and self.loses is None:
            return await operation()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        task = loop.create_task(self._carry(operation, answer), context=self._outside)
        self._under_way[task] = None
        task.add_done_callback(self._under_way.pop)
        return await answer

    async def _hear_nothing(self, operation: Callable[[], Awaitable[T]], deadline_s: float) -> None:
        """Carry out every other call, and answer none."""
        self.lost += 1
        if self.lost % 2:
            with contextlib.suppress(errors.EMQError):
                await operation()
        await asyncio.sleep(deadline_s)
        raise self._unknown

    async def _carry(self, operation: Callable[[], Awaitable[T]], answer: asyncio.Future[T]) -> None:
        result, failure = None, None
        await self._travel()
        try:
            result = await operation()
        except Exception as exc:
            failure = exc
        if self.loses is not None and self.loses():
            self.lost += 1
            failure = self._unknown
        await self._travel()
        if answer.done():
            return
        if failure is not None:
            answer.set_exception(failure)
        else:
            answer.set_result(result)  # type: ignore[arg-type]

    async def call_in_parts(self, operation: Callable[[Sequence[Any]], Awaitable[Any]], entries: Sequence[Any]) -> Any:
        """Like `call`, for a call with an answer for each entry."""
        shard = self.shard
        if shard is None or not any(map(shard.holds, entries)):
            return await self.call(lambda: operation(entries))
        well = [entry for entry in entries if not shard.holds(entry)]
        answers = iter(await self.call(lambda: operation(well)) if well else ())
        failure = self._unavailable
        if shard.silent:
            failure = self._unknown
            if len(well) % 2:  # as good as any coin
                await self.call(lambda: operation([entry for entry in entries if shard.holds(entry)]))
            await asyncio.sleep(DEADLINE_S)
        return [failure if shard.holds(entry) else next(answers) for entry in entries]

    async def _travel(self) -> None:
        if self.delay is not None:
            await asyncio.sleep(self.delay())


class _Half:
    """One of the stores' halves behind a network."""

    def __init__(self, name: str, real: Any, network: Network, applied: Applied) -> None:
        self._name = name
        self._real = real
        self._network = network
        self._applied = applied

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if not callable(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            async def operation(*given: Any) -> Any:
                if self._network.full and f"{self._name}.{name}" in TAKING:
                    raise errors.StoreFull("the store is full")
                result = await found(*given, **kwargs)
                self._applied(f"{self._name}.{name}", given, result)
                return result

            if args and type(args[0]) in (list, tuple):
                return await self._network.call_in_parts(lambda part: operation(part, *args[1:]), args[0])
            return await self._network.call(lambda: operation(*args))

        return call


class RemoteStore:
    """A store behind a network."""

    def __init__(self, real: Store, applied: Applied) -> None:
        self.network = Network(
            errors.StoreUnavailable("the store is out of reach of this host"),
            errors.OutcomeUnknown("the store's answer was lost"),
        )
        self.shared = real.shared
        self.log: Any = _Half("log", real.log, self.network, applied)
        self.lanes: Any = _Half("lanes", real.lanes, self.network, applied)
        self.sorted: Any = _Half("sorted", real.sorted, self.network, applied)
        self.wakes = Wakes.WELL
        self._real = real

    async def watch(self) -> AsyncIterator[Sequence[str] | None]:
        loop, lost = asyncio.get_running_loop(), False
        async for names in self._real.watch():
            if self.wakes is Wakes.LATE:
                await asyncio.sleep(FOUND_S - loop.time() % FOUND_S)
            if self.wakes is Wakes.LOST:
                lost = True
                continue
            if lost:
                lost = False
                yield None
            yield names
            if self.wakes is Wakes.AGAIN:
                yield names

    async def unarmed(self, names: Sequence[str], now_ms: int) -> Sequence[str]:
        found: Sequence[str] = await self.network.call(lambda: self._real.unarmed(names, now_ms))  # type: ignore[attr-defined]
        return found

    async def close(self) -> None:
        await self._real.close()


class RemoteDatabase(InlineDatabase):
    """A process's connection to the one database of all.

    Attributes:
        observer: called with the result of the next transaction when it is committed.
    """

    observer: Callable[[Any], None] | None = None

    def __init__(self, real: InlineDatabase) -> None:
        down = errors.DatabaseUnavailable("the database is out of reach of this host")
        self.network = Network(down, errors.DatabaseUnavailable("the database's answer was lost"))
        self.shown = "the database"
        self._real: InlineDatabase = real
        self._away_since = None
        self._trouble = ""
        self._reached = False

    @property
    def unreachable(self) -> str | None:
        """Return the text of the real one without the time of day, which the seed does not determine."""
        return None if self._away_since is None else f"the database is away: {self._trouble}"

    def clock_us(self, connection: sa.Connection) -> int:
        return self._real.clock_us(connection)

    async def run(
        self,
        fn: Callable[[sa.Connection], T],
        *,
        read_only: bool = False,
        durability: Durability | None = None,
        then: Callable[[T], None] | None = None,
        deadline_s: float = ANSWER_S,
    ) -> T:
        observer, self.observer = self.observer, None

        async def operation() -> T:
            if self._real.restarting:
                raise errors.DatabaseUnavailable("the database restarts")
            result = await self._real.run(fn, read_only=read_only, then=then)
            if observer is not None:
                observer(result)
            return result

        try:
            result = await self.network.call(operation, deadline_s)
        except errors.DatabaseUnavailable as exc:
            self._failed(exc)
            raise
        self._succeeded()
        return result

    async def close(self) -> None:
        pass
