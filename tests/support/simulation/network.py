"""What lies between a process and its store and database: delays, lost answers, outages."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from emq import errors
from emq.storage import Durability
from storage_adapters.memory import MemoryStore
from support.doubles import InlineDatabase

T = TypeVar("T")

Applied = Callable[[str, Sequence[Any], Any], None]
"""Called with a call's name ("log.put"), its arguments and its result, when the server has carried it out."""


class Network:
    """One process's way to one server.

    What is on the way does not belong to the process any more: it arrives even if the process is stopped or killed.

    Attributes:
        down: nothing gets through, and the caller is told so at once.
        delay: seconds that a call or an answer takes, asked for each; None for none.
        loses: asked for each call: whether its answer is lost after it was carried out.
    """

    def __init__(self, unavailable: errors.EMQError, unknown: errors.EMQError) -> None:
        self.down = False
        self.delay: Callable[[], float] | None = None
        self.loses: Callable[[], bool] | None = None
        self.lost = 0
        self._unavailable = unavailable
        self._unknown = unknown
        self._outside = contextvars.copy_context()
        self._under_way: dict[asyncio.Task[None], None] = {}

    def heal(self) -> None:
        self.down, self.delay, self.loses = False, None, None

    async def call(self, operation: Callable[[], Awaitable[T]]) -> T:
        if self.down:
            raise self._unavailable
        if self.delay is None and self.loses is None:
            return await operation()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        task = loop.create_task(self._carry(operation, answer), context=self._outside)
        self._under_way[task] = None
        task.add_done_callback(self._under_way.pop)
        return await answer

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
            async def operation() -> Any:
                result = await found(*args, **kwargs)
                self._applied(f"{self._name}.{name}", args, result)
                return result

            return await self._network.call(operation)

        return call


class RemoteStore:
    """A memory store behind a network."""

    def __init__(self, real: MemoryStore, applied: Applied) -> None:
        self.network = Network(
            errors.StoreUnavailable("the store is out of reach of this host"),
            errors.OutcomeUnknown("the store's answer was lost"),
        )
        self.shared = real.shared
        self.log: Any = _Half("log", real.log, self.network, applied)
        self.lanes: Any = _Half("lanes", real.lanes, self.network, applied)
        self.sorted: Any = _Half("sorted", real.sorted, self.network, applied)
        self._real = real

    def watch(self) -> AsyncIterator[Sequence[str] | None]:
        return self._real.watch()

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
        self._real = real

    async def run(
        self,
        fn: Callable[[sa.Connection], T],
        *,
        read_only: bool = False,
        durability: Durability | None = None,
        then: Callable[[T], None] | None = None,
    ) -> T:
        observer, self.observer = self.observer, None

        async def operation() -> T:
            result = await self._real.run(fn, read_only=read_only, then=then)
            if observer is not None:
                observer(result)
            return result

        return await self.network.call(operation)

    async def close(self) -> None:
        pass
