"""The message: what a producer publishes, what lies in the store, what a handler receives."""

from __future__ import annotations

import hashlib
import itertools
import math
import secrets

import msgspec


class Message(msgspec.Struct, array_like=True, gc=False):
    """One message, as handed to a handler.

    In the store it is a MessagePack array of the fields up to `headers` (a log queue) or up to `merged` (a lane:
    delayed, to be retried, or dead); fields that are missing there have their defaults. Being outside the garbage
    collector's sight, a message must not refer to anything that refers back to it; its fields cannot.

    Attributes:
        id: unique, assigned at publish; the same through every retry, so handlers use it to be idempotent.
        payload: at most the topic's `max_payload` bytes.
        key: messages of one key run one at a time, first deliveries in order; None for no such wish.
        published_us: microseconds since the epoch, by the producer's clock.
        headers: small strings that travel along.
        priority: index into the topic's priorities, 0 is the highest.
        attempt: 1 for the first delivery.
        first_us: microseconds since the epoch of the first start; 0 before it.
        error: what the last attempt failed with.
        topic: name of the topic.
        group: index of the group in the topic.
        expires_us: microseconds since the epoch after which it must not start any more; 0 for never.
        score: of a sorted topic: its due time (ms since the epoch) or priority.
        history: of a retry or dead letter: (ms since the epoch, reason) of its failed attempts, 16 at most.
        schedule: of an entry that publishes again and again: its `emq.schedule.Schedule`, encoded; such an entry never
            reaches a handler itself.
        merged: of a sorted topic that merges by key: how many publishes it stands for.
        offset: place in its queue; -1 when it comes from its group's lane or slot.
        ready_us: when it was ready to start on this host (in the buffer), by the host's clock.
        started_us: when this delivery was started, by the host's clock; the time by which caps are judged.
        member: of a message that was claimed from a slot: the member; None for all others.
        token: of a message that was claimed from a slot: names the claim.
        layout: of a message with a key: the layout by which it came to its group; see `emq.topics.key_layouts`. A log
            queue stores it in the place of `group`, which follows from the queue.
    """

    id: str
    payload: bytes
    key: str | None = None
    published_us: int = 0
    headers: dict[str, str] | None = None
    priority: int = 0
    attempt: int = 1
    first_us: int = 0
    error: str | None = None
    topic: str = ""
    group: int = 0
    expires_us: int = 0
    score: float = 0
    history: list[tuple[int, str]] | None = None
    schedule: bytes | None = None
    merged: int = 1
    offset: int = -1
    ready_us: int = 0
    started_us: int = 0
    member: bytes | None = None
    token: int = 0
    layout: int = 0


_decoder = msgspec.msgpack.Decoder(Message)
_encoder = msgspec.msgpack.Encoder()

decode = _decoder.decode
"""Decode a stored body (bytes) to a `Message`; raises one of `UNREADABLE` on foreign bytes."""

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)
"""What decoding raises; the second for what would be a message if its text were text. See `is_damaged`."""


def is_damaged(body: bytes) -> bool:
    """Whether a body that cannot be decoded is a damaged one of ours, and not a stranger's.

    A body of ours begins as an array whose first element is a text, its id; text, JSON, and whatever else is no
    MessagePack begin otherwise. A stranger's body is delivered as it is, a damaged one is a dead letter.
    """
    head = bytes(body[:4])
    if head[:1] == b"\xdc":
        first = head[3:4]
    elif b"\x90" <= head[:1] <= b"\x9f":
        first = head[1:2]
    else:
        return False
    return b"\xa0" <= first <= b"\xbf" or first == b"\xd9"


def damage(exc: Exception) -> str:
    """The reason of a dead letter whose body could not be decoded."""
    return f"its stored record is damaged: {' '.join(str(exc).split())[:200]}"


FIRST_DELIVERY = 0x95
"""The first byte of a body with the five fields of a first delivery, which set nothing that a host counts on."""

MAX_HISTORY = 16
_MOST = (1 << 62) - 1


def read(body: bytes) -> Message:
    """Decode a stored body that may be of any kind, all fields in range. Raises one of `UNREADABLE`."""
    m = decode(body)
    if body[0] != FIRST_DELIVERY:
        bring_in_range(m)
    return m


