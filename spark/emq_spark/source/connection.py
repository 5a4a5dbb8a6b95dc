"""EMQ for code that Spark calls and that cannot await: an event loop on a separate thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from emq import App
from emq.runtime.settings import Settings
from emq.storage.opening import open_store
from emq.storage.store import Store
from emq.trail.sink import NullTrail

T = TypeVar("T")


class Connection:
    """Runs coroutines on an event loop of its own, beside the caller's work."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="emq-spark", daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.start(coroutine).result()

    def close(self) -> None:
        """Cancel the coroutines under way, and end the thread."""
        self.run(_cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def connected_store(settings: Settings) -> Iterator[tuple[Connection, Store]]:
    """Open the store alone, without the database, for tasks that need nothing else."""
    with contextlib.closing(Connection()) as connection:
        store = connection.run(open_store(settings.store, settings.environment))
        try:
            yield connection, store
        finally:
            connection.run(store.close())


@contextlib.contextmanager
def connected_app(settings: Settings, *, create: bool = False) -> Iterator[tuple[Connection, App]]:
    """Open an app (store, catalog and producer); `create` sets up a new database, for callers that create topics."""
    with contextlib.closing(Connection()) as connection:
        app = connection.run(_entered(settings, create))
        try:
            yield connection, app
        finally:
            connection.run(app.__aexit__(None, None, None))


async def _entered(settings: Settings, create: bool) -> App:
    return await App(options=settings, trail=NullTrail(), create=create).__aenter__()


def ask(settings: Settings, question: Callable[[App], Awaitable[T]]) -> T:
    """Return the answer to one question of the driver; open an app for it, and close the app again."""

    async def asked() -> T:
        async with App(options=settings, trail=NullTrail(), create=False) as app:
            return await question(app)

    return asyncio.run(asked())
