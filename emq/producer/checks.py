"""Checks and converts the arguments of a publish, before anything is stored."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import TypeVar, cast

from emq.runtime import errors, inputs, plurals
from emq.storage import message
from emq.timetable import delay_levels
from emq.timetable.delay_levels import Delay
from emq.topics.model import MAX_DELAY_S, Topic

T = TypeVar("T")

MAX_ID = 128
"""Most characters of a message id."""


def check_no_slot_options(topic: Topic, *given: object) -> None:
    """Refuse options for slots, given with a message that goes elsewhere."""
    for option in given:  # no generator: this runs for each publish
        if option is None:
            continue
        about = (
            "a message delayed with a priority waits in a lane" if topic.is_sorted else f"it is of kind {topic.kind}"
        )
        raise errors.InvalidMessage(
            f"topic {topic.name!r}: time_range_ms, merge_key(s) and scores are for slots, and {about}; leave them out"
        )


def check_no_slot_ids(topic: Topic, given: object) -> None:
    """Refuse ids of the caller's own for messages that go to slots."""
    if given is not None:
        raise errors.InvalidMessage(
            f"topic {topic.name!r} is of kind {topic.kind}: its message ids follow from the merged content; give no id"
        )


def checked_ids(ids: Sequence[str]) -> Sequence[str]:
    """Return ids as plain texts; refuse an id that is not a text of 1 to `MAX_ID` characters."""
    plain = set(map(type, ids)) <= {str} and all(map(len, ids)) and max(map(len, ids), default=1) <= MAX_ID
    for id_ in () if plain else ids:
        if not (isinstance(id_, str) and 1 <= len(id_) <= MAX_ID):
            raise errors.InvalidMessage(f"message id {inputs.shown(id_)} must be text of 1 to {MAX_ID} characters")
    return cast(Sequence[str], inputs.texts("message id", ids))


def listed(payloads: Iterable[T]) -> list[T]:
    """Return the payloads of one call as a list; refuse a single payload: its parts would be published."""
    if isinstance(payloads, str | bytes | bytearray | memoryview | Mapping):
        raise errors.InvalidMessage(
            f"payloads {inputs.shown(payloads)} is one payload; give a list of payloads, or use publish"
        )
    if not isinstance(payloads, Iterable):
        kind = type(payloads).__name__
        raise errors.InvalidMessage(f"payloads {inputs.shown(payloads)} is of type {kind}; give a list of payloads")
    return list(payloads)


def check_lengths(payloads: Sequence[object], **each: Sequence[object] | None) -> None:
    """Refuse a column that is not a list, or has another length than the payloads."""
    for name, given in each.items():
        if given is None:
            continue
        if isinstance(given, str | bytes) or not isinstance(given, Sized):
            raise errors.InvalidMessage(f"{name} {inputs.shown(given)} is not a list; give one value for each payload")
        if len(given) != len(payloads):
            raise errors.InvalidMessage(
                f"{name} has {plurals.count(len(given), 'entry', 'entries')} for "
                f"{plurals.count(len(payloads), 'payload')}; give one for each"
            )


def bodies_of(topic: Topic, payloads: Sequence[bytes | str]) -> Sequence[bytes]:
    """Return the payloads as bytes; refuse values of other types, and payloads larger than the topic takes."""
    if payloads and set(map(type, payloads)) == {bytes} and max(map(len, payloads)) <= topic.options.max_payload:
        return cast(Sequence[bytes], payloads)
    return [body_of(topic, payload) for payload in payloads]


def _bytes_of(payload: bytes | bytearray | memoryview) -> bytes:
    try:
        return bytes(payload)
    except ValueError as exc:
        raise errors.InvalidMessage(f"payload {inputs.shown(payload)} cannot be read: {exc}") from exc


def body_of(topic: Topic, payload: bytes | str) -> bytes:
    """Return one payload as `bodies_of` does."""
    if type(payload) is bytes and len(payload) <= topic.options.max_payload:
        return payload
    if not isinstance(payload, str | bytes | bytearray | memoryview):
        kind = type(payload).__name__
        raise errors.InvalidMessage(
            f"payload {inputs.shown(payload)} is of type {kind}; give bytes or text, such as json.dumps(...)"
        )
    body = payload.encode() if isinstance(payload, str) else _bytes_of(payload)
    if len(body) > topic.options.max_payload:
        raise errors.InvalidMessage(
            f"payload of {len(body)} bytes; topic {topic.name!r} takes {topic.options.max_payload} (its max_payload)"
        )
    return body


