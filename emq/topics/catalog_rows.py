"""Reading and writing topics as rows of the catalog, also rows that another version of EMQ has written.

A newer version may know fields and options that this one does not. This version ignores them, and keeps them when it
changes the topic. If a row has a value that this version cannot understand, EMQ leaves the row alone and goes on with
the other topics.
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
"""The errors of reading a row that holds no valid topic."""


def decode(name: str, body: str) -> Topic:
    """Return the topic of a row.

    Raises:
        InvalidTopic: this version cannot read the row.
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
    """Return the topic of a row; None, and an error in the log, if this version cannot read the row."""
    try:
        return decode(name, body)
    except errors.InvalidTopic as exc:
        log.error("%s; it is left alone", exc)  # noqa: TRY400
        return None


def encode(topic: Topic, before: str = "") -> str:
    """Return the row of a topic, in the form of earlier versions unless the topic has fields that they do not know.

    Args:
        before: the row as it is now; its fields and options that this version does not know are kept.
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
    """Return the row of a deleted topic, which holds the time of the deletion in seconds of the environment's time."""
    return msgspec.json.encode({"deleted_s": deleted_s}).decode()


def deleted_s(body: str) -> float:
    """Return the time of deletion in a row made by `grave`; 0 if an earlier version has written the row."""
    found = _read(body).get("deleted_s", 0.0)
    return float(found) if isinstance(found, int | float) else 0.0


def _known(row: Any) -> Any:
    """Return the row without the fields and options that this version does not know."""
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
