"""The public face: one object that opens everything, binds handlers, publishes, and runs a host."""

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

from emq import errors, settings
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
from emq.storage.store import Store
from emq.topics.catalog import Catalog
from emq.topics.model import Environment, Kind, Topic, TopicOptions
from emq.trail.sink import NullTrail, TrailSink

Function = TypeVar("Function", bound=Callable[..., Any])


class App:
    """EMQ in one object.

    Use it as an asynchronous context manager: entering opens the store and the database, leaving closes them. It
    belongs to the event loop that entered it.

    Args:
        store: URL of the store, such as `sqlite:///emq.db` or `redis://localhost`.
        database: URL of the catalog and checkpoints; None means beside the store (see `Settings.database_url`).
        environment: "online", or "sandbox" to try a change in first.
        options: every other setting, as `emq.settings.load` returns them; `store`, `database` and `environment` given
            here go before.
        trail: where to record what happens to each message; None means as the setting `trail` says, a directory or
            nothing. One given here is the caller's to close.
        patient: entering waits for a store or database server that does not answer yet, and says so in the log, as
            hosts do that are started with the machine; else it raises `StoreUnavailable` or `DatabaseUnavailable`.
    """

    _open: ClassVar[set[int]] = set()
    """Numbers of the apps of this process that are open, so that each is a host under a name of its own."""

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
        self._deleted: set[str] = set()  # of these, topics that were deleted while somebody waited
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
        """Set the clock by the database's before anything is timed, and follow it for as long as the app is open."""
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
        """A file is there or not; a server may be about to start."""
        if not self._patient or url.partition(":")[0] in ("sqlite", "memory"):
            return await opened()
        return await patience.waited(opening.hide_password(url), opened, self._say_that_it_waits)

    async def _say_that_it_waits(self, why: str) -> None:
        """So that whoever looks at the hosts sees this one, and what it waits for; in vain without the database."""
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
        from emq.trail.writer import Trail  # needs pyarrow, which only those who keep a trail have

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
        """Decorator: messages of the topics that match `pattern` go to this function.

        Args:
            pattern: a topic's name, or a shell pattern such as `orders.*`; the most specific one wins.
            batch_size: above 1, the function takes lists of up to so many messages of one group; of a sorted topic
                with `ordering="slot"`, which runs one message at a time, lists of one.

        The function may be `async def`, or plain, and then runs in a bounded thread pool. Returning means success;
        raising means a retry (`emq.Retry(after_s=...)` to say when), or, for `emq.Reject`, the dead letters.
        """

        def bind(function: Function) -> Function:
            self.handlers.bind(pattern, function, batch_size=batch_size)
            return function

        return bind

    def receiver(self, pattern: str, *, visibility_s: float = VISIBILITY_S) -> Receiver:
        """Messages of the topics that match `pattern` are handed to those who call the answer's `receive`.

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

        The first call makes this app a host if it is none yet, until it is closed.

        Args:
            visibility_s: counts with the first call for a topic.
        """
        if topic not in self._receivers:
            await self.catalog.get(topic)
        found = self._receivers.get(topic)  # looked up again: another call may have been quicker
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
        """The topic was deleted: forget its receiver, once nobody waits there. One of that name begins anew."""
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
            qps: most starts a second, over all its groups and priorities.
            kind: "log", or one of the sorted kinds "range_merge", "priority", "fixed_time"; see
                `emq.topics.model.Kind`.
            slots: of a sorted topic, a power of two; 0 for as many as its qps asks for.
            exist_ok: leave a topic of that name as it is instead of raising `TopicExists`.

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
        """Publish one message; returns its id. See `Producer.publish`."""
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
        """Publish many messages to one topic; see `Producer.publish_many`."""
        return await self.producer.publish_many(topic, payloads, **options)

    async def schedule(self, topic: str, payload: bytes | str, **options: Any) -> str:
        """Publish a message again and again; returns the schedule's id. See `Producer.schedule`."""
        return await self.producer.schedule(topic, payload, **options)

    async def planned(self, pattern: str = "*", *, skip: int = 0, limit: int = 100) -> list[book.Planned]:
        """A page of what is delayed and what recurs, in the topics that match `pattern`, by due time.

        A page ends at `limit` entries, or with the one that brings its payloads to 64 MiB. Only an empty page says that
        there is no more.
        """
        topics = await self.catalog.list(pattern)
        entries = book.find(self.store.lanes, topics, skip=skip, limit=limit, max_bytes=book.LISTED_BYTES)
        return [entry async for entry in entries]

    async def recall(self, topic: str, *ids: str) -> set[str]:
        """Take back what has not been claimed yet: delayed messages, schedules, waiting messages of sorted topics.

        Returns those that were taken back; the others have started, or are about to.
        """
        return await self.admin.recall(topic, ids)

    async def dead_letters(self, topic: str, selection: Selection = EVERY) -> AsyncIterator[Letter]:
        """Yield the topic's dead letters that `selection` means, read in pages; see `emq.inspect.dead_letters.find`."""
        async for letter in find_dead(self.store, await self.catalog.get(topic), selection):
            yield letter

    # ------------------------------------------------------------------------------------------------------------ host

    async def run(self, membership: Membership | None = None) -> None:
        """Be a host: consume every topic that a handler is bound to, until `stop` is called or this is cancelled.

        Raises:
            HostConflict: another host consumes from this store, which only one may.
        """
        options, membership = self.settings, membership or self.membership()
        neighbours = None
        if self.store.shared:
            neighbours = Neighbours(self.store.lanes, self.database, options.environment, self.host_name())
        self.host = Host(
            self.store,
            self.catalog,
            self._opened(self._checkpoints),
            membership,
            self.handlers,
            clock=self.clock,
            timekeeper=self.timekeeper,
            neighbours=neighbours,
            trail=self.trail,
            options=HostOptions(
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
        """Be a host for the length of a block: `async with app.running(): ...`. Stops cleanly at its end.

        Raises:
            HostConflict: as for `run`; or whatever else ended it within the block.
        """
        host = await self._host_in_background()
        try:
            yield host
        finally:
            await self._stop_background()

    async def run_until_signal(self, membership: Membership | None = None) -> None:
        """`run`, ended cleanly by Ctrl-C or SIGTERM; a second one ends it at once. For the main thread only."""
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
        """End `run` cleanly: nothing more is started, messages in flight are awaited, progress is saved."""
        if self.host is not None:
            self.host.stop()

    def membership(self, process: int | None = None) -> Membership:
        """A place among the hosts of the cluster that the settings name, or else of the database.

        Hosts of a store that many can share need no ensemble to find each other: they meet in a tree in the database.
        Only where one host alone may consume is there nobody to meet.

        Args:
            process: number of this one among several host processes that share a host name.

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

        return ClusterMembership(
            self.coordination(),
            self.settings.environment,
            self.host_name() if process is None else f"{self.host_name()}-{process}",
            self._next_generation,
            self.clock,
            weight=self.settings.weight,
            database=self.database,
            # Who starts alone waits for nobody; processes of one host, and hosts of a cluster, often start together.
            debounce_first=bool(self.settings.cluster) or process is not None,
            serves=lambda: self.handlers.patterns(),
        )

    def coordination(self) -> Tree:
        """The coordination tree of the cluster that the settings name, or else of the database; not opened yet.

        Raises:
            InvalidSettings: the cluster is not one that can be used.
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
                f"clusters need the module {exc.name!r}; pip install 'emq[zookeeper]'"
            ) from exc
        return zookeeper.tree_of(options)

    def host_name(self) -> str:
        """As set, or else of the machine, the process, and which of the process's apps this is."""
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
        return await self._next_generation(int(self.clock.now()))

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
