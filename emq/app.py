"""The public entry point: one object that opens everything, binds handlers, publishes, and runs a host."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

import msgspec

from emq import errors, extras, settings
from emq.allocation.membership import LocalCluster, Membership
from emq.allocation.tree.protocol import Tree
from emq.clock import SystemClock
from emq.database import Database
from emq.database.environment_time import EnvironmentTime
from emq.groups.receiver import MAX_MESSAGES, VISIBILITY_S, Delivery, Receiver
from emq.host import statistics
from emq.host.handlers import Handlers
from emq.host.host import Host, HostOptions
from emq.host.neighbours import Neighbours
from emq.host.surroundings import Services, Storage
from emq.inspect import planned as book
from emq.inspect.admin import Admin
from emq.inspect.dead_letters import EVERY, Letter, Selection
from emq.inspect.dead_letters import find as find_dead
from emq.loops import patience
from emq.loops.timekeeping import Timekeeper
from emq.offsets.checkpoints import CheckpointStore
from emq.producer import Producer
from emq.schedule.delay_levels import Delay
from emq.storage import opening
from emq.storage.environment import Environment
from emq.storage.store import Store
from emq.topics.catalog import Catalog
from emq.topics.model import Kind, Topic, TopicOptions
from emq.trail.sink import NullTrail, TrailSink

Function = TypeVar("Function", bound=Callable[..., Any])


class App:
    """EMQ in one object.

    Use the app as an asynchronous context manager: entering opens the store and the database, leaving closes them. The
    app belongs to the event loop that entered it.

    Args:
        store: URL of the store, such as `sqlite:///emq.db` or `redis://localhost`.
        database: URL of the catalog and checkpoints; None means beside the store (see `Settings.database_url`).
        environment: "online", or "sandbox" to try changes in.
        options: all other settings, as `emq.settings.load` returns them; the arguments `store`, `database` and
            `environment` override those in `options`.
        trail: records the events of each message; None means the directory of the setting `trail`, or no trail. The
            caller closes a trail given here.
        patient: if True, entering waits for a store or database server that does not answer yet, and logs that, for
            hosts that are started with the machine. If False, entering raises `StoreUnavailable` or
            `DatabaseUnavailable`.
    """

    _open: ClassVar[set[int]] = set()
    """Numbers of the open apps of this process; they give each app a host name of its own."""

    def __init__(
        self,
        store: str | None = None,
        *,
        database: str | None = None,
        environment: Environment | str | None = None,
        options: settings.Settings | None = None,
        trail: TrailSink | None = None,
        patient: bool = False,
    ) -> None:
        chosen = options or settings.Settings()
        self.settings = settings.merged(chosen, store=store, database=database, environment=environment)
        self.handlers = Handlers()
        self._given_trail = trail
        self._patient = patient
        self.trail: TrailSink = trail or NullTrail()
        self.clock = SystemClock()
        self.timekeeper: Timekeeper | None = None
        self.host: Host | None = None
        self._number = 0
        self._receivers: dict[str, Receiver] = {}
        self._deleted: set[str] = set()  # topics of receivers that were deleted while a call waited
        self._background: asyncio.Task[None] | None = None
        self._becoming_host = asyncio.Lock()
        self._stack: contextlib.AsyncExitStack | None = None
        self._store: Store | None = None
        self._catalog: Catalog | None = None
        self._producer: Producer | None = None
        self._admin: Admin | None = None
        self._database: Database | None = None
        self._checkpoints: CheckpointStore | None = None

    # ----------------------------------------------------------------------------------------------- open and close

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            self._number = min(set(range(len(App._open) + 1)) - App._open)
            App._open.add(self._number)
            stack.callback(App._open.discard, self._number)
            environment = self.settings.environment
            self._database = await self._waited(self.settings.database_url, self._open_database)
            stack.push_async_callback(self._database.close)
            self._store = await self._waited(self.settings.store, self._open_store)
            stack.push_async_callback(self._store.close)
            if self._given_trail is None and self.settings.trail:
                self.trail = self._open_trail(stack)
            await self._keep_time(stack)
            self._catalog = Catalog(
                self._database, environment, self._store.log.max_queue_qps, lua_folds=self.settings.lua_folds
            )
            self._checkpoints = CheckpointStore(self._database, environment)
            self._producer = Producer(self._store, self._catalog, self.trail, self.clock)
            self._admin = Admin(self._catalog, self._store, self._checkpoints, self._next_epoch, self.trail, self.clock)
            stack.callback(self.handlers.close)
            self._stack = stack.pop_all()
        return self

    async def _keep_time(self, stack: contextlib.AsyncExitStack) -> None:
        """Set the clock by the database's before anything is timed; follow that clock while the app is open."""
        reference = EnvironmentTime(self.database, self.settings.environment)
        self.timekeeper = Timekeeper(self.clock, reference.ask, self.settings.clock_bound_s)
        await self.timekeeper.begin()
        task = asyncio.create_task(self.timekeeper.keep(), name="emq clock")
        stack.push_async_callback(_cancelled, task)

    async def _open_database(self) -> Database:
        return await Database.open(self.settings.database_url)

    async def _open_store(self) -> Store:
        return await opening.open_store(self.settings.store, self.settings.environment, self.clock)

    async def _waited(self, url: str, opened: Callable[[], Awaitable[Part]]) -> Part:
        """Open a part; a patient app waits for a server that may be about to start, but not for a file."""
        if not self._patient or url.partition(":")[0] in ("sqlite", "memory"):
            return await opened()
        return await patience.waited(opening.hide_password(url), opened, self._say_that_it_waits)

    async def _say_that_it_waits(self, why: str) -> None:
        """Save a snapshot, if the database is open, so that lists of hosts show why this one waits."""
        if self._database is not None:
            snapshot = statistics.waiting(self.host_name(), self.clock.now(), why)
            with contextlib.suppress(errors.DatabaseUnavailable):
                await self._database.save_host_stats(
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
        await self._stop_background()
        if self._stack is not None:
            await self._stack.aclose()
            self._stack = None

    # ------------------------------------------------------------------------------------------------------- handlers

    def handler(self, pattern: str, *, batch_size: int = 1) -> Callable[[Function], Function]:
        """Decorate a function to handle the messages of the topics that match `pattern`.

        The function may be `async def` or plain; a plain function runs in a bounded thread pool. Returning means
        success. An exception means a retry (raise `emq.Retry(after_s=...)` to choose the time), but `emq.Reject` sends
        the message to the dead letters at once.

        Args:
            pattern: a topic's name, or a shell pattern such as `orders.*`; the most specific one wins.
            batch_size: most messages in one call. Above 1, the function takes lists of messages of one group. A sorted
                topic with `ordering="slot"` runs one message at a time, so its lists have one message.
        """

        def bind(function: Function) -> Function:
            self.handlers.bind(pattern, function, batch_size=batch_size)
            return function

        return bind

    def receiver(self, pattern: str, *, visibility_s: float = VISIBILITY_S) -> Receiver:
        """Return a receiver: its `receive` hands out the messages of the topics that match `pattern`.

        Args:
            pattern: as for `handler`; one receiver may serve many topics.
            visibility_s: seconds for which a received message may stay unsettled before it is delivered again.
        """
        made = Receiver(visibility_s)
        made.on_wanted.append(self._wanted)
        self.handlers.bind_receiver(pattern, made)
        if self.host is not None:
            self.host.ownership.rebind(pattern)
        return made

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
            await self.catalog.get(topic)
        found = self._receivers.get(topic)  # look again: another call may have been quicker
        if found is None:
            found = self._receivers[topic] = self.receiver(topic, visibility_s=visibility_s)
        if self._background is not None and self._background.done():
            await self._stop_background()
        if self.host is None:
            async with self._becoming_host:
                if self.host is None:
                    await self._host_in_background()
        try:
            return await found.receive(
                min_messages=min_messages, max_messages=max(min_messages, max_messages), timeout_s=timeout_s
            )
        finally:
            if self.host is not None and topic in self._deleted:
                self._forget_receiver(topic)

    def _forget_receiver(self, topic: str) -> None:
        """Forget the receiver of a deleted topic once it is idle; a new topic of that name gets a new receiver."""
        receiver = self._receivers.get(topic)
        if receiver is None:
            return
        self._deleted.add(topic)
        if receiver.is_idle:
            self._deleted.discard(topic)
            del self._receivers[topic]
            self.handlers.unbind_receiver(topic, receiver)

    async def _host_in_background(self) -> Host:
        if self._background is not None:
            raise RuntimeError("this App is a host already; one is enough")
        self._background = asyncio.create_task(self.run(), name="emq host in the background")
        await asyncio.sleep(0)
        assert self.host is not None, "run() makes it before it waits for anything"
        ready = asyncio.ensure_future(self.host.running.wait())
        await asyncio.wait([ready, self._background], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._background.done():
            await self._stop_background()
        return self.host

    async def _stop_background(self) -> None:
        if self._background is not None:
            self.stop()
            background, self._background = self._background, None
            try:
                await background
            finally:
                self.host = None

    def _wanted(self, receiver: Receiver) -> None:
        if self.host is not None:
            self.host.ownership.wanted(receiver)

    # -------------------------------------------------------------------------------------------- topics and messages

    async def create_topic(
        self,
        name: str,
        qps: float,
        *,
        kind: Kind | str = Kind.LOG,
        slots: int = 0,
        group_qps: float | None = None,
        priorities: Sequence[str] | None = None,
        exist_ok: bool = False,
        **options: Any,
    ) -> Topic:
        """Create a topic; `options` are the fields of `TopicOptions`.

        Args:
            qps: most starts a second, over all groups and priorities of the topic.
            kind: "log", or one of the sorted kinds "range_merge", "priority", "fixed_time"; see
                `emq.topics.model.Kind`.
            slots: number of slots of a sorted topic, a power of two; 0 for as many as its qps needs.
            exist_ok: if a topic of that name exists, leave the topic as it is instead of raising `TopicExists`.

        Raises:
            InvalidTopic: a value is out of range; the text says what would be right.
        """
        unknown = options.keys() - set(TopicOptions.__struct_fields__)
        if unknown:
            known = ", ".join(TopicOptions.__struct_fields__)
            raise errors.InvalidTopic(f"topic {name!r} has no option {min(unknown)!r}; the options are {known}")
        if kind not in tuple(Kind):
            raise errors.InvalidTopic(f"topic {name!r}: kind {kind!r} is not known; choose {', '.join(Kind)}")
        fields: dict[str, Any] = {"name": name, "qps": qps, "options": TopicOptions(**options)}
        fields |= {"kind": Kind(kind), "slots": slots}
        if group_qps is not None:
            fields["group_qps"] = group_qps
        if priorities is not None:
            fields["priorities"] = tuple(priorities)
        [topic] = await self.admin.create([Topic(**fields)], exist_ok=exist_ok)
        return topic

    async def publish(
        self,
        topic: str,
        payload: bytes | str,
        *,
        key: str | None = None,
        priority: str | float | None = None,
        headers: Mapping[str, str] | None = None,
        delay_ms: float | None = None,
        delay: Delay | None = None,
        at: datetime.datetime | float | None = None,
        ttl_s: float | None = None,
        time_range_ms: int | None = None,
        merge_key: bytes | str | None = None,
    ) -> str:
        """Publish one message; return its id. See `Producer.publish`."""
        return await self.producer.publish(
            topic,
            payload,
            key=key,
            priority=priority,
            headers=headers,
            delay_ms=delay_ms,
            delay=delay,
            at=at,
            ttl_s=ttl_s,
            time_range_ms=time_range_ms,
            merge_key=merge_key,
        )

    async def publish_many(self, topic: str, payloads: Iterable[bytes | str], **options: Any) -> list[str]:
        """Publish many messages to one topic; return their ids. See `Producer.publish_many`."""
        return await self.producer.publish_many(topic, payloads, **options)

    async def schedule(self, topic: str, payload: bytes | str, **options: Any) -> str:
        """Publish a message again and again; return the schedule's id. See `Producer.schedule`."""
        return await self.producer.schedule(topic, payload, **options)

    async def planned(self, pattern: str = "*", *, skip: int = 0, limit: int = 100) -> list[book.Planned]:
        """Return a page of the delayed messages and schedules in topics that match `pattern`, by due time.

        A page ends at `limit` entries, or with the entry that brings its payloads to 64 MiB. An empty page means the
        end; a short page does not.
        """
        topics = await self.catalog.list(pattern)
        entries = book.find(self.store.lanes, topics, skip=skip, limit=limit, max_bytes=book.LISTED_BYTES)
        return [entry async for entry in entries]

    async def recall(self, topic: str, *ids: str) -> set[str]:
        """Recall entries that no host has claimed yet: delayed messages, schedules, waiting messages of sorted topics.

        Returns:
            The ids that were recalled; the other messages have started, or are about to start.
        """
        return await self.admin.recall(topic, ids)

    async def dead_letters(self, topic: str, selection: Selection = EVERY) -> AsyncIterator[Letter]:
        """Yield the selected dead letters of the topic, read in pages; see `emq.inspect.dead_letters.find`."""
        async for letter in find_dead(self.store, await self.catalog.get(topic), selection):
            yield letter

    # ------------------------------------------------------------------------------------------------------------ host

    async def run(self, membership: Membership | None = None) -> None:
        """Be a host: consume every topic with a handler until `stop` is called or the call is cancelled.

        Raises:
            HostConflict: another host consumes from this store, and the store is for one host only or that host has
                another database; stop that host first.
        """
        options, membership = self.settings, membership or self.membership()
        neighbours = None
        if self.store.shared:
            neighbours = Neighbours(self.store.lanes, self.database, options.environment, self.host_name())
        self.host = Host(
            Storage(self.store, self.catalog, self._opened(self._checkpoints)),
            membership,
            self.handlers,
            Services(self.clock, self.timekeeper, neighbours, self.trail),
            HostOptions(
                checkpoint_s=options.checkpoint_s,
                max_unsaved_s=options.max_unsaved_s,
                drain_s=options.drain_s,
                max_in_flight=options.max_in_flight,
            ),
        )
        self.host.on_deleted.append(self._forget_receiver)
        await self.host.run()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Host]:
        """Be a host for the length of a block: `async with app.running(): ...`. Stops cleanly at the block's end.

        Raises:
            HostConflict: as for `run`. Any other error that ended the host within the block is raised, too.
        """
        host = await self._host_in_background()
        try:
            yield host
        finally:
            await self._stop_background()

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
        if self.host is not None:
            self.host.stop()

    def membership(self, process: int | None = None) -> Membership:
        """Return a membership of the cluster that the settings name, or else of the hosts that share the database.

        Hosts of a shared store need no ZooKeeper ensemble: they find each other in a tree in the database. For a store
        that only one host may consume from, the membership has this host alone.

        Args:
            process: number of this process if several host processes share a host name; else None.

        Raises:
            InvalidSettings: the store is one that many hosts cannot share, or the cluster's settings are wrong.
        """
        if not self.store.shared:
            if self.settings.cluster:
                raise errors.InvalidSettings(
                    f"store {opening.hide_password(self.settings.store)!r} cannot be shared by the hosts of a cluster; "
                    "use redis:// or postgresql://, or leave `cluster` empty"
                )
            return LocalCluster(self._next_epoch).member(self.host_name())
        from emq.allocation.member import ClusterMembership
        from emq.allocation.seat import Seat

        host = self.host_name() if process is None else f"{self.host_name()}-{process}"
        return ClusterMembership(
            Seat(self.coordination(), self.settings.environment, host, self._next_generation, self.clock),
            weight=self.settings.weight,
            database=self.database,
            # A single host need not wait for others; processes of one host, and hosts of a cluster, start together.
            debounce_first=bool(self.settings.cluster) or process is not None,
            serves=lambda: self.handlers.patterns(),
        )

    def coordination(self) -> Tree:
        """Return the coordination tree of the cluster that the settings name, or else of the database; not opened yet.

        Raises:
            InvalidSettings: the cluster's URL is wrong, or a module that the cluster needs is missing.
        """
        options = self.settings
        if not options.cluster:
            if options.database_is_private:
                from emq.allocation.tree.memory.ensemble import MemoryEnsemble

                return MemoryEnsemble(self.clock).tree(options.session_timeout_s)
            from emq.allocation.tree.database import DatabaseTree

            return DatabaseTree(options.database_url, options.session_timeout_s)
        try:
            from emq.allocation import zookeeper
        except ModuleNotFoundError as exc:
            raise errors.InvalidSettings(
                f"clusters need the module {exc.name!r}; {extras.remedy('zookeeper')}"
            ) from exc
        return zookeeper.tree_of(options)

    def host_name(self) -> str:
        """Return the name of the settings, or else one made of machine name, process id and number of the app."""
        if self.settings.host_name:
            return self.settings.host_name
        machine = re.sub(r"[^A-Za-z0-9._@-]", "-", socket.gethostname()).lstrip("._@-")[:150] or "host"
        return f"{machine}-{os.getpid()}" + (f"-{self._number}" if self._number else "")

    # ----------------------------------------------------------------------------------------------------------- parts

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
            raise RuntimeError("the App is not open; use `async with app:`")
        return part


Part = TypeVar("Part")


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
