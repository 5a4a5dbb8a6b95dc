"""Opens and closes the parts of an app, and gives others access to them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ClassVar, Self

from emq.app.servers import Servers
from emq.database import Database, urls
from emq.database.environment_time import EnvironmentTime
from emq.database.known_stores import KnownStores
from emq.host.handlers import Handlers
from emq.observe.admin import Admin
from emq.observe.families import Declared, Families
from emq.offsets.checkpoints import CheckpointStore
from emq.producer import Producer
from emq.runtime import errors, passwords
from emq.runtime.clock import SystemClock
from emq.runtime.guard import Guard
from emq.runtime.settings import Settings
from emq.runtime.timekeeping import Timekeeper
from emq.storage.store import Store
from emq.topics.catalog import Catalog
from emq.trail.sink import NullTrail, TrailSink


class OpenedApp:
    """The parts of an app: settings, clock, database, store, catalog, producer, trail; see `emq.app.app.App`.

    Attributes:
        declared: the families that are there once the app is open.
    """

    database: Database
    store: Store
    catalog: Catalog
    checkpoints: CheckpointStore
    producer: Producer
    admin: Admin
    families: Families
    _open: ClassVar[set[int]] = set()
    """Numbers of the open apps of this process; they give each app a host name of its own."""

    def __init__(self, settings: Settings, trail: TrailSink | None, *, patient: bool, create: bool) -> None:
        self.settings = settings
        self.handlers = Handlers()
        self.declared: list[Declared] = []
        self._given_trail = trail
        self._patient = patient
        self._create = create
        self.trail: TrailSink = trail or NullTrail()
        self.clock = SystemClock()
        self.timekeeper: Timekeeper | None = None
        self._open_database: Callable[..., Awaitable[Database]] = Database.open  # of the test harness: its own
        self._servers: Servers | None = None
        self._number = 0
        self._stack: contextlib.AsyncExitStack | None = None
        self._is_entered = False

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
            self._servers = Servers(
                self.settings, self.clock, self.host_name(), patient=self._patient, create=self._create
            )
            self.database = await self._servers.open_database(self._open_database)
            stack.push_async_callback(self.database.close)
            self.store = await self._servers.open_store()
            stack.push_async_callback(self.store.close)
            if self._given_trail is None and self.settings.trail:
                self.trail = self._open_trail(stack)
            await self._keep_time(stack)
            self.catalog = Catalog(
                self.database,
                environment,
                self.store.log.max_queue_qps,
                lua_folds=self.settings.lua_folds,
                place=self.place,
            )
            stores = KnownStores(
                self.database, environment, self.store.lanes, passwords.hide_password(self.settings.store)
            )
            self.checkpoints = CheckpointStore(self.database, environment, stores)
            self.producer = Producer(self.store, self.catalog, self.trail, self.clock)
            self.admin = Admin(self.catalog, self.store, self.checkpoints, self._next_epoch, self.trail, self.clock)
            self.families = Families(self.catalog, self.admin)
            stack.callback(self.handlers.close)
            await self.families.declare(self.declared)
            self._stack = stack.pop_all()

    @property
    def place(self) -> str:
        """The store and the database, as errors name them."""
        store, database = urls.located(self.settings.store), urls.located(self.settings.database_url)
        return f"store and database {store}" if store == database else f"store {store}, database {database}"

    async def _keep_time(self, stack: contextlib.AsyncExitStack) -> None:
        """Set the clock by the database's before its first use; follow that clock while the app is open."""
        reference = EnvironmentTime(self.database, self.settings.environment)
        self.timekeeper = Timekeeper(self.clock, reference.ask, self.settings.clock_bound_s)
        await self.timekeeper.begin()
        task = asyncio.create_task(Guard().keep("clock", self.timekeeper.keep), name="emq clock")
        stack.push_async_callback(_cancelled, task)

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
    def waits_for(self) -> str | None:
        """The reason why opening the app takes long; None if it is not being opened or no server is missing."""
        return None if self._servers is None else self._servers.waits_for

    @property
    def is_open(self) -> bool:
        return self._stack is not None

    def host_name(self) -> str:
        """Return the name of the settings, or else one made of machine name, process id and number of the app."""
        if self.settings.host_name:
            return self.settings.host_name
        machine = re.sub(r"[^A-Za-z0-9._@-]", "-", socket.gethostname()).lstrip("._@-")[:150] or "host"
        return f"{machine}-{os.getpid()}" + (f"-{self._number}" if self._number else "")

    async def _next_epoch(self) -> int:
        return await self._next_generation(self.clock.now_us())

    async def _next_generation(self, least: int) -> int:
        return await self.database.next_generation(self.settings.environment, least=least)

    if not TYPE_CHECKING:  # to a type checker, every name would be one of these

        def __getattr__(self, name: str) -> Any:
            if name in OpenedApp.__annotations__:
                raise not_open()
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def not_open() -> errors.WrongState:
    return errors.WrongState("the App is not open; use `async with app:`")


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
