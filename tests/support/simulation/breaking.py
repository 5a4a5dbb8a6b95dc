"""Errors that nobody expects: raised by calls to servers, and at the awaits of a host's guarded loops.

A driver may raise anything (uvloop's bare RuntimeError on a closed connection is one example), and EMQ has bugs of its
own. Neither may leave a group to nobody, nor a message unsettled.
"""

from __future__ import annotations

import random
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

from emq.runtime.guard import Guard

T = TypeVar("T")


class Unforeseen(Exception):
    """Marks what this module raises, so that the judges tell it from a bug."""


class _Handler(Unforeseen, RuntimeError):
    """As uvloop raises it."""


class _Key(Unforeseen, KeyError):
    """As of data that lacks something."""


class _Value(Unforeseen, ValueError):
    """As of data that cannot be decoded."""


class _Attribute(Unforeseen, AttributeError):
    """As of a driver whose connection is gone: 'NoneType' object has no attribute 'write'."""


class _End(Unforeseen, EOFError):
    """As of a stream that ends in the middle."""


KINDS: tuple[type[Unforeseen], ...] = (_Handler, _Key, _Value, _Attribute, _End)

PASSED_OVER = ("acquire", "keep")
"""Awaits within asyncio's locks, which an error would leave locked for ever, and within the guard itself."""

TASKS = ("Aside._drive", "Assignments._let_go", "LettingGo.abandon", "_ask_about_all")
"""The tasks that guarded loops start, by the names of their coroutines."""


class Breaks:
    """Decides for one host when something breaks.

    Attributes:
        share: part of the awaits that raise; 0 for none.
        happened: how many did.
    """

    def __init__(self, seed: str) -> None:
        self.share = 0.0
        self.happened = 0
        self._rng = random.Random(seed)

    def strike(self) -> Unforeseen | None:
        """Return the error to raise now, if one is to be raised."""
        if not self.share or self._rng.random() >= self.share:
            return None
        self.happened += 1
        return self._rng.choice(KINDS)(
            "unable to perform operation on <TCPTransport closed=True>; the handler is closed"
        )

    async def call(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Call a server: the error may come before the server has carried the call out, or after."""
        if (error := self.strike()) is not None:
            raise error
        result = await operation()
        if (error := self.strike()) is not None:
            raise error
        return result

    def guard(self, guard: Guard) -> None:
        """Raise errors at the awaits of the guard's loops, and do not count them as bugs."""
        start, note = guard.start, guard.note

        def breaking(loop: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
            return lambda: self.along(loop())  # type: ignore[arg-type]

        def noted(name: str, what_next: str, failure: BaseException, item: str = "") -> None:
            if not is_unforeseen(failure):
                note(name, what_next, failure, item)

        guard.start = lambda loops: start({name: breaking(loop) for name, loop in loops.items()})  # type: ignore[method-assign]
        guard.note = noted  # type: ignore[method-assign]

    async def run(self, steps: Coroutine[Any, Any, T]) -> T:
        """Run a task, and raise errors at its awaits."""
        return await self.along(steps)

    @types.coroutine
    def along(self, steps: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Run a coroutine, and raise errors at its awaits."""
        error: BaseException | None = None
        try:
            while True:
                try:
                    wanted = steps.send(None) if error is None else steps.throw(error)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
                try:
                    yield wanted
                    error = None if _innermost(steps) in PASSED_OVER else self.strike()
                except BaseException as exc:  # such as a cancellation
                    error = exc
        finally:
            steps.close()


def is_unforeseen(exc: BaseException | None) -> bool:
    """Return whether this module raised the error, or the cause of it."""
    while exc is not None:
        if isinstance(exc, Unforeseen):
            return True
        exc = exc.__cause__ or exc.__context__
    return False


def _innermost(steps: Any) -> str:
    name = ""
    while steps is not None:
        name = getattr(getattr(steps, "cr_code", None), "co_name", name)
        steps = getattr(steps, "cr_await", None)
    return name


class BreakingTree:
    """A tree whose calls break."""

    def __init__(self, real: Any, breaks: Breaks) -> None:
        self._real = real
        self._breaks = breaks

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name not in ("create", "read", "children", "write", "prove", "delete"):
            return found
        return lambda *args, **options: self._breaks.call(lambda: found(*args, **options))
