"""A host in the background: a task in which an app is a host while its user does something else."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from emq.host.host import Host

log = logging.getLogger(__name__)


class Hosting(Protocol):
    """What an app has of its life as a host; see `emq.app.hosting.HostingApp`.

    Attributes:
        host: the host that the app is; None while it is none.
    """

    host: Host | None

    async def run(self) -> None: ...

    def stop(self) -> None: ...

    def forget_host(self) -> None: ...


class BackgroundHost:
    """Makes an app a host in a task of its own, and raises the task's error to whoever waits for the host.

    States: *none* (at first, and after `stop`), *begun* (by `begin`), *ended* (the host failed, or was stopped; its
    error waits for `until_running` or `stop`).
    """

    def __init__(self, app: Hosting) -> None:
        self._app = app
        self._task: asyncio.Task[None] | None = None

    @property
    def has_begun(self) -> bool:
        return self._task is not None

    def begin(self) -> None:
        self._task = asyncio.create_task(self._app.run(), name="emq host in the background")

    async def until_running(self) -> Host:
        """Return the host once it consumes; raise its error if it ends before."""
        assert self._task is not None
        await asyncio.sleep(0)
        await self.stop_if_ended()  # for example, with wrong settings
        host = self._app.host
        assert host is not None, "run() makes it before it waits for anything"
        ready = asyncio.ensure_future(host.running.wait())
        try:
            await asyncio.wait([ready, self._task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        await self.stop_if_ended()
        return host

    async def stop_if_ended(self) -> None:
        """Raise the error of a host that has failed."""
        if self._task is not None and self._task.done():
            await self.stop()

    async def stop(self) -> None:
        """Stop the host cleanly, if one has begun; raise its error if it failed."""
        if self._task is not None:
            self._app.stop()
            task, self._task = self._task, None
            try:
                await task
            finally:
                self._app.forget_host()

    def log_failure(self) -> None:
        """Log the host's failure when it fails, since nobody awaits the host before a web app ends."""
        assert self._task is not None
        self._task.add_done_callback(_log_end)


def _log_end(host: asyncio.Task[None]) -> None:
    if not host.cancelled() and (failure := host.exception()) is not None:
        log.error("this web process consumes no more, because its host failed: %s", failure, exc_info=failure)
