"""Checks of a caller's values, made before anything is stored; the error for a wrong value is one clear line."""

from __future__ import annotations

import functools
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import ParamSpec, TypeVar

from emq import errors

P = ParamSpec("P")
T = TypeVar("T")

SHOWN = 60
"""Most characters of a wrong value that an error shows."""

NONE = type(None)


def number(name: str, given: object) -> float:
    """Return `given`, which must be a finite number that a float can hold.

    Raises:
        InvalidMessage: `given` is not such a number; the text shows it.
    """
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise errors.InvalidMessage(f"{name} {shown(given)} is not a number; give one")
    if not finite(given):
        raise errors.InvalidMessage(f"{name} {shown(given)} is not a finite number within a float's range; give one")
    return given


def finite(given: float) -> bool:
    """Return True if a number is finite and not an integer too large for a float."""
    try:
        return math.isfinite(given)
    except OverflowError:
        return False


def shown(given: object) -> str:
    """Return a wrong value as an error shows it: as written in Python, cut to one short line."""
    try:
        text = repr(given)
    except ValueError:  # an integer with more digits than Python writes
        text = "<an integer of thousands of digits>"
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def texts(name: str, given: Iterable[object]) -> None:
    """Raise `InvalidMessage` unless each is None, or text that UTF-8 can hold."""
    given = list(given)
    if set(map(type, given)) <= {str, NONE}:
        try:
            "".join(filter(None, given)).encode()  # type: ignore[arg-type]
            return
        except UnicodeEncodeError:
            pass
    for each in given:
        if each is not None:
            _text(name, each)


def headers(given: Mapping[str, str] | None) -> None:
    """Raise `InvalidMessage` unless names and values are texts that UTF-8 can hold."""
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise errors.InvalidMessage(f"headers {shown(given)} are of type {type(given).__name__}; give a dict of texts")
    for name, value in given.items():
        _text("name of a header", name)
        _text(f"header {name!r}", value)


def encodable(function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Make a coroutine function raise `InvalidMessage` where it meets text that UTF-8 cannot hold."""

    @functools.wraps(function)
    async def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await function(*args, **kwargs)
        except UnicodeEncodeError as exc:
            raise unencodable(exc) from exc

    return guarded


def unencodable(exc: UnicodeEncodeError) -> errors.InvalidMessage:
    """Our error for text that UTF-8 cannot hold."""
    return errors.InvalidMessage(
        f"text {shown(exc.object)} holds {exc.object[exc.start : exc.end]!r}, half of a character, which UTF-8 cannot "
        "hold; give bytes, or correct the text"
    )


def _text(name: str, given: object) -> None:
    if not isinstance(given, str):
        raise errors.InvalidMessage(f"{name} {shown(given)} is of type {type(given).__name__}; give text")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise errors.InvalidMessage(f"{name} {shown(given)} is not valid UTF-8; correct the text") from None
