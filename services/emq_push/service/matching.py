"""Chooses the endpoints of a message: by its event type, its channels, and filters on fields of its JSON payload."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from emq_push.records.endpoints import Endpoint, Filter
from emq_push.service.incoming import decoded
from emq_push.service.refusals import Invalid

EVERY = "*"
MOST_KNOWN = 1_000
"""Most event types whose endpoints a matcher keeps; it searches for others each time."""

_MISSING = object()
_FIELD = re.compile(r"[^.]+(\.[^.]+)*")


def gets(pattern: str, event_type: str) -> bool:
    """Return whether a pattern of an endpoint has this event type."""
    if pattern in (EVERY, event_type):
        return True
    return pattern.endswith(".*") and event_type.startswith(pattern[:-1])


def check_filters(filters: Sequence[Filter]) -> None:
    """Raise `Invalid` if a field or value of an endpoint's filters is wrong."""
    for number, filter_ in enumerate(filters):
        try:
            check(filter_)
        except ValueError as exc:
            raise Invalid("invalid_request", str(exc), f"/filters/{number}") from exc


def check(filter_: Filter) -> None:
    """Raise `ValueError` if a filter's field or value is wrong."""
    if not _FIELD.fullmatch(filter_.field):
        raise ValueError(f"field {filter_.field[:80]!r} must be names with dots between them, such as data.amount")
    wanted = {"in": tuple, "prefix": str, "exists": bool}.get(filter_.op)
    if wanted is not None and not isinstance(filter_.value, wanted):
        kind = {"in": "a list", "prefix": "a text", "exists": "true or false"}[filter_.op]
        raise ValueError(f"the value of op {filter_.op!r} must be {kind}")
    if wanted is None and isinstance(filter_.value, tuple):
        raise ValueError(f"op {filter_.op!r} takes no list; use op 'in'")
    if filter_.op in ("gt", "gte", "lt", "lte") and not _is_ordered(filter_.value):
        raise ValueError(f"the value of op {filter_.op!r} must be a number or a text")


def holds(filter_: Filter, payload: Any) -> bool:
    """Return whether a filter holds for a decoded payload. A field that is missing fulfils "ne" and no other."""
    found = payload
    for name in filter_.field.split("."):
        found = found.get(name, _MISSING) if isinstance(found, dict) else _MISSING
    op, value = filter_.op, filter_.value
    if op == "exists":
        return (found is not _MISSING) is value
    if found is _MISSING:
        return op == "ne"
    match op:
        case "eq":
            return _same(found, value)
        case "ne":
            return not _same(found, value)
        case "in":
            return any(_same(found, each) for each in value)  # type: ignore[union-attr]
        case "prefix":
            return isinstance(found, str) and found.startswith(value)  # type: ignore[arg-type]
    if not (_is_ordered(found) and isinstance(found, str) == isinstance(value, str)):
        return False
    order: dict[str, bool] = {"gt": found > value, "gte": found >= value, "lt": found < value, "lte": found <= value}
    return order[op]


def _is_ordered(value: Any) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)


def _same(a: Any, b: Any) -> bool:
    """Return whether two values of JSON are equal; to Python, true is 1."""
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def _meet(some: Sequence[str], others: Sequence[str]) -> bool:
    return any(each in some for each in others)


class Matcher:
    """Finds the endpoints of messages among those of one tenant.

    Args:
        endpoints: of the tenant; those that are being deleted get nothing.

    Attributes:
        by_topic: the endpoints.
        priorities: of each endpoint, by its topic.
    """

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = [endpoint for endpoint in endpoints if not endpoint.is_going]
        self._known: dict[str, tuple[list[Endpoint], bool, bool]] = {}
        self.by_topic = {endpoint.topic: endpoint for endpoint in self._endpoints}
        self.priorities = {endpoint.topic: endpoint.settings.priorities for endpoint in self._endpoints}

    def endpoints_of(
        self, event_type: str, payload: bytes | msgspec.Raw, channels: Sequence[str] = ()
    ) -> Sequence[Endpoint]:
        """Return the endpoints that get a message. A payload that is not JSON fulfils no filter but "ne"."""
        known = self._known.get(event_type)
        if known is None:
            found = [e for e in self._endpoints if any(gets(each, event_type) for each in e.settings.event_types)]
            known = found, any(e.settings.channels for e in found), any(e.settings.filters for e in found)
            if len(self._known) < MOST_KNOWN:
                self._known[event_type] = known
        endpoints, have_channels, have_filters = known
        if have_channels:
            endpoints = [e for e in endpoints if not e.settings.channels or _meet(e.settings.channels, channels)]
        if not have_filters:
            return endpoints
        try:
            value = decoded(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            value = None
        return [e for e in endpoints if all(holds(each, value) for each in e.settings.filters)]
