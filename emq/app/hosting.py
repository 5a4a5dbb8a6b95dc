"""An app that consumes: its handlers and receivers, and its life as a host."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Concatenate, TypeVar, Unpack, overload

import msgspec

from emq.allocation.membership import LoneMembership, Membership
from emq.allocation.tree.protocol import Tree
from emq.app.background_host import BackgroundHost
from emq.app.hooked import HookedApp
from emq.app.opened import not_open
from emq.app.receivers import Receivers
from emq.groups.receiver import MAX_MESSAGES, VISIBILITY_S, Delivery, Receiver
from emq.groups.records import Keeper, Records
from emq.host import garbage_collection
from emq.host.handlers import HandlerOptions, check_pattern
from emq.host.host import Host
from emq.host.neighbours import Neighbours
from emq.host.options import HostOptions
from emq.host.surroundings import Services, Storage
from emq.host.throttles import Throttles
from emq.observe.metrics.monitor import Monitor
from emq.offsets import deletion
from emq.runtime import errors, extras, passwords
from emq.runtime.settings import Settings
from emq.trail.sink import TrailSink

Function = TypeVar("Function", bound=Callable[..., Any])
OneHandler = TypeVar("OneHandler", bound=Callable[Concatenate[Any, ...], object])
BatchHandler = TypeVar("BatchHandler", bound=Callable[Concatenate[list[Any], ...], object])


class HostingApp(HookedApp):
    """An app that can consume, with handlers and receivers; see `emq.app.app.App`.

    Attributes:
        records: functions of extensions, which record finished messages before the host saves their progress.
    """

    def __init__(self, settings: Settings, trail: TrailSink | None, *, patient: bool, create: bool) -> None:
        super().__init__(settings, trail, patient=patient, create=create)
        self.host: Host | None = None
        self.monitor = Monitor(self)
        self._starting: asyncio.Timeout | None = None
        self._receivers = Receivers(self.handlers)
        self._background = BackgroundHost(self)
        self.records: list[Keeper] = []
        self._running: asyncio.Task[Any] | None = None  # in which `run` runs; None while this app is no host
        self._ended = asyncio.Event()
        self._becoming_host = asyncio.Lock()
        self._is_closing = False

    async def __aexit__(self, *exc_info: object) -> None:
        self._is_closing = True  # a `receive` that waits for the catalog's answer makes no host any more
        try:
            await self._background.stop()
            # Somebody may have made `run` a task of his own: end it before the store and the database close.
            if self._running not in (None, asyncio.current_task()):
                self.stop()
                await self._ended.wait()
        finally:
            try:
                await super().__aexit__(*exc_info)
            finally:
                self._is_closing = False

    @property
    def throttles(self) -> Throttles:
        """The throttles of this host's topics: a handler closes its topic for a while, or slows the topic down.

        Raises:
            InvalidSettings: this app runs no host now; only handlers, hooks and code beside `run` can use throttles.
        """
        if self.host is None:
            raise errors.InvalidSettings("this app runs no host now; use app.throttles while app.run() runs")
        return self.host.throttles

    def owns(self, topic: str) -> bool:
        """Return True while this host may start messages of the topic's first group.

        For a handler that makes messages wait before it acts on them: once this is False, another host may soon act on
        the messages of the topic and of all topics below it as a budget. Raise `GiveBack` then.
        """
        return self.host is not None and self.host.owns(topic)

    def epoch_of(self, topic: str) -> int | None:
        """Return the number of this host's ownership of the topic's first group; None without one.

        No other host had the group between two calls that return the same number. Unlike `owns`, this does not change
        while the cluster or the time is unknown for a moment.
        """
        return None if self.host is None else self.host.epoch_of(topic)

    @overload
    def handler(self, pattern: str, **options: Unpack[HandlerOptions]) -> Callable[[OneHandler], OneHandler]: ...

    @overload
    def handler(
        self, pattern: str, *, batch_size: int, **options: Unpack[HandlerOptions]
    ) -> Callable[[BatchHandler], BatchHandler]: ...

    def handler(
        self, pattern: str, *, batch_size: int = 1, **options: Unpack[HandlerOptions]
    ) -> Callable[[Function], Function]:
        """Decorate a function to handle the messages of the topics that match `pattern`.

        The function may be `async def` or plain; a plain function runs in a bounded thread pool. Returning means
        success. An exception means a retry (raise `emq.Retry(after_s=...)` to choose the time), but `emq.Reject` sends
        the message to the dead letters at once. Within a handler `publish` and the other methods of the app work; a
        plain function may return an awaitable for the host, such as `app.publish(...)`.

        The annotation of the first parameter says what the function gets: the message (`Message`, or no annotation) or
        its payload, decoded to `bytes`, `str`, `dict`, a dataclass, a TypedDict, a msgspec.Struct or a pydantic model.
        A message whose payload does not fit becomes a dead letter. Further parameters may ask for the message, too:
        `async def ship(order: Order, message: emq.Message)`.

        Args:
            pattern: a topic's name, or a shell pattern such as `orders.*`; the most specific one wins.
            batch_size: most messages in one call. Above 1, the function takes lists of messages of one group. A sorted
                topic with `ordering="slot"` runs one message at a time, so its lists have one message.
            options: `on_expired` and `withdraws`, see `emq.host.handlers.HandlerOptions`.

        Raises:
            InvalidSettings: the pattern is missing or taken, the function cannot be called with one argument, EMQ
                cannot decode a payload to the type of its parameter, or `on_expired` or `withdraws` is not a plain
                function.
            InvalidTopic: no topic can have this name.
        """
        check_pattern(pattern)

        def bind(function: Function) -> Function:
            self.handlers.bind(pattern, function, batch_size=batch_size, **options)
            return function

        return bind

    def receiver(self, pattern: str, *, visibility_s: float = VISIBILITY_S) -> Receiver:
        """Return a receiver: its `receive` hands out the messages of the topics that match `pattern`.

        Args:
            pattern: as for `handler`; one receiver may serve many topics.
            visibility_s: seconds for which a received message may stay unsettled before it is delivered again.
        """
        return self._receivers.bind(pattern, visibility_s)

    async def receive(
        self,
        topic: str,
        min_messages: int = 1,
        timeout_s: float = 30.0,
        *,
        max_messages: int = MAX_MESSAGES,
        visibility_s: float = VISIBILITY_S,
    ) -> list[Delivery]:
        """Wait until `min_messages` of a topic are there or the time is up; see `Receiver.receive`.

        If this app is not a host yet, the first call makes it a host until the app is closed.

        Args:
            visibility_s: as for `receiver`; only the first call for a topic sets it.
        """
        if topic not in self._receivers:
            try:
                await self.catalog.get(topic)
            except errors.UnknownTopic:
                if await self.families.above(topic) is None:  # else the first publish makes it
                    raise
        found = self._receivers.of(topic, visibility_s)
        await self._background.stop_if_ended()
        if self._running is None:
            async with self._becoming_host:
                if self._running is None:
                    self._begin_in_background()
                    await self._background.until_running()
        try:
            return await found.receive(
                min_messages=min_messages, max_messages=max(min_messages, max_messages), timeout_s=timeout_s
            )
        finally:
            self._receivers.used(topic)

    def _begin_in_background(self) -> None:
        if self._background.has_begun or self._running is not None:
            raise _is_host_already()
        self._background.begin()

    async def run(self, membership: Membership | None = None) -> None:
        """Be a host: consume every topic with a handler until `stop` is called or the call is cancelled.

        Meanwhile Python's garbage collector takes larger steps, unless the program has called `gc.set_threshold`.

        Raises:
            HostConflict: another host consumes from this store, and the store is for one host only or that host has
                another database; stop that host first.
            InvalidSettings: the address of the setting `metrics` is taken.
            HookFailed: a start-up hook for hosts failed.
            WrongState: the app is a host already, or not open.
        """
        if self._running is not None:
            raise _is_host_already()
        if self._is_closing or not self.is_open:
            raise not_open()
        self._running = asyncio.current_task()
        self._ended.clear()
        try:
            await self._be_host(membership)
        finally:
            self._running = None
            self._ended.set()

    async def _be_host(self, membership: Membership | None) -> None:
        options, membership = self.settings, membership or self.membership()
        neighbours = None
        if self.store.shared:
            neighbours = Neighbours(self.store.lanes, self.database, options.environment, self.host_name())
        self.host = Host(
            Storage(self.store, self.catalog, self.checkpoints),
            membership,
            self.handlers,
            Services(
                self.clock,
                self.timekeeper,
                neighbours,
                self.trail,
                self.monitor.deliveries(),
                Records(self.records),
            ),
            msgspec.convert(options, HostOptions, from_attributes=True),
        )
        self._receivers.serve(self.host)
        with self._as_current():
            async with self.monitor.serving():
                try:
                    async with asyncio.timeout(None) as self._starting:
                        await self.hooks.start(host_only=True)
                except TimeoutError:  # `stop` was called meanwhile
                    return
                finally:
                    self._starting = None
                try:
                    with garbage_collection.in_larger_steps():
                        await self.host.run()
                finally:
                    await self.hooks.stop(host_only=True)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Host]:
        """Be a host for the length of a block: `async with app.running(): ...`. Stops cleanly at the block's end.

        Raises:
            HostConflict, WrongState: as for `run`. Any other error that ended the host within the block is raised, too.
        """
        self._begin_in_background()
        try:  # from here on: the caller may be cancelled while the host begins
            yield await self._background.until_running()
        finally:
            await self._background.stop()

    @contextlib.asynccontextmanager
    async def hosting_lifespan(self, web_app: object = None) -> AsyncIterator[Mapping[str, Any]]:
        """Do what `lifespan` does, and be a host meanwhile: the web process consumes, too."""
        async with self.lifespan(web_app) as state, self.running():
            self._background.log_failure()
            yield state

    async def run_until_signal(self, membership: Membership | None = None) -> None:
        """Run until Ctrl-C or SIGTERM, then stop cleanly; a second signal stops at once. For the main thread only."""
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(self.run(membership))
        signals = 0

        def on_signal() -> None:
            nonlocal signals
            signals += 1
            if signals == 1:
                self.stop()
            else:
                task.cancel()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        try:
            await task
        except asyncio.CancelledError:
            if signals < 2:
                raise
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """End `run` cleanly: start nothing more, wait for messages in flight, save progress. Returns at once."""
        if self._starting is not None:
            self._starting.reschedule(asyncio.get_running_loop().time())
        if self.host is not None:
            self.host.stop()

    def forget_host(self) -> None:
        """Note that this app runs no host any more."""
        self.host = None
        self._receivers.serve(None)

    def membership(self, process: int | None = None) -> Membership:
        """Return a membership of the cluster that the settings name, or else of the hosts that share the database.

        Hosts of a shared store need no ZooKeeper ensemble: they find each other in a tree in the database. For a store
        that only one host may consume from, or a database that no other process sees, the membership has this host
        alone.

        Args:
            process: number of this process if several host processes share a host name; else None.

        Raises:
            InvalidSettings: the store is one that many hosts cannot share, or the cluster's settings are wrong.
        """
        if not self.store.shared and self.settings.cluster:
            raise errors.InvalidSettings(
                f"store {passwords.hide_password(self.settings.store)!r} cannot be shared by the hosts of a cluster; "
                "use redis:// or postgresql://, or leave `cluster` empty"
            )
        if not self.store.shared or (self.settings.database_is_private and not self.settings.cluster):
            return LoneMembership(self.host_name(), self._next_epoch)
        from emq.allocation.member import ClusterMembership
        from emq.allocation.membership import Seat

        host = self.host_name() if process is None else f"{self.host_name()}-{process}"
        return ClusterMembership(
            Seat(self.coordination(), self.settings.environment, host, self._next_generation, self.clock),
            weight=self.settings.weight,
            database=self.database,
            # A single host need not wait for others; processes of one host, and hosts of a cluster, start together.
            debounce_first=bool(self.settings.cluster) or process is not None,
            serves=lambda: self.handlers.patterns(),
            closing=functools.partial(deletion.under_way, self.store.lanes, self.catalog),
        )

    def coordination(self) -> Tree:
        """Return the coordination tree of the cluster that the settings name, or else of the database; not opened yet.

        Raises:
            InvalidSettings: the cluster's URL is wrong, or a module that the cluster needs is missing.
        """
        options = self.settings
        if not options.cluster:
            from emq.allocation.tree.database import DatabaseTree

            return DatabaseTree(options.database_url, options.session_timeout_s, create=self._create)
        try:
            from emq.allocation import zookeeper
        except ModuleNotFoundError as exc:
            raise errors.InvalidSettings(
                f"clusters need the module {exc.name!r}; {extras.remedy('zookeeper')}"
            ) from exc
        return zookeeper.tree_of(options, create=self._create)


def _is_host_already() -> errors.WrongState:
    return errors.WrongState("this App is a host already; one is enough")
