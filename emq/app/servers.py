"""The servers of an app: opens its database and its store, and waits for a server that may be about to start."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from emq.database import Database, host_stats, urls
from emq.host.statistics import HostStatistics
from emq.runtime import errors, passwords, patience
from emq.runtime.clock import Clock
from emq.runtime.settings import Settings
from emq.storage import opening
from emq.storage.store import Store

log = logging.getLogger(__name__)

Part = TypeVar("Part")


class Servers:
    """Opens the database and then the store that an app's settings name.

    Args:
        host: name under which lists of hosts show that this app waits.
        patient: wait for servers that do not answer yet, but not for files.
        create: set up what does not exist.

    Attributes:
        waits_for: why opening takes long; None if no server is missing.
    """

    def __init__(self, settings: Settings, clock: Clock, host: str, *, patient: bool, create: bool) -> None:
        self._settings, self._clock, self._host = settings, clock, host
        self._patient, self._create = patient, create
        self._database: Database | None = None
        self.waits_for: str | None = None

    async def open_database(self, opened: Callable[..., Awaitable[Database]]) -> Database:
        """Return the database, as `opened` opens it; see `Database.open`."""
        url = self._settings.database_url
        self._database = await self._waited(url, functools.partial(opened, url, create=self._create))
        return self._database

    async def open_store(self) -> Store:
        """Return the store; warn if many machines can share it, but its topics are in a file of this machine."""
        settings = self._settings
        if not self._create and settings.store.startswith("sqlite:"):
            urls.refuse_missing_file(settings.store)
        opened = functools.partial(opening.open_store, settings.store, settings.environment, self._clock)
        store = await self._waited(settings.store, opened)
        if self._create and store.shared and not settings.database and settings.database_url.startswith("sqlite:"):
            log.warning(
                "many machines can share the store %s, but its topics and checkpoints are in the file %s, which other "
                "machines do not see; name one database for all of them: --database postgresql://..., or EMQ_DATABASE",
                passwords.hide_password(settings.store),
                urls.located(settings.database_url),
            )
        return store

    async def _waited(self, url: str, opened: Callable[[], Awaitable[Part]]) -> Part:
        if not self._patient or url.partition(":")[0] in ("sqlite", "memory"):
            return await opened()
        part = await patience.waited(passwords.hide_password(url), opened, self._say_that_it_waits)
        self.waits_for = None
        return part

    async def _say_that_it_waits(self, why: str) -> None:
        """Save a snapshot, if the database is open, so that lists of hosts show why this one waits."""
        self.waits_for = why
        if self._database is not None:
            snapshot = HostStatistics(self._host, self._clock.now(), store_unreachable=why)
            with contextlib.suppress(errors.DatabaseUnavailable):
                await host_stats.save(
                    self._database,
                    self._settings.environment,
                    snapshot.host,
                    msgspec.json.encode(snapshot).decode(),
                    int(snapshot.time * 1000),
                )
