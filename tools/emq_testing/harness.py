"""The harness: one app with the real engine on the memory store, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Self

from emq import App, Message
from emq.groups.owned import OwnedGroup
from emq.host.handlers import Binding
from emq.host.host import Host
from emq.runtime import settings
from emq.runtime.clock import SystemClock
from emq_testing import left as rest
from emq_testing.database import VirtualDatabase
from emq_testing.left import Left, NotSettled
from emq_testing.record import Failure, Published, Record, watch
from emq_testing.together import Running, Together, joined, of_engine

SETTLE_S = 300.0
"""Virtual seconds for which `settled` waits."""

DRAIN_S = 366 * 86_400.0
"""Virtual seconds for which `drained` waits."""

DRAIN_STARTS, ATTEMPTS = 10_000, 16
"""Most starts for which `drained` waits, and further starts for each message that was there at first. So a test ends
although its handler publishes or fails for ever."""

LOOK_S = 0.5
"""Virtual seconds between two looks at the work left, while the engine reports nothing."""

GRACE_S = 0.1
"""Virtual seconds after the end of `advance` in which messages that came due may still start."""


class Harness:
    """Runs an app as a host on a store of its own in memory, in virtual time: `async with Harness(app) as t: ...`.

    The engine is the real one: quotas, priorities, retries, delays, schedules and dead letters behave as in production.
    Time stands still while anything runs, and jumps as soon as everything waits. Handlers that use `asyncio.sleep`,
    `asyncio.timeout` or `loop.time()` see virtual time; `time.time()` and `datetime.now()` stay those of the machine.

    The app knows the topics that it would know in production: those below its families, those that its start-up hooks
    create, and those that the test creates with `app.create_topic`. A publish to any other raises `UnknownTopic`.

    While the harness is open, the app uses neither its own store and database nor its trail and cluster. The harness
    leaves the app as it found it, so that every test can open a fresh one.

    Several harnesses may be open at once, each with an app of its own. They share one virtual time: it stands still
    while anything runs in any of the apps. `settled`, `drained` and all that a harness tells are about its own app;
    `advance` lets the messages of all of them start.

    Args:
        app: an app that is not open. A module's own `app` will do.
        start: the virtual time at first; with a time zone, or in UTC. Give it where a test depends on the calendar, as
            cron schedules do. None for the time of the machine. In both cases the first second is a quarter over. While
            another harness is open, None is the virtual time that it is there.
        patience_s: real seconds for which time stands still at most while a thread works or another process does not
            answer; see `emq_testing.outside`.
        overrides: functions to call in place of those that handlers name in `Depends`: the named function is the key.

    Attributes:
        app: the app.
    """

    def __init__(
        self,
        app: App,
        *,
        start: datetime.datetime | None = None,
        patience_s: float = 2.0,
        overrides: Mapping[Callable[..., Any], Callable[..., Any]] | None = None,
    ) -> None:
        self.app = app
        self._overrides = overrides or {}
        self._start = start if start is None or start.tzinfo else start.replace(tzinfo=datetime.UTC)
        self._patience_s = patience_s
        self._record = Record(self._has_changed)
        self._stack: contextlib.AsyncExitStack | None = None
        self._host: Host
        self._together: Together
        self._wrapped: dict[int, tuple[Binding, Binding]] = {}  # a call may be an object that cannot be hashed

    async def __aenter__(self) -> Self:
        if self.app._stack is not None:
            raise RuntimeError("the app is open already; let the harness open it: `async with Harness(app) as t:`")
        async with contextlib.AsyncExitStack() as stack:
            self._together = stack.enter_context(joined(self._patience_s))
            self._set_up(stack)
            await stack.enter_async_context(self.app)
            await stack.enter_async_context(self._hosting())
            stack.enter_context(self._together.minding(Running(self.app, self._record, self._host)))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        if self._stack is not None:
            try:
                await self._stack.__aexit__(*exc_info)
            finally:
                self._stack = None

    # ------------------------------------------------------------------------------------------------ what a test does

    async def publish(self, topic: str, payload: Any, **options: Any) -> str:
        """Publish one message; return its id. Takes what `App.publish` takes."""
        self._check_open()
        return await self.app.publish(topic, payload, **options)

    async def settled(self, within_s: float = SETTLE_S) -> None:
        """Wait until nothing runs, and nothing that may start waits.

        Time passes only as quotas and handlers need it, so delayed messages, retries and schedules stay: see `advance`
        and `drained`. Messages in paused topics and in topics without a handler stay, too.

        Args:
            within_s: virtual seconds to wait at most.

        Raises:
            NotSettled: the app did not come to rest in time; the text names what is left.
        """
        await self._wait(within_s, later=False)

    async def drained(self, within_s: float = DRAIN_S) -> None:
        """Wait as `settled` does, and for delayed messages and retries, too, but not for schedules, which never end.

        Hours between two attempts pass at once.

        Args:
            within_s: virtual seconds to wait at most.

        Raises:
            NotSettled: work is left after that time, or after `DRAIN_STARTS` starts and `ATTEMPTS` more for each
                message that was there at first; the text names the work.
        """
        await self._wait(within_s, later=True)

    async def advance(self, seconds: float = 0.0, **span: float) -> None:
        """Let time pass, and let the messages start that come due in it.

        Args:
            seconds: virtual seconds.
            span: further time in other units, as `datetime.timedelta` takes them: `advance(hours=2)`.

        Raises:
            ValueError: the time is negative or not finite.
        """
        self._check_open()
        loop = asyncio.get_running_loop()
        passing_s = seconds + datetime.timedelta(**span).total_seconds()
        if not 0 <= passing_s < math.inf:
            raise ValueError(f"time cannot advance by {passing_s:g} s; give a number of at least 0")
        until = loop.time() + passing_s
        with self._together.passing(until):
            while loop.time() < until:
                self._together.leap(await self._together.look())
                await self._together.next_change(min(until, loop.time() + LOOK_S))
            while (await self._together.look()).is_due and loop.time() < until + GRACE_S:
                await self._together.next_change(loop.time() + 0.001)

    async def left(self) -> list[Left]:
        """Return the work left in each topic with any, such as a paused one."""
        self._check_open()
        return await rest.look(self.app, self._record)

    @property
    def now(self) -> datetime.datetime:
        """The virtual time, in UTC."""
        return datetime.datetime.fromtimestamp(self.app.clock.now(), datetime.UTC)

    @property
    def delivered(self) -> list[Message]:
        """The messages that were handled successfully, in that order."""
        return self._record.delivered

    @property
    def failures(self) -> list[Failure]:
        """The attempts whose handler raised, with the exception, in order."""
        return self._record.failures

    @property
    def dead_letters(self) -> list[Failure]:
        """The messages that became dead letters, in order, with those that were replayed or purged since."""
        return self._record.dead_letters

    @property
    def published(self) -> list[Published]:
        """The messages that test and handlers published through the app, in order; also to topics without a handler."""
        return self._record.published

    # -------------------------------------------------------------------------------------------------- passing of time

    def _check_open(self) -> None:
        if self._stack is None:
            raise RuntimeError("the harness is not open; use `async with Harness(app) as t:`, and ask within the block")

    async def _wait(self, within_s: float, *, later: bool) -> None:
        self._check_open()
        loop = asyncio.get_running_loop()
        began = loop.time()
        most_started: int | None = None
        with self._together.passing(began + within_s):
            while True:
                look = await self._together.look()
                left = look.of(self.app)
                if most_started is None:
                    waiting = sum(one.ready + one.in_flight + one.later for one in left)
                    most_started = self._host.work.dispatcher.started + DRAIN_STARTS + ATTEMPTS * waiting
                if rest.is_at_rest(left) and not (later and await rest.has_later(self.app, left)):
                    return
                self._together.leap(look)
                if later and self._host.work.dispatcher.started > most_started:
                    raise NotSettled(
                        f"not at rest after more than {DRAIN_STARTS:,} starts; left: {rest.listed(left)}; does a "
                        "handler publish to its own topic, or a message fail for ever?"
                    )
                if loop.time() >= began + within_s:
                    raise NotSettled(f"not at rest after {within_s:g} s of virtual time; left: {rest.listed(left)}")
                await self._together.next_change(min(began + within_s, loop.time() + LOOK_S))

    def _has_changed(self) -> None:
        self._together.changed.set()

    # ---------------------------------------------------------------------------------------------------- setting up

    def _set_up(self, stack: contextlib.AsyncExitStack) -> None:
        """Give the app a store, a database and a time of its own, until the stack ends."""
        app, wall_ns = self.app, self._together.wall(self._start)

        async def open_database(_: str, *, create: bool) -> VirtualDatabase:
            return await VirtualDatabase.open_by("sqlite://", wall_ns)

        async def keep_time(_: object) -> None:
            """The clock and the database's clock are one."""

        own = {"store": "memory:", "database": "sqlite://", "trail": "", "cluster": "", "metrics": ""}
        made = settings.merged(app.settings, **own, window_begins_ms=0.0)  # all here go by one clock
        _replace(stack, app, "settings", made)
        _replace(stack, app, "clock", SystemClock(wall_ns, wall_ns))
        _replace(stack, app, "trail", self._record)
        _replace(stack, app, "timekeeper", None)
        _replace(stack, app, "_open_database", open_database)
        _replace(stack, app, "_keep_time", keep_time)
        overridden = app.dependency_overrides
        stack.callback(overridden.update, dict(overridden))
        stack.callback(overridden.clear)
        overridden.update(self._overrides)
        _replace(stack, app, "_start_hooks", functools.partial(self._with_listening, app._start_hooks))
        _replace(stack, app.hooks, "run", self._outside_of_engine)
        _replace(stack, app.handlers, "find", functools.partial(self._find, app.handlers.find))
        _replace(stack, app.handlers._threads, "run", functools.partial(self._in_thread, app.handlers._threads.run))

    def _find(self, find: Callable[[str], Binding | None], topic: str) -> Binding | None:
        binding = find(topic)
        if binding is None:
            return None
        if id(binding) not in self._wrapped:
            wrapped = binding._replace(call=functools.partial(self._handle, binding.call))
            self._wrapped[id(binding)] = (binding, wrapped)
        return self._wrapped[id(binding)][1]

    async def _handle(self, call: Callable[[Any], Awaitable[object]], argument: Any) -> object:
        with self._together.handling():
            return await self._outside_of_engine(functools.partial(call, argument))

    async def _with_listening(self, start_hooks: Callable[[], Awaitable[None]]) -> None:
        watch(self.app.producer, self._record)
        await start_hooks()

    async def _outside_of_engine(self, step: Callable[[], Awaitable[object]]) -> object:
        token = of_engine.set(False)
        try:
            return await step()
        finally:
            of_engine.reset(token)

    async def _in_thread(self, run: Callable[..., Awaitable[object]], *arguments: Any) -> object:
        outside = self._together.outside
        outside.began()
        try:
            return await run(*arguments)
        finally:
            outside.ended()

    @contextlib.asynccontextmanager
    async def _hosting(self) -> AsyncIterator[None]:
        token = of_engine.set(True)
        running = self.app.running()
        try:
            host = await running.__aenter__()
        finally:
            of_engine.reset(token)
        try:
            self._host = host
            self._listen(host)
            yield
        finally:
            await running.__aexit__(None, None, None)

    def _listen(self, host: Host) -> None:
        settler = host.work.settler
        settler._random = random.Random(0)  # for the jitter of retries
        failed = settler.failed

        def listening(group: OwnedGroup, message: Message, failure: BaseException) -> None:
            self._record.raised(message, failure)
            failed(group, message, failure)

        settler.failed = listening  # type: ignore[method-assign, assignment]


def _replace(stack: contextlib.AsyncExitStack, target: Any, name: str, value: Any) -> None:
    """Set an attribute until the stack ends."""
    if name in vars(target):
        stack.callback(setattr, target, name, vars(target)[name])
    else:
        stack.callback(delattr, target, name)
    setattr(target, name, value)
