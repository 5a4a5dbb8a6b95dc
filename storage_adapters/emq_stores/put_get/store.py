"""The whole store: a PUT/GET log, and another store's lanes and slots."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Sequence

from emq.runtime import errors
from emq.runtime.environment import Environment
from emq.storage.log_store import LogStore
from emq.storage.store import Holding, Store
from emq_stores.put_get.client import Options, PutGetClient
from emq_stores.put_get.log_store import PutGetLogStore


class PutGetStore:
    """`emq.storage.store.Store` whose queues are in a PUT/GET storage; its lanes and slots are in another store.

    Args:
        client: the storage of the queues.
        retries: an open store of the same environment, for lanes, slots and their wake-ups; `close` closes it as well.
        environment: the environment whose queues to serve.
        options: see `Options`.
    """

    def __init__(
        self, client: PutGetClient, retries: Store, environment: Environment, options: Options | None = None
    ) -> None:
        self._log = PutGetLogStore(client, environment, options)
        self.log: LogStore = self._log
        self.lanes = retries.lanes
        self.sorted = retries.sorted
        self.shared = retries.shared
        self._retries = retries

    async def tell(self, topics: Collection[str]) -> None:
        """See `emq.storage.store.Store`."""
        if (tell := getattr(self._retries, "tell", None)) is not None:
            await tell(topics)

    async def watch(self) -> AsyncIterator[Sequence[str] | None]:
        """See `Store.watch`. Exhausted queues are polled only while the caller watches.

        If the other store's watch breaks, this one ends with its error; the caller may watch again.
        """
        loops = [asyncio.create_task(self._log.polls.run()), asyncio.create_task(self._forward())]
        for loop in loops:
            loop.add_done_callback(self._ended)
        try:
            async for names in self._log.wakeups.watch():
                for loop in loops:
                    if loop.done():
                        loop.result()
                yield names
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)

    def _ended(self, loop: asyncio.Task[None]) -> None:
        if loop.cancelled():
            return
        if loop.exception() is None:
            self._log.wakeups.close()  # the other store is closed
        else:
            self._log.wakeups.lose()  # so that the watcher finds the error

    async def _forward(self) -> None:
        """Loop: pass on the wake-ups of the other store's lanes and slots, until that store is closed."""
        watch = self._retries.watch()
        async for names in watch:
            if names is None:
                self._log.wakeups.lose()
            else:
                for name in names:
                    self._log.wakeups.wake(name)

    async def unarmed(self, names: Sequence[str], now_ms: int) -> Sequence[str]:
        """See `emq.storage.store.Store`."""
        unpolled = [name for name in names if not self._log.polls.is_armed(name)]
        unarmed = getattr(self._retries, "unarmed", None)
        return unpolled if unarmed is None else await unarmed(unpolled, now_ms)

    async def holding(self) -> Holding:
        """See `emq.storage.store.Store`. A storage that has only PUT and GET cannot tell which queues it has."""
        if getattr(self._retries, "holding", None) is None:
            return Holding((), (), ())
        held: Holding = await self._retries.holding()  # type: ignore[attr-defined]
        return held

    async def close(self) -> None:
        """See `Store.close`."""
        await self._log.close()
        with contextlib.suppress(errors.StoreUnavailable):
            await self._retries.close()