def labels_of(
    topic: Topic, key: str | None, headers: Mapping[str, str] | None
) -> tuple[str | None, dict[str, str] | None]:
    """Return a key and headers as plain values; refuse other types, and more bytes than the topic takes."""
    key, headers = None if key is None else inputs.text("key", key), inputs.headers(headers)
    check_labels(topic, key, headers)
    return key, headers


def check_labels(topic: Topic, key: str | None, headers: Mapping[str, str] | None) -> None:
    """Refuse a key and headers that are larger than the topic takes."""
    if key is None and not headers:
        return
    most = topic.options.max_headers
    if (size := message.label_bytes(key, headers)) > most:
        raise errors.InvalidMessage(
            f"key and headers of {size} bytes; topic {topic.name!r} takes {most} (its max_headers)"
        )


def check_keys(topic: Topic, keys: Sequence[str | None], headers: Mapping[str, str] | None) -> None:
    """Refuse keys that are larger, with these headers, than the topic takes."""
    longest = max(filter(None, keys), key=len, default=None)
    if longest is None or 4 * len(longest) + message.label_bytes(None, headers) <= topic.options.max_headers:
        keys = (None,)  # a character has at most 4 bytes
    for key in keys:
        check_labels(topic, key, headers)


def merge_key_of(topic: Topic, merge_key: object) -> bytes:
    """Return a merge key as bytes; refuse other types, and keys larger than the topic takes."""
    if not isinstance(merge_key, str | bytes | bytearray | memoryview):
        raise errors.InvalidMessage(
            f"merge key {inputs.shown(merge_key)} is of type {type(merge_key).__name__}; give bytes or text"
        )
    member, most = merge_key.encode() if isinstance(merge_key, str) else bytes(merge_key), topic.options.max_headers
    if len(member) > most:
        raise errors.InvalidMessage(
            f"merge key of {len(member)} bytes; topic {topic.name!r} takes {most} (its max_headers)"
        )
    return member


def due_ms_of(
    topic: Topic,
    delay_ms: float | None,
    delay: Delay | None,
    at: datetime.datetime | float | None,
    now_us: int,
) -> int | None:
    """Return the start time in milliseconds since the epoch; None if no option was given.

    Args:
        delay_ms: milliseconds from now, 0 to ten years.
        delay: as for `emq.timetable.delay_levels.delay_s`.
        at: a datetime with a time zone, or seconds since the epoch; a past time means now.
        now_us: microseconds since the epoch.

    Raises:
        InvalidMessage: more than one option was given, or a value is out of range.
    """
    if delay_ms is None and delay is None and at is None:
        return None
    if sum(given is not None for given in (delay_ms, delay, at)) > 1:
        raise errors.InvalidMessage("give only one of delay_ms, delay and at")
    if at is not None:
        return _instant_ms(at, now_us // 1000)
    if delay is not None:
        delay_ms = delay_levels.delay_s(topic, delay) * 1000
    wait_ms = inputs.number("delay_ms", delay_ms)
    if not 0 <= wait_ms <= MAX_DELAY_S * 1000:
        raise errors.InvalidMessage(f"delay_ms {wait_ms:g} must be from 0 to ten years in milliseconds")
    if wait_ms == 0:
        return now_us // 1000
    # Rounded up from the microsecond, so that no message waits for less than its delay.
    return min(math.ceil(now_us / 1000 + wait_ms), now_us // 1000 + int(MAX_DELAY_S * 1000))


def ttl_us(ttl_s: object) -> int:
    """Return a time to live in microseconds.

    Raises:
        InvalidMessage: `ttl_s` is not a span above 0, or is above ten years.
    """
    seconds = inputs.number("ttl_s", inputs.seconds("ttl_s", ttl_s))
    if not 0 < seconds <= MAX_DELAY_S:
        raise errors.InvalidMessage(f"ttl_s {seconds:g} must be above 0 and at most {MAX_DELAY_S:.0f} (ten years)")
    return int(seconds * 1e6)


def _instant_ms(at: datetime.datetime | float, now_ms: int) -> int:
    if isinstance(at, datetime.datetime):
        if at.utcoffset() is None:
            raise errors.InvalidMessage(f"at {at.isoformat()} has no time zone; give one, such as datetime.UTC")
        at = at.timestamp()
    if not (0 <= inputs.number("at", at) <= now_ms / 1000 + MAX_DELAY_S):
        raise errors.InvalidMessage(
            f"at {at:g} must be seconds since the epoch, at most ten years ahead; milliseconds are too large by 1,000"
        )
    return math.ceil(at * 1000)
