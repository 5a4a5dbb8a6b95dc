"""The message: what a producer publishes, what lies in the store, what a handler receives."""

from __future__ import annotations

import hashlib
import itertools
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


_decoder = msgspec.msgpack.Decoder(Message)
_encoder = msgspec.msgpack.Encoder()

decode = _decoder.decode
"""Decode a stored body (bytes) to a `Message`; raises one of `UNREADABLE` on foreign bytes."""

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)
"""What decoding raises; the second for what would be a message if its text were text."""


def encode(
    message_id: str, payload: bytes, key: str | None, published_us: int, headers: dict[str, str] | None
) -> bytes:
    """Encode the body of a first delivery, as it lies in a log queue."""
    return _encoder.encode((message_id, payload, key, published_us, headers))


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
    """A note as it lies in a slot; an empty or foreign one says nothing."""
    try:
        return _note_decoder.decode(note) if note else Note()
    except UNREADABLE:
        return Note()


def slot_id(slot: int, member: bytes) -> str:
    """The message id of a slot's member: equal contents (or merge keys) are one message, so it follows from them."""
    return f"{slot}-{_blake2b(member, digest_size=12).hexdigest()}"


class IdSource:
    """Message ids unique across processes: 12 random characters of this source, then a counter in hexadecimal.

    The random part (72 bits) keeps two sources apart, the counter keeps ids of one source apart and in order; making
    one costs a fifth of a microsecond where a UUID costs two.
    """

    def __init__(self) -> None:
        self._prefix = secrets.token_urlsafe(9)
        self._count = itertools.count(1)

    def next(self) -> str:
        return f"{self._prefix}{next(self._count):x}"
