"""The message, as a producer publishes it, as the store keeps it, and as a handler receives it."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import re
import secrets
import weakref
from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec


class Message(msgspec.Struct, array_like=True, gc=False):
    """One message, as handed to a handler.

    In the store, a message is a MessagePack array of the fields up to `headers` (in a log queue) or up to `merged` (in
    a lane: delayed, to be retried, or dead). Missing fields have their defaults. The garbage collector does not track
    messages, so a message must not refer to an object that refers back to it; the fields below cannot.

    Attributes:
        uid: identity of the stored message: unique, made at the publish, and kept through every retry, move and replay.
            It is the `id`, or `<id>#<nonce>` if the publisher chose the id; see `uid_of`.
        payload: at most the topic's `max_payload` bytes.
        key: messages of one key run one at a time, first deliveries in order; None for a message without a key.
        published_us: microseconds since the epoch, by the producer's clock.
        headers: small strings that travel with the payload; with the key at most the topic's `max_headers` bytes.
        priority: index into the topic's priorities, 0 is the highest.
        attempt: 1 for the first delivery.
        first_us: microseconds since the epoch of the first start; 0 before it.
        error: the reason why the last attempt failed; None before.
        topic: name of the topic.
        group: index of the group in the topic.
        expires_us: microseconds since the epoch after which the message must not start any more; 0 for never.
        score: in a sorted topic: the message's due time (ms since the epoch) or its priority.
        history: of a retry or dead letter: (ms since the epoch, reason with its place in the code) of its failed
            attempts, 16 at most.
        schedule: of a schedule's entry: the encoded `emq.timetable.Schedule`. The entry publishes messages again and
            again; handlers receive these, never the entry.
        merged: in a sorted topic that merges by key: the number of publishes that the message stands for.
        offset: place in its queue; -1 when it comes from its group's lane or slot.
        ready_us: when the message was in the buffer and ready to start, by the host's clock. If a `KeyGate` held the
            message back in the buffer: when the gate let the message through.
        started_us: when this delivery was started, by the host's clock; quotas are judged by this time.
        member: the member, for a message claimed from a slot; None for all others.
        token: names the claim, for a message claimed from a slot.
        layout: of a message with a key: the layout by which the message came to its group; see
            `emq.topics.key_layouts`. A log queue stores the layout in the place of `group`.
        size: bytes that the message takes in a host's memory, see `note_size`. The host counts them as long as it has
            the message, even if a handler changes payload and headers.
    """

    uid: str
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
    size: int = 0

    @property
    def id(self) -> str:
        """Return the message's id, as the publisher chose it, or as EMQ made it.

        The id is the same at each attempt, so handlers can recognise repeats by it. An id that a publisher chooses
        twice names two messages.
        """
        return label(self.uid)


MARK = "#"
"""The separator between an id that a publisher chose and the nonce of the publish."""

NONCE_LENGTH = 13
"""Least characters of a nonce, which is made by `IdSource`."""

_NONCE = re.compile(r"[A-Za-z0-9_-]+")


def uid_of(chosen: str, nonce: str) -> str:
    """Return the identity of a message whose publisher chose its id: the id, and a nonce that no other publish has.

    A user may choose an id again, while a message of the same id waits, is delivered, or lies in the dead letters. The
    nonce keeps the messages apart.
    """
    return f"{chosen}{MARK}{nonce}"


def label(uid: str) -> str:
    """Return the id of a message by its identity: without the nonce, if there is one."""
    if MARK not in uid:
        return uid
    chosen, _, nonce = uid.rpartition(MARK)
    return chosen if chosen and len(nonce) >= NONCE_LENGTH and _NONCE.fullmatch(nonce) else uid


_decoder = msgspec.msgpack.Decoder(Message)
_encoder = msgspec.msgpack.Encoder()

decode = _decoder.decode
"""Decode a stored body (bytes) to a `Message`; raises one of `UNREADABLE` on foreign bytes."""

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)
"""Errors of decoding; `UnicodeDecodeError` if only a text of the message is not valid UTF-8. See `is_damaged`."""


def is_damaged(body: bytes) -> bool:
    """Return True if a body that cannot be decoded is a damaged body of EMQ, False if it is a stranger's.

    A body of EMQ begins as an array whose first element is a text, the id. Text, JSON and other formats begin
    otherwise. A stranger's body is delivered as it is; a damaged body becomes a dead letter.
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
    """Return the reason of a dead letter whose body could not be decoded."""
    return f"its stored record is damaged: {' '.join(str(exc).split())[:200]}"


FIRST_DELIVERY = 0x95
"""First byte of a body with the five fields of a first delivery; a host need not check the range of any of these."""

MAX_HISTORY = 16
_MOST = (1 << 62) - 1


def read(body: bytes) -> Message:
    """Decode a stored body of any kind, and bring all fields into range. Raises one of `UNREADABLE`."""
    m = decode(body)
    if body[0] != FIRST_DELIVERY:
        bring_in_range(m)
    return m


