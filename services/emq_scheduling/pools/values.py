"""Checks of single values of a pool; each raises `InvalidPool` with a text that names the value and the remedy."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from emq.runtime import errors
from emq.runtime.inputs import alike, finite, shown
from emq_scheduling.model import Limit

MAX_NAME_BYTES = 40
"""Of pools and types: a topic's name holds both, with a tenant, in 128 bytes."""
MAX_TENANT_BYTES = 46
MAX_LABEL_BYTES = 100
"""Of resources, limits and calendars, which are in no topic's name."""
MAX_UNITS = 1e15
"""Of amounts, costs and prices."""
MIN_WEIGHT, MAX_WEIGHT = 1e-6, 1e6

_UNFIT = re.compile(r"[\s{}/.*?\[\]!:\x00-\x1f\x7f]")
"""Not in names of pools and types: characters that topics cannot have or that mean something in patterns, and the dot
between the names."""
_UNFIT_IN_TENANTS = re.compile(r"[\s{}/*?\[\]!\x00-\x1f\x7f]")


@contextlib.contextmanager
def within(place: str) -> Iterator[None]:
    """Put the place of a wrong value before the text of its error."""
    try:
        yield
    except errors.InvalidPool as exc:
        raise errors.InvalidPool(f"{place}: {exc}") from None


# -------------------------------------------------------------------------------------------------------------- names


def check_name(what: str, name: str) -> None:
    """Raise `InvalidPool` unless a pool or a type can have the name."""
    check_label(what, name, MAX_NAME_BYTES)
    if found := _UNFIT.search(name):
        raise errors.InvalidPool(
            f"{what} {shown(name)} contains {found.group()!r}; leave out white space, dots, slashes, colons, braces, "
            "brackets and *?!, since topics are named for it"
        )


def check_tenant(name: str) -> None:
    """Raise `InvalidPool` unless a tenant can have the name."""
    check_label("name", name, MAX_TENANT_BYTES)
    if found := _UNFIT_IN_TENANTS.search(name):
        raise errors.InvalidPool(
            f"tenant {shown(name)} contains {found.group()!r}; leave out white space, slashes, braces, brackets and "
            "*?!, since topics are named for it"
        )


def check_label(what: str, name: str, most: int = MAX_LABEL_BYTES) -> None:
    if not isinstance(name, str):
        raise errors.InvalidPool(f"{what} {shown(name)} is of type {type(name).__name__}; give text")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise errors.InvalidPool(f"{what} {shown(name)} is not valid UTF-8; correct the text") from None
    if not 1 <= size <= most:
        raise errors.InvalidPool(f"{what} {shown(name)} has {size} bytes; give 1 to {most}")
    if name.lower() == "none":
        raise errors.InvalidPool(f"{what} {shown(name)} means no value in files and commands; choose another one")
    if not name.isprintable() or name != name.strip():
        raise errors.InvalidPool(f"{what} {shown(name)} has control characters, or white space around it; drop them")


def check_known(what: str, name: str, names: Iterable[str]) -> None:
    known = list(names)
    if name not in known:
        there = f"the pool has {', '.join(known[:8])}{', ...' if len(known) > 8 else ''}" if known else "there is none"
        raise errors.InvalidPool(f"{what} {shown(name)} is not known{alike(name, known) or ';'} {there}")


# ------------------------------------------------------------------------------------------------------------- values


def check_number(
    what: str, value: float, *, least: float = 0.0, above: float | None = None, most: float = MAX_UNITS
) -> None:
    if not finite(value):
        raise errors.InvalidPool(f"{what} {shown(value)} must be a finite number")
    if above is not None and value <= above:
        raise errors.InvalidPool(f"{what} {value:g} must be above {above:g}")
    if value < least:
        raise errors.InvalidPool(f"{what} {value:g} must be {least:g} or more")
    if value > most:
        raise errors.InvalidPool(f"{what} {value:g} must be at most {most:,.0f}")


def check_weight(value: float) -> None:
    check_number("weight", value, above=0)
    check_number("weight", value, least=MIN_WEIGHT, most=MAX_WEIGHT)


def check_zone(zone: str) -> None:
    """Raise `InvalidPool` unless there is a time zone of the name."""
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise errors.InvalidPool(
            f"zone {shown(zone)} is not known; give an IANA name such as Europe/Berlin, or UTC"
        ) from None


def check_limit(limit: Limit) -> None:
    """Raise `InvalidPool` unless the parts of a limit go together."""
    what = f"{shown(limit.name)} per {limit.per.replace('_', ' ')}"
    check_number(f"amount of {what}", limit.amount)
    if limit.kind is not None and limit.per == "in_flight":
        raise errors.InvalidPool(f"limit {what}: kind {limit.kind!r} is for limits by time; leave it out")
    if limit.burst is not None and limit.kind != "bucket":
        raise errors.InvalidPool(
            f"limit {what}: burst {limit.burst:g} is for buckets; leave it out, or give kind bucket"
        )
    if limit.burst is not None:
        check_number(f"burst of {what}", limit.burst, above=0)
    if limit.zone is not None and (limit.per != "day" or limit.counts != "calendar"):
        raise errors.InvalidPool(f"limit {what}: zone {shown(limit.zone)} is for days of the calendar; leave it out")
    if limit.zone is not None:
        check_zone(limit.zone)
