"""A client for code without an event loop: Django, Flask, scripts."""

from __future__ import annotations

import asyncio
import atexit
import functools
import inspect
import os
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, ClassVar, Concatenate, Literal, ParamSpec, Self, TypeVar

from emq.app.app import App
from emq.app.background import Background, closed
from emq.calls import content_types, encoding
from emq.calls.middleware import Middleware
from emq.observe.dead_letters import EVERY, Letter, Selection
from emq.runtime import errors, inputs, settings
from emq.runtime.environment import Environment
from emq.topics.model import Topic
from emq.trail.sink import TrailSink

P = ParamSpec("P")
T = TypeVar("T")

TIMEOUT_S = 30.0
"""Seconds for which a call waits, if nothing else is asked for."""

MAX_TIMEOUT_S = 1e6
"""Longest time-out; the system's locks cannot wait for any length of time."""

PAGE = 100
"""Dead letters that come in one call."""


def _synchronous(
    method: Callable[Concatenate[App, P], Coroutine[Any, Any, T]], *, writes: bool = True, iterable: str | None = None
) -> Callable[Concatenate[Client, P], T]:
    """Make a method of `App` one of `Client`: the same arguments, but the call waits for the result.

    Args:
        iterable: name of a parameter that may be any iterable. It is read in the calling thread: a generator, or a
            query of Django, runs code of the caller, and would block the event loop.
    """
    place = None if iterable is None else [*inspect.signature(method).parameters].index(iterable) - 1

    @functools.wraps(method)
    def call(client: Client, /, *given: P.args, **named: P.kwargs) -> T:
        args: tuple[Any, ...] = given
        kwargs: dict[str, Any] = named
        if place is not None and place < len(args):
            args = (*args[:place], _listed(args[place]), *args[place + 1 :])
        elif iterable is not None and iterable in kwargs:
            kwargs[iterable] = _listed(kwargs[iterable])
        return client._call(lambda app: method(app, *args, **kwargs), writes=writes)

    return call


def _listed(values: object) -> object:
    """Return an iterable as a list; a single payload, which the app refuses, as it is."""
    if isinstance(values, list | tuple) or encoding.is_single(values):
        return values
    return list(values)  # type: ignore[call-overload]


async def _topics(app: App, pattern: str = "*") -> list[Topic]:
    """Return the topics whose names match `pattern`, by name."""
    return list(await app.catalog.list(pattern))


class PerProcess:
    """The background of a client: one in each process that calls, made at the first call.

    Args:
        make: makes an app that is not open.
    """

    _all: ClassVar[weakref.WeakSet[PerProcess]] = weakref.WeakSet()
    """The backgrounds that the end of the process closes and a forked child resets."""

    def __init__(self, make: Callable[[], App]) -> None:
        self._make = make
        self._lock = threading.RLock()  # the handler of a signal may call while its thread is here
        self._background: Background | None = None
        self._is_closed = False
        self._inherited: list[Background] = []
        PerProcess._all.add(self)

    def get(self) -> Background:
        """Return the background of this process.

        Raises:
            WrongState: the client is closed.
        """
        with self._lock:
            if self._is_closed:
                raise closed()
            if self._background is None:
                self._background = Background(self._make())
                # A client without references is closed, as a file is.
                weakref.finalize(self, self._background.abandon).atexit = False
                _close_with_worker()
            return self._background

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            background, self._background = self._background, None
        if background is not None:
            background.close()

    @classmethod
    def close_all(cls) -> None:
        for one in list(cls._all):
            one.close()

    @classmethod
    def in_child(cls) -> None:
        """Begin without a background in a child that was just forked: the child has no thread of the parent."""
        for one in list(cls._all):
            one._lock = threading.RLock()  # another thread of the parent may have held it
            if one._background is not None:
                one._background.forsake()
                # Kept, because collecting it would end connections that the parent still uses.
                one._inherited.append(one._background)
                one._background = None


def _close_with_worker() -> None:
    """Close all when a process of multiprocessing ends: before Python 3.13 such a process skips `atexit` functions."""
    process, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    if process is not None and util is not None and process.parent_process() is not None:
        util.Finalize(None, _close_after_threads, exitpriority=-100)


def _close_after_threads() -> None:
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    PerProcess.close_all()


atexit.register(PerProcess.close_all)
os.register_at_fork(after_in_child=PerProcess.in_child)