def bring_in_range(m: Message) -> None:
    """Bring all fields into the ranges that EMQ writes.

    Call this for a message decoded from a body that does not begin with `FIRST_DELIVERY`. The body may set any field,
    even fields that EMQ never stores, and a stranger may have written it.
    """
    m.offset, m.ready_us, m.started_us, m.member, m.token, m.layout, m.size = -1, 0, 0, None, 0, 0, 0
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
    uid: str,
    payload: bytes,
    key: str | None,
    published_us: int,
    headers: dict[str, str] | None,
    layout: int = 0,
) -> bytes:
    """Encode the body of a first delivery, as a log queue stores it."""
    if layout and key is not None:
        return _encoder.encode((uid, payload, key, published_us, headers, 0, 1, 0, None, "", layout))
    return _encoder.encode((uid, payload, key, published_us, headers))


def encode_many(
    uids: Sequence[str],
    payloads: Sequence[bytes],
    keys: Sequence[str | None],
    published_us: int,
    headers: Sequence[dict[str, str] | None] | None,
    layout: int,
) -> list[bytes]:
    """Encode the bodies of first deliveries, as `encode` does for each."""
    if headers is None and keys.count(None) == len(keys):  # as most: without a call for each
        encoded = _encoder.encode
        return [encoded((uid, payload, None, published_us, None)) for uid, payload in zip(uids, payloads, strict=True)]
    each = zip(uids, payloads, keys, headers or [None] * len(uids), strict=True)
    return [encode(uid, payload, key, published_us, its, layout) for uid, payload, key, its in each]


def with_layout(body: bytes, layout: int) -> bytes:
    """Return the body of a first delivery with a key, with another layout."""
    m = decode(body)
    m.group = layout
    return encode_retry(m)


def encode_retry(m: Message) -> bytes:
    """Encode the body of a retry or dead letter: the message with its attempt count, first start and last error."""
    return _encoder.encode(
        (
            m.uid,
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


HEADER_BYTES = 32
"""Bytes that a header counts beside its name and value; as in HTTP/2 (RFC 9113, section 6.5.2)."""

HEADER_MEMORY_BYTES = 200
"""Bytes that a header takes in memory beside its name and value: two texts of Python, and their place in a dict."""


def label_bytes(key: str | None, headers: Mapping[str, str] | None) -> int:
    """Return the bytes that a message's key and headers count towards the topic's `max_headers`."""
    size = 0 if key is None else len(key.encode())
    if headers:
        size += sum([len(name.encode()) + len(value.encode()) + HEADER_BYTES for name, value in headers.items()])
    return size


def size_of(m: Message) -> int:
    """Return the bytes of a message's payload, key and headers, as it is now: a handler may have changed it."""
    return len(m.payload) + label_bytes(m.key, m.headers)


def note_size(m: Message, stored: int) -> None:
    """Note the size of a message that was decoded from a record of `stored` bytes."""
    m.size = stored + HEADER_MEMORY_BYTES * len(m.headers) if m.headers else stored


def whole(m: Message) -> str:
    """Return the name of a field that a handler has set to an unstorable value; empty if all can be stored."""
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
    """Set each field that cannot be encoded to its default; return the names of these fields."""
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
    """The fields of a message beside its payload, in a slot that stores bodies separately; fields as in `Message`."""

    key: str | None = None
    published_us: int = 0
    headers: dict[str, str] | None = None
    expires_us: int = 0


_blake2b = hashlib.blake2b
_note_decoder = msgspec.msgpack.Decoder(Note)
encode_note = _encoder.encode


def decode_note(note: bytes) -> Note:
    """Decode a note from a slot. An empty note has the defaults; a damaged one has `published_us` -1."""
    try:
        return _note_decoder.decode(note) if note else Note()
    except UNREADABLE:
        return Note(published_us=-1)


def damage_of_member(m: Message) -> str:
    """Return the reason of a dead letter for a slot's member whose record is damaged; empty for a sound record."""
    if m.merged < 1:
        return "its stored record is damaged: EMQ did not write it"
    return "its stored record is damaged: its note cannot be decoded" if m.published_us < 0 else ""


def slot_id(slot: int, member: bytes) -> str:
    """Return the message id of a slot's member, a hash of the member: equal contents or merge keys are one message."""
    return f"{slot}-{_blake2b(member, digest_size=12).hexdigest()}"


def random_name() -> str:
    """Return 12 random characters (72 bits) for the begin of ids.

    The first one is not a hyphen, since a command line takes an argument that begins with a hyphen for an option.
    """
    name = secrets.token_urlsafe(9)
    return "A" + name[1:] if name.startswith("-") else name


class IdSource:
    """Makes message ids that are unique across processes: 12 random characters of this source, then a hex counter.

    The random part (72 bits) keeps two sources apart; the counter keeps the ids of one source apart and in order. An id
    costs a fifth of a microsecond, a UUID two. In a forked child a source begins again with another random part.
    """

    _all: ClassVar[weakref.WeakSet[IdSource]] = weakref.WeakSet()

    def __init__(self) -> None:
        self._begin()
        IdSource._all.add(self)

    def _begin(self) -> None:
        self._prefix = random_name()
        self._count = itertools.count(1)

    def next(self) -> str:
        return f"{self._prefix}{next(self._count):x}"

    def many(self, n: int) -> list[str]:
        """Return `n` new ids."""
        prefix = self._prefix
        return [f"{prefix}{i:x}" for i in itertools.islice(self._count, n)]

    @classmethod
    def in_child(cls) -> None:
        for one in list(cls._all):
            one._begin()


os.register_at_fork(after_in_child=IdSource.in_child)
