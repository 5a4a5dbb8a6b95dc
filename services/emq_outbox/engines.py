"""Transactions on the user's engine: in a thread for an `Engine`, in the event loop for an `AsyncEngine`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import sqlalchemy as sa

from emq.app.daemon_threads import DaemonThreads

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine  # needs greenlet, which only users of such an engine have

T = TypeVar("T")

WAIT_S = 5.0
"""Most seconds for which a cancelled caller waits for its statement, before it lets go of the connection."""


class Run(Protocol):
    """Runs a function with the connection of the transaction."""

    def __call__(self, function: Callable[[sa.Connection], T], /) -> Awaitable[T]: ...


@contextlib.asynccontextmanager
async def transaction(engine: sa.Engine | AsyncEngine, isolation: str | None = None) -> AsyncIterator[Run]:
    """Begin a transaction; commit it at the end of the block, or roll it back.

    Args:
        isolation: isolation level; None for the engine's.
    """
    options: dict[str, Any] = {} if isolation is None else {"isolation_level": isolation}
    if not isinstance(engine, sa.Engine):
        async with engine.connect() as waiting:
            await waiting.execution_options(**options)
            async with waiting.begin():
                yield lambda function: waiting.run_sync(function)
        return
    connection = await _in_thread(engine.connect)
    try:
        connection.execution_options(**options)
        begun = await _in_thread(connection.begin)
        try:
            yield lambda function: _in_thread(lambda: function(connection))
        except BaseException:
            await _in_thread(begun.rollback)
            raise
        await _in_thread(begun.commit)
    finally:
        await _in_thread(connection.close)


async def _in_thread(function: Callable[[], T]) -> T:
    running = asyncio.get_running_loop().run_in_executor(DaemonThreads("emq-outbox"), function)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        # The connection must not be used from two threads at once.
        await asyncio.wait([running], timeout=WAIT_S)
        raise
