"""Topics as they stand in the catalog's rows, also where another version of EMQ has written them.

A newer version may know fields and options that this one does not. They are ignored, and kept when this version changes
the topic. A row with a value that this version cannot understand is left alone: the other topics go on.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from emq import errors
from emq.topics.model import Topic, TopicOptions

log = logging.getLogger(__name__)

_decoder = msgspec.json.Decoder(Topic)
_FIELDS = frozenset(Topic.__struct_fields__)
_OPTIONS = frozenset(TopicOptions.__struct_fields__)

DAMAGED = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
"""What reading a row raises that holds no topic."""


def decode(name: str, body: str) -> Topic:
    """The topic of a row.

    Raises:
        InvalidTopic: this version cannot read it.
    """
    try:
        try:
            topic = _decoder.decode(body)
        except msgspec.ValidationError:
            topic = msgspec.convert(_known(msgspec.json.decode(body)), Topic)
        if topic.name != name or not 0 < topic.active_groups <= topic.groups:
            raise ValueError("its fields contradict each other")
        return topic
    except DAMAGED as exc:
        raise errors.InvalidTopic(
            f"topic {name!r} cannot be read from the catalog ({exc}); a newer version of EMQ may have written it: "
            "upgrade this process, or repair the row"
        ) from exc


def readable(name: str, body: str) -> Topic | None:
    """The topic of a row; None if this version cannot read it, which the log says."""
    try:
        return decode(name, body)
    except errors.InvalidTopic as exc:
        log.error("%s; it is left alone", exc)  # noqa: TRY400
        return None


def encode(topic: Topic, before: str = "") -> str:
    """As earlier versions wrote it, unless there is something that they did not know.

    Args:
        before: the row as it is, of which the fields and options that this version does not know are kept.
    """
    plain: dict[str, Any] = msgspec.to_builtins(topic)
    for field, default in (("divisions", []), ("layout", 0), ("earlier", [])):
        if not plain.get(field, default):
            plain.pop(field, None)
    old = _read(before)
    plain = {**{k: v for k, v in old.items() if k not in _FIELDS}, **plain}
    options = old.get("options")
    if isinstance(options, dict):
        plain["options"] = {**{k: v for k, v in options.items() if k not in _OPTIONS}, **plain["options"]}
    return msgspec.json.encode(plain).decode()


def grave(deleted_s: float) -> str:
    """What the row of a deleted topic holds: when it was deleted, in seconds of the environment's time."""
    return msgspec.json.encode({"deleted_s": deleted_s}).decode()


def deleted_s(body: str) -> float:
    """When the topic of such a row was deleted; long ago where an earlier version has written it."""
    found = _read(body).get("deleted_s", 0.0)
    return float(found) if isinstance(found, int | float) else 0.0


def _known(row: Any) -> Any:
    """The row without what this version does not know."""
    if not isinstance(row, dict):
        return row
    known = {field: value for field, value in row.items() if field in _FIELDS}
    if isinstance(options := known.get("options"), dict):
        known["options"] = {option: value for option, value in options.items() if option in _OPTIONS}
    return known


def _read(body: str) -> dict[str, Any]:
    try:
        row = msgspec.json.decode(body) if body else {}
    except DAMAGED:
        return {}
    return row if isinstance(row, dict) else {}
