"""The public face: one object that opens everything, binds handlers, publishes, and runs a host."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

from emq import errors, settings, stores
from emq.admin import Admin
from emq.allocation.membership import LocalCluster, Membership, StaticMembership
from emq.allocation.tree import Tree
from emq.catalog import Catalog
from emq.clock import SystemClock
from emq.database import Database
from emq.dead_letters import EVERY, Letter, Selection
from emq.dead_letters import find as find_dead
from emq.handlers import Handlers
from emq.host import Host, HostOptions
from emq.model import Environment, Kind, Topic, TopicOptions
from emq.offsets.checkpoints import CheckpointStore
from emq.producer import Producer
from emq.receiver import MAX_MESSAGES, VISIBILITY_S, Delivery, Receiver
from emq.schedule import book
from emq.schedule.levels import Delay
from emq.storage import Store
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
    """

    def __init__(
        self,
        store: str | None = None,
        *,
        database: str | None = None,
        environment: Environment | str | None = None,
        options: settings.Settings | None = None,
        trail: TrailSink | None = None,
    ) -> None:
        chosen = options or settings.Settings()
        self.settings = settings.merged(chosen, store=store, database=database, environment=environment)
        self.handlers = Handlers()
        self._given_trail = trail
        self.trail: TrailSink = trail or NullTrail()
        self.clock = SystemClock()
        self.host: Host | None = None
        self._receivers: dict[str, Receiver] = {}
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
            environment = self.settings.environment
            self._store = await stores.open_store(self.settings.store, environment)
            stack.push_async_callback(self._store.close)
            self._database = await Database.open(self.settings.database_url)
            stack.push_async_callback(self._database.close)
            if self._given_trail is None and self.settings.trail:
                self.trail = self._open_trail(stack)
            self._catalog = Catalog(self._database, environment, self._store.log.max_queue_qps)
            self._checkpoints = CheckpointStore(self._database, environment)
            self._producer = Producer(self._store, self._catalog, self.trail, self.clock)
            self._admin = Admin(self._catalog, self._store, self._checkpoints, self._next_epoch, self.trail)
            stack.callback(self.handlers.close)
            self._stack = stack.pop_all()
        return self

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
            self.host.ownership.rebind()
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
        return await found.receive(
            min_messages=min_messages, max_messages=max(min_messages, max_messages), timeout_s=timeout_s
        )

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

    def _wanted(self) -> None:
        if self.host is not None:
            self.host.ownership.wanted()

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
            kind: "log", or one of the sorted kinds "range_merge", "priority", "fixed_time"; see `emq.model.Kind`.
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
        """A page of what is delayed and what recurs, in the topics that match `pattern`, by due time."""
        topics = await self.catalog.list(pattern)
        return [entry async for entry in book.find(self.store.lanes, topics, skip=skip, limit=limit)]

    async def recall(self, topic: str, *ids: str) -> set[str]:
        """Take back what has not been claimed yet: delayed messages, schedules, waiting messages of sorted topics.

        Returns those that were taken back; the others have started, or are about to.
        """
        return await self.admin.recall(topic, ids)

    async def dead_letters(self, topic: str, selection: Selection = EVERY) -> AsyncIterator[Letter]:
        """The topic's dead letters that are meant, read in pages; see `emq.dead_letters.find`, and `replay` there."""
        async for letter in find_dead(self.store, await self.catalog.get(topic), selection):
            yield letter

    # ------------------------------------------------------------------------------------------------------------ host

    async def run(self, membership: Membership | None = None) -> None:
        """Be a host: consume every topic that a handler is bound to, until `stop` is called or this is cancelled.

        Raises:
            HostConflict: another host consumes from this store, which only one may.
        """
        options = self.settings
        self.host = Host(
            self.store,
            self.catalog,
            self._opened(self._checkpoints),
            membership or self.membership(),
            self.handlers,
            clock=self.clock,
            trail=self.trail,
            options=HostOptions(
                checkpoint_s=options.checkpoint_s, drain_s=options.drain_s, max_in_flight=options.max_in_flight
            ),
        )
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
        """What the settings ask for: a place in the cluster that they name, or else this host is alone.

        Args:
            process: number of this one among several host processes that share a host name.

        Raises:
            InvalidSettings: the store is one that many hosts cannot share, or the cluster's settings are wrong.
        """
        if not self.settings.cluster:
            return self.local_membership()
        if not self.store.shared:
            raise errors.InvalidSettings(
                f"store {stores.hide_password(self.settings.store)!r} cannot be shared by the hosts of a cluster; use "
                "redis:// or postgresql://, or leave `cluster` empty"
            )
        from emq.allocation.member import ClusterMembership

        return ClusterMembership(
            self.coordination(),
            self.settings.environment,
            self.host_name() if process is None else f"{self.host_name()}-{process}",
            self._next_generation,
            self.clock,
            weight=self.settings.weight,
        )

    def coordination(self) -> Tree:
        """The coordination tree of the cluster that the settings name, not opened yet.

        Raises:
            InvalidSettings: they name none, or not one that can be used.
        """
        if not self.settings.cluster:
            raise errors.InvalidSettings(
                "no cluster is named; give --cluster zookeeper://HOST:PORT, or EMQ_CLUSTER, or `cluster` in emq.toml"
            )
        try:
            from emq.allocation import zookeeper
        except ModuleNotFoundError as exc:
            raise errors.InvalidSettings(
                f"clusters need the module {exc.name!r}; pip install 'emq[zookeeper]'"
            ) from exc
        return zookeeper.tree_of(self.settings)

    def local_membership(self) -> Membership:
        """The embedded default: this host is its cluster's only member."""
        return LocalCluster(self._next_epoch).member(self.host_name())

    def static_membership(self, member: int, members: int) -> Membership:
        """One of `members` host processes on a machine, started and watched by `emq host --processes`."""
        return StaticMembership(f"{self.host_name()}-{member}", member, members, self._next_epoch)

    def host_name(self) -> str:
        return self.settings.host_name or f"{socket.gethostname()}-{os.getpid()}"

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
        return await self._next_generation(int(time.time()))

    async def _next_generation(self, least: int) -> int:
        return await self.database.next_generation(self.settings.environment, least=least)

    def _opened(self, part: Part | None) -> Part:
        if part is None:
            raise RuntimeError("the App is not open; use `async with app:`")
        return part


Part = TypeVar("Part")
