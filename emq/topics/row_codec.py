"""The texts of topics in rows of the catalog.

EMQ writes no field or option that some host cannot read (`emq.database.levels`). If a row nevertheless has an unknown
field, option or value, which may be a limit, EMQ leaves the row alone. It logs this once, and goes on with the other
topics.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from emq.database import levels
from emq.runtime import errors
from emq.topics.model import Topic, TopicOptions, called

log = logging.getLogger(__name__)

_decoder = msgspec.json.Decoder(Topic)
_options_decoder = msgspec.json.Decoder(TopicOptions)

SHARED = 1_000
"""Most different options, and priorities, that topics read one after the other share."""

SAID = 1_000
"""Most unreadable rows remembered as logged."""

_said: dict[tuple[str, str], None] = {}

DAMAGED = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
"""The errors of reading a row that holds no valid topic."""


def decode(name: str, body: str) -> Topic:
    """Return the topic of a row.

    Raises:
        InvalidTopic: this version cannot read the row.
    """
    try:
        topic = _decoder.decode(body)
        if topic.name != name or not 0 < topic.active_groups <= topic.groups:
            raise ValueError("its fields contradict each other")
        return _slim(topic)
    except DAMAGED as exc:
        raise errors.InvalidTopic(
            f"topic {name!r} cannot be read from the catalog ({exc}); a newer version of EMQ may have written it: "
            "upgrade this process, or repair the row"
        ) from exc


def _slim(topic: Topic) -> Topic:
    """Return the topic just read, with options and priorities that it shares with others that have equal ones.

    They take 630 of 900 bytes, and a hundred thousand topics may differ only in their names.
    """
    options = _shared_options(msgspec.json.encode(topic.options))
    msgspec.structs.force_setattr(topic, "options", options)
    msgspec.structs.force_setattr(topic, "priorities", _shared_priorities(topic.priorities))
    if topic.family:
        msgspec.structs.force_setattr(topic, "family", sys.intern(topic.family))
    return topic


@functools.lru_cache(SHARED)
def _shared_options(encoded: bytes) -> TopicOptions:
    return _options_decoder.decode(encoded)


@functools.lru_cache(SHARED)
def _shared_priorities(priorities: tuple[str, ...]) -> tuple[str, ...]:
    return priorities


def decoded(bodies: Mapping[str, str]) -> dict[str, Topic]:
    """Return the topics of rows by name. Raises as `decode`."""
    return {name: decode(name, body) for name, body in bodies.items()}


def readable_ones(rows: Iterable[Iterable[str]]) -> dict[str, Topic]:
    """Return the topics of (name, body), by name; says so in the log if this version cannot read a row."""
    read = ((name, readable(name, body)) for name, body in rows)
    return {name: topic for name, topic in read if topic is not None}


def readable(name: str, body: str) -> Topic | None:
    """Return the topic of a row; None, and an error in the log, if this version cannot read the row."""
    try:
        return decode(name, body)
    except errors.InvalidTopic as exc:
        if (name, body) not in _said:
            while len(_said) >= SAID:
                del _said[next(iter(_said))]
            _said[name, body] = None
            log.error("%s; it is left alone", exc)  # noqa: TRY400
        return None


def encode(topic: Topic, level: int) -> str:
    """Return the row of a topic, in a form that hosts of this feature level can read.

    Raises:
        InvalidTopic: the topic has a field or an option that such hosts do not know.
    """
    plain: dict[str, Any] = msgspec.to_builtins(topic)
    for field, default in _ABSENT:
        if not plain.get(field, default):
            plain.pop(field, None)
    for field in [field for field, since in levels.SINCE.items() if since > level]:
        place, settings, defaults = (
            (plain, topic, _DEFAULT) if field in plain else (plain["options"], topic.options, _DEFAULT.options)
        )
        if place.pop(field, None) is not None and getattr(settings, field) != getattr(defaults, field):
            raise errors.InvalidTopic(
                f"{called(topic.name)}: {field} needs feature level {levels.SINCE[field]}, and the environment is at "
                f"level {level}: upgrade all hosts, then run: emq upgrade --level {levels.SINCE[field]}"
            )
    return msgspec.json.encode(plain).decode()


_ABSENT: tuple[tuple[str, Any], ...] = (
    *(("divisions", []), ("layout", 0), ("earlier", []), ("shared_s", 0), ("family", ""), ("own", []), ("asleep_s", 0)),
)
"""Fields that are absent from a row where they are empty."""

_DEFAULT = Topic("default", 1.0)


def grave(deleted_s: float, topic: Topic) -> str:
    """Return the row of a deleted topic: the time of the deletion in seconds of the environment's time, and its shape.

    Topics of equal shape have equal rows.
    """
    options = {"merge": topic.options.merge} if topic.is_sorted else {}
    of = {"family": topic.family} if topic.family else {}
    shape = {
        "qps": 1.0,
        **of,
        "priorities": topic.priorities,
        "groups": topic.groups,
        "kind": topic.kind,
        "options": options,
    }
    return msgspec.json.encode({"deleted_s": deleted_s, "shape": shape}).decode()


def shape(name: str, body: str) -> Topic | None:
    """Return a topic with the queues, lanes and slots of a deleted one; None for a row that does not tell them."""
    try:
        return msgspec.convert({**_read(body)["shape"], "name": name}, Topic)
    except (*DAMAGED, KeyError):
        return None


def deleted_s(body: str) -> float:
    """Return the time of deletion in a row made by `grave`; 0 if an earlier version has written the row."""
    found = _read(body).get("deleted_s", 0.0)
    return float(found) if isinstance(found, int | float) else 0.0


def options_of(body: str) -> dict[str, Any]:
    options = _read(body).get("options")
    return options if isinstance(options, dict) else {}


def _read(body: str) -> dict[str, Any]:
    try:
        row = msgspec.json.decode(body) if body else {}
    except DAMAGED:
        return {}
    return row if isinstance(row, dict) else {}
