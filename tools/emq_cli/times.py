"""Times and spans of time, as they are written on the command line."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable

import typer

from emq.runtime.durations import REMEDY
from emq.runtime.durations import SPANS as SPANS
from emq.runtime.durations import in_seconds as in_seconds
from emq.runtime.durations import span_s as span_s


def given_span_s(text: str, option: str) -> float:
    """Return the seconds of a span. Raises `typer.BadParameter`, which names the option, if the text is not a span."""
    seconds = span_s(text)
    if seconds is None:
        raise typer.BadParameter(f"{text!r} is not a duration; write it as {SPANS}", param_hint=option)
    return seconds


def spans(least_s: float, most_s: float = math.inf) -> Callable[[str | float], float]:
    """Return a parser of an option that is a span, in which a number alone means seconds."""

    def parsed(given: str | float) -> float:
        text = str(given)
        seconds = next((found for each in (text, f"{text}s") if (found := span_s(each)) is not None), None)
        if seconds is None:
            raise typer.BadParameter(f"{text!r} is not a duration; {REMEDY}")
        if not least_s <= seconds <= most_s:
            most = "" if most_s == math.inf else f" and at most {most_s:g} s"
            raise typer.BadParameter(f"{text!r} must be at least {least_s:g} s{most}")
        return seconds

    return parsed


def ago_ms(text: str, option: str, now_s: float) -> int:
    """Return milliseconds since 1970 of a time in ISO 8601 (local time if it has no zone) or of an age such as 2h."""
    seconds = span_s(text)
    if seconds is not None:
        return int((now_s - seconds) * 1000)
    try:
        return int(datetime.datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is not a time; write 2030-01-31T12:00, or an age such as {SPANS}", param_hint=option
        ) from None


def ahead(text: str, now_s: float) -> float:
    """Return seconds since 1970 of a time to come: ISO 8601 with its zone, or a span from now: `15m` or `in 15m`.

    The zone is required, since publisher and hosts may be in different zones.

    Args:
        now_s: the environment's time, which an open app knows.

    Raises:
        ValueError: the text is neither; the message says what would be right.
    """
    seconds = span_s(text.removeprefix("in").strip())
    if seconds is not None:
        return now_s + seconds
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time; write 2030-01-31T12:00+01:00, or from now, such as {SPANS}"
        ) from None
    if found.tzinfo is None:
        raise ValueError(f"{text!r} does not say in which time zone; write 2030-01-31T12:00+01:00, or Z for UTC")
    return found.timestamp()