def bring_in_range(m: Message) -> None:
    """Bring all fields into the ranges of what EMQ writes.

    For a message that was decoded from a stored body that begins with another byte than `FIRST_DELIVERY`: such a body
    may set any field, also those that no store holds, and somebody else may have written it.
    """
    m.offset, m.ready_us, m.started_us, m.member, m.token, m.layout = -1, 0, 0, None, 0, 0
    m.priority = max(0, m.priority)
    m.attempt = min(max(1, m.attempt), 1 << 30)
    m.merged = min(max(1, m.merged), 1 << 30)
    m.first_us = min(max(0, m.first_us), _MOST)
    m.expires_us = min(max(0, m.expires_us), _MOST)
    m.group = min(max(0, m.group), _MOST)
    if not math.isfinite(m.score):
        m.score = 0
    if m.history is not None:
        m.history = [(min(max(0, at_ms), _MOST), reason) for at_ms, reason in m.history[-MAX_HISTORY:]]


def encode(
    message_id: str,
    payload: bytes,
    key: str | None,
    published_us: int,
    headers: dict[str, str] | None,
    layout: int = 0,
) -> bytes:
    """Encode the body of a first delivery, as it lies in a log queue."""
    if layout and key is not None:
        return _encoder.encode((message_id, payload, key, published_us, headers, 0, 1, 0, None, "", layout))
    return _encoder.encode((message_id, payload, key, published_us, headers))


def with_layout(body: bytes, layout: int) -> bytes:
    """The body of a first delivery with a key, routed again by another layout."""
    m = decode(body)
    m.group = layout
    return encode_retry(m)


def encode_retry(m: Message) -> bytes:
    """Encode the body of a retry or dead letter: the message with its attempt count, first start and last error."""
    return _encoder.encode(
        (
            m.id,
            m.payload,
            m.key,
            m.published_us,
            m.headers,
            m.priority,
            m.attempt,
            m.first_us,
            m.error,
            m.topic,
            m.group,
            m.expires_us,
            m.score,
            m.history,
            m.schedule,
            m.merged,
        )
    )


def whole(m: Message) -> str:
    """Names the field that a handler has set to what cannot be stored; empty if the message is whole."""
    if type(m.payload) is not bytes:
        return "payload"
    if m.headers is not None:
        try:
            if not all(_is_text(name) and _is_text(value) for name, value in m.headers.items()):
                return "headers"
        except Exception:
            return "headers"
    return ""


def reset_unstorable(m: Message) -> list[str]:
    """Set each stored field that cannot be encoded to what it is in a message without it; returns their names."""
    fields = []
    for name in Message.__struct_fields__:
        try:
            _encoder.encode(getattr(m, name))
        except Exception:
            fields.append(name)
            setattr(m, name, _FRESH[name])
    return fields


_FRESH = msgspec.structs.asdict(Message("", b""))


def _is_text(value: object) -> bool:
    if type(value) is not str:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


class Note(msgspec.Struct, array_like=True, gc=False):
    """What travels beside a payload in a slot with bodies apart; fields as in `Message`."""

    key: str | None = None
    published_us: int = 0
    headers: dict[str, str] | None = None
    expires_us: int = 0


_blake2b = hashlib.blake2b
_note_decoder = msgspec.msgpack.Decoder(Note)
encode_note = _encoder.encode


def decode_note(note: bytes) -> Note:
    """A note as it lies in a slot; an empty one says nothing, a damaged one that it is: `published_us` is below 0."""
    try:
        return _note_decoder.decode(note) if note else Note()
    except UNREADABLE:
        return Note(published_us=-1)


def damage_of_member(m: Message) -> str:
    """The reason of a dead letter for a member of a slot whose record is damaged; empty for a sound one."""
    if m.merged < 1:
        return "its stored record is damaged: it is none of EMQ's"
    return "its stored record is damaged: its note cannot be decoded" if m.published_us < 0 else ""


def slot_id(slot: int, member: bytes) -> str:
    """The message id of a slot's member: equal contents (or merge keys) are one message, so it follows from them."""
    return f"{slot}-{_blake2b(member, digest_size=12).hexdigest()}"


class IdSource:
    """Message ids unique across processes: 12 random characters of this source, then a counter in hexadecimal.

    The random part (72 bits) keeps two sources apart, the counter keeps ids of one source apart and in order; making
    one costs a fifth of a microsecond where a UUID costs two.
    """

    def __init__(self) -> None:
        prefix = secrets.token_urlsafe(9)
        # A command line takes what begins with a hyphen for an option.
        self._prefix = "A" + prefix[1:] if prefix.startswith("-") else prefix
        self._count = itertools.count(1)

    def next(self) -> str:
        return f"{self._prefix}{next(self._count):x}"