class Client:
    """Publishes and administers from code without an event loop: `client = emq.Client()`, one for a process.

    The methods are those of `App`, and wait for the result. Any number of threads may call at once; their calls share
    round trips. The client opens with its first call, runs in one daemon thread, and closes at `close`, at the end of
    `with client:`, or when the process ends. A client that was made before a fork works in the child, too.

    States: *open for calls* until `close`; then *closed* for ever.

    Args:
        store, database, environment, options, trail, create, content_type: as for `App`; left out, the client reads the
            environment and emq.toml.
        middleware: runs around each publish, as for `App`; in the client's thread, with the context of the call.
        timeout_s: most seconds for which a call waits, the opening included; None for no end. `with_timeout` gives
            single calls another one.

    Raises:
        InvalidSettings: a setting is wrong; the text names it.

    Every call also raises:
        OutcomeUnknown: no answer in time; a write may or may not have happened. Repeat a publish with the same
            `message_id`; a topic with `dedupe_s` stores the repeat once.
        StoreUnavailable: no answer in time, and nothing was applied. Try again later.
        WrongState: the client is closed, or the calling thread runs an event loop, which the call would block. Use
            `App` there.
    """

    def __init__(
        self,
        store: str | None = None,
        *,
        database: str | None = None,
        environment: Environment | str | None = None,
        options: settings.Settings | None = None,
        trail: TrailSink | None = None,
        create: bool = True,
        content_type: Literal["application/json", "application/msgpack"] = content_types.JSON,
        middleware: Sequence[Middleware] = (),
        timeout_s: float | None = TIMEOUT_S,
    ) -> None:
        self._timeout_s = _checked(timeout_s)
        made = functools.partial(App, content_type=content_type, middleware=middleware)
        self.settings = made(store, database=database, environment=environment, options=options).settings
        self._background = PerProcess(functools.partial(made, options=self.settings, trail=trail, create=create))

    publish = _synchronous(App.publish)
    publish_many = _synchronous(App.publish_many, iterable="payloads")
    send = _synchronous(App.send, iterable="messages")
    schedule = _synchronous(App.schedule)
    planned = _synchronous(App.planned, writes=False)
    recall = _synchronous(App.recall)
    replay_dead_letters = _synchronous(App.replay_dead_letters)
    purge_dead_letters = _synchronous(App.purge_dead_letters)
    create_topic = _synchronous(App.create_topic)
    update_topic = _synchronous(App.update_topic)
    pause = _synchronous(App.pause)
    resume = _synchronous(App.resume)
    drain = _synchronous(App.drain)
    delete = _synchronous(App.delete)
    lag = _synchronous(App.lag, writes=False)
    topics = _synchronous(_topics, writes=False)

    def dead_letters(self, topic: str, selection: Selection = EVERY) -> Iterator[Letter]:
        """Yield the selected dead letters of the topic, read in pages; see `emq.observe.dead_letters.find`."""
        found: list[AsyncIterator[Letter]] = []

        async def page(app: App) -> list[Letter]:
            if not found:
                found.append(app.dead_letters(topic, selection))
            letters: list[Letter] = []
            while len(letters) < PAGE and (letter := await anext(found[0], None)) is not None:
                letters.append(letter)
            return letters

        while letters := self._call(page, writes=False):
            yield from letters

    def with_timeout(self, timeout_s: float | None) -> Self:
        """Return this client with another time-out: `client.with_timeout(2).publish(...)`. Both are closed together.

        Raises:
            InvalidSettings: it is neither None nor a number of seconds above 0.
        """
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, _timeout_s=_checked(timeout_s))
        return other

    def close(self) -> None:
        """Wait for calls under way, a few seconds at most, and close. Safe to repeat."""
        self._background.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _call(self, function: Callable[[App], Awaitable[T]], *, writes: bool = True) -> T:
        if asyncio._get_running_loop() is not None:
            raise errors.WrongState(
                "this thread runs an event loop, which emq.Client would block: `await` the methods of an emq.App "
                "there, or call the client in `asyncio.to_thread`"
            )
        return self._background.get().call(function, self._timeout_s, writes=writes)


def _checked(timeout_s: float | None) -> float | None:
    if timeout_s is None:
        return None
    if not inputs.is_positive(timeout_s) or timeout_s > MAX_TIMEOUT_S:
        raise errors.InvalidSettings(
            f"timeout_s {inputs.shown(timeout_s)} must be a number of seconds above 0 and up to {MAX_TIMEOUT_S:g}, or "
            "None for no end"
        )
    return timeout_s
