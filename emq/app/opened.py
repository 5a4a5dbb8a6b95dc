"""The parts of an app: opening and closing them, and the names by which others reach them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
from collections.abc import Awaitable, Callable
from typing import ClassVar, Self, TypeVar

import msgspec

from emq import errors
from emq.clock import SystemClock
from emq.database import Database, host_stats, urls
from emq.database.environment_time import EnvironmentTime
from emq.database.known_stores import KnownStores
from emq.host import statistics
from emq.host.handlers import Handlers
from emq.loops import patience
from emq.loops.timekeeping import Timekeeper
from emq.observe.admin import Admin
from emq.offsets.checkpoints import CheckpointStore
from emq.producer import Producer
from emq.settings import Settings
from emq.storage import opening
from emq.storage.store import Store
from emq.topics.catalog import Catalog
from emq.trail.sink import NullTrail, TrailSink

log = logging.getLogger(__name__)

Part = TypeVar("Part")


class OpenedApp:
    """What an app is made of: settings, clock, database, store, catalog, producer, trail; see `emq.app.app.App`."""

    _open: ClassVar[set[int]] = set()
    """Numbers of the open apps of this process; they give each app a host name of its own."""

    def __init__(self, settings: Settings, trail: TrailSink | None, *, patient: bool, create: bool) -> None:
        self.settings = settings
        self.handlers = Handlers()
        self._given_trail = trail
        self._patient = patient
        self._create = create
        self.trail: TrailSink = trail or NullTrail()
        self.clock = SystemClock()
        self.timekeeper: Timekeeper | None = None
        self.waits_for: str | None = None
        self._number = 0
        self._stack: contextlib.AsyncExitStack | None = None
        self._is_entered = False
        self._store: Store | None = None
        self._catalog: Catalog | None = None
        self._producer: Producer | None = None
        self._admin: Admin | None = None
        self._database: Database | None = None
        self._checkpoints: CheckpointStore | None = None

    async def __aenter__(self) -> Self:
        if self._is_entered:
            raise errors.WrongState("the App is open already; enter it once, with `async with app:`")
        self._is_entered = True  # before anything is awaited: a second lifespan may begin meanwhile
        try:
            await self._open_parts()
        except BaseException:
            self._is_entered = False
            raise
        return self

    async def _open_parts(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            self._number = min(set(range(len(OpenedApp._open) + 1)) - OpenedApp._open)
            OpenedApp._open.add(self._number)
            stack.callback(OpenedApp._open.discard, self._number)
            environment = self.settings.environment
            self._database = await self._waited(self.settings.database_url, self._open_database)
            stack.push_async_callback(self._database.close)
            self._store = await self._waited(self.settings.store, self._open_store)
            stack.push_async_callback(self._store.close)
            if self._given_trail is None and self.settings.trail:
                self.trail = self._open_trail(stack)
            self._warn_of_local_catalog()
            await self._keep_time(stack)
            self._catalog = Catalog(
                self._database,
                environment,
                self._store.log.max_queue_qps,
                lua_folds=self.settings.lua_folds,
                place=self.place,
            )
            stores = KnownStores(
                self._database, environment, self._store.lanes, opening.hide_password(self.settings.store)
            )
            self._checkpoints = CheckpointStore(self._database, environment, stores)
            self._producer = Producer(self._store, self._catalog, self.trail, self.clock)
            self._admin = Admin(self._catalog, self._store, self._checkpoints, self._next_epoch, self.trail, self.clock)
            stack.callback(self.handlers.close)
            self._stack, self.waits_for = stack.pop_all(), None

    @property
    def place(self) -> str:
        """The store and the database, as errors name them."""
        store, database = urls.located(self.settings.store), urls.located(self.settings.database_url)
        return f"store and database {store}" if store == database else f"store {store}, database {database}"

    def _warn_of_local_catalog(self) -> None:
        """Warn if many machines can share the store, but its topics are in a file of this machine."""
        settings = self.settings
        if self._create and self.store.shared and not settings.database and settings.database_url.startswith("sqlite:"):
            log.warning(
                "many machines can share the store %s, but its topics and checkpoints are in the file %s, which other "
                "machines do not see; name one database for all of them: --database postgresql://..., or EMQ_DATABASE",
                opening.hide_password(settings.store),
                urls.located(settings.database_url),
            )

    async def _keep_time(self, stack: contextlib.AsyncExitStack) -> None:
        """Set the clock by the database's before anything is timed; follow that clock while the app is open."""
        reference = EnvironmentTime(self.database, self.settings.environment)
        self.timekeeper = Timekeeper(self.clock, reference.ask, self.settings.clock_bound_s)
        await self.timekeeper.begin()
        task = asyncio.create_task(self.timekeeper.keep(), name="emq clock")
        stack.push_async_callback(_cancelled, task)

    async def _open_database(self) -> Database:
        return await Database.open(self.settings.database_url, create=self._create)

    async def _open_store(self) -> Store:
        if not self._create and self.settings.store.startswith("sqlite:"):
            urls.refuse_missing_file(self.settings.store)
        return await opening.open_store(self.settings.store, self.settings.environment, self.clock)

    async def _waited(self, url: str, opened: Callable[[], Awaitable[Part]]) -> Part:
        """Open a part; a patient app waits for a server that may be about to start, but not for a file."""
        if not self._patient or url.partition(":")[0] in ("sqlite", "memory"):
            return await opened()
        return await patience.waited(opening.hide_password(url), opened, self._say_that_it_waits)

    async def _say_that_it_waits(self, why: str) -> None:
        """Save a snapshot, if the database is open, so that lists of hosts show why this one waits."""
        self.waits_for = why
        if self._database is not None:
            snapshot = statistics.waiting(self.host_name(), self.clock.now(), why)
            with contextlib.suppress(errors.DatabaseUnavailable):
                await host_stats.save(
                    self._database,
                    self.settings.environment,
                    snapshot.host,
                    msgspec.json.encode(snapshot).decode(),
                    int(snapshot.time * 1000),
                )

    def _open_trail(self, stack: contextlib.AsyncExitStack) -> TrailSink:
        from emq.trail.writer import Trail  # needs pyarrow, an optional dependency

        trail = Trail.open(self.settings.trail, self.host_name(), self.clock)
        stack.push_async_callback(asyncio.to_thread, trail.close)
        return trail

    async def __aexit__(self, *exc_info: object) -> None:
        if self._stack is None:
            return
        try:
            await self._stack.aclose()
        finally:
            self._stack, self._is_entered = None, False

    @property
    def is_open(self) -> bool:
        return self._stack is not None

    def host_name(self) -> str:
        """Return the name of the settings, or else one made of machine name, process id and number of the app."""
        if self.settings.host_name:
            return self.settings.host_name
        machine = re.sub(r"[^A-Za-z0-9._@-]", "-", socket.gethostname()).lstrip("._@-")[:150] or "host"
        return f"{machine}-{os.getpid()}" + (f"-{self._number}" if self._number else "")

    @property
    def store(self) -> Store:
        return self._opened(self._store)

    @property
    def catalog(self) -> Catalog:
        return self._opened(self._catalog)

    @property
    def producer(self) -> Producer:
        return self._opened(self._producer)

    @property
    def admin(self) -> Admin:
        return self._opened(self._admin)

    @property
    def database(self) -> Database:
        return self._opened(self._database)

    @property
    def checkpoints(self) -> CheckpointStore:
        return self._opened(self._checkpoints)

    async def _next_epoch(self) -> int:
        return await self._next_generation(self.clock.now_us())

    async def _next_generation(self, least: int) -> int:
        return await self.database.next_generation(self.settings.environment, least=least)

    def _opened(self, part: Part | None) -> Part:
        if part is None:
            raise errors.WrongState("the App is not open; use `async with app:`")
        return part


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
