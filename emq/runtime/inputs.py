"""Checks of a caller's values, made before anything is stored; the error for a wrong value is one clear line."""

from __future__ import annotations

import datetime
import difflib
import functools
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import ParamSpec, TypeVar, cast

from emq.runtime import durations, errors

P = ParamSpec("P")
T = TypeVar("T")

SHOWN = 60
"""Most characters of a wrong value that an error shows."""

NONE = type(None)


def is_pattern(text: str) -> bool:
    """Return True if a text has wildcards, so that it may match names other than itself."""
    return any(c in text for c in "*?[")


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


def seconds(name: str, given: object) -> float:
    """Return a span of time in seconds, given as a number of seconds, a text such as "90s" or a `timedelta`.

    Raises:
        InvalidMessage: `given` is none of these; the text shows it.
    """
    if isinstance(given, datetime.timedelta):
        return given.total_seconds()
    found = durations.span_s(given) if isinstance(given, str) else given
    if not isinstance(found, int | float) or isinstance(found, bool):
        raise errors.InvalidMessage(f"{name} {shown(given)} is not a duration; {durations.REMEDY}")
    return found


def is_positive(given: object) -> bool:
    """Return True for a finite number above 0."""
    return isinstance(given, int | float) and not isinstance(given, bool) and finite(given) and given > 0


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
        text = "<an integer of thousands of digits>" if isinstance(given, int) else _unshown(given)
    except Exception:  # of the value's own class, such as a row of a database that is out of reach
        text = _unshown(given)
    if not text.isprintable():
        text = " ".join(text.split())
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def _unshown(given: object) -> str:
    return f"<a {type(given).__name__} that cannot be shown>"


def text(name: str, given: object) -> str:
    """Return text as a plain `str`; of a `StrEnum` member, its value.

    Raises:
        InvalidMessage: `given` is not text that UTF-8 can hold.
    """
    if not isinstance(given, str):
        raise errors.InvalidMessage(f"{name} {shown(given)} is of type {type(given).__name__}; give text")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise errors.InvalidMessage(f"{name} {shown(given)} is not valid UTF-8; correct the text") from None
    return given if type(given) is str else str.__str__(given)


def texts(name: str, given: Iterable[object]) -> Sequence[str | None]:
    """Return texts as `text` does; None stays None.

    Raises:
        InvalidMessage: one of them is neither None nor text that UTF-8 can hold.
    """
    given = list(given)
    if set(map(type, given)) <= {str, NONE}:
        plain = cast(Sequence[str | None], given)
        try:
            "".join(filter(None, plain)).encode()
        except UnicodeEncodeError:
            pass
        else:
            return plain
    return [None if each is None else text(name, each) for each in given]


def headers(given: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return headers as a plain dict; None for no headers.

    Raises:
        InvalidMessage: these are not a mapping from text to text that UTF-8 can hold.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise errors.InvalidMessage(f"headers {shown(given)} are of type {type(given).__name__}; give a dict of texts")
    plain = {text("name of a header", name): text(f"header {name!r}", value) for name, value in given.items()}
    return plain or None


def encodable(function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Make a coroutine function raise `InvalidMessage` for text that UTF-8 cannot hold."""

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


def alike(name: str, names: Iterable[str]) -> str:
    """Return the end of a message that proposes the names most like `name`; empty if there are none."""
    found = difflib.get_close_matches(name, [*names], n=3)
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""
