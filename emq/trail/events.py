"""The events of the trail: their names, what is recorded of each, and one row as it is read; free of pyarrow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from emq.message import Message

PUBLISHED: Final = "published"
MERGED: Final = "merged"
STARTED: Final = "started"
SETTLED: Final = "settled"
RETRIED: Final = "retried"
DEAD: Final = "dead"
LOST: Final = "lost"
SKIPPED: Final = "skipped"
DROPPED: Final = "dropped"
DOUBTED: Final = "doubted"
RECALLED: Final = "recalled"
REPLAYED: Final = "replayed"
OWNED: Final = "owned"
RELEASED: Final = "released"

EXPIRED: Final = "expired"
"""The reason of a dead letter whose time to live had passed."""
REJECTED: Final = "rejected: "
"""The start of the reason of a dead letter whose handler refused further attempts, however many were left."""
UNFIT: Final = "unfit: "
"""The start of the reason of a dead letter that could not be read, or not be stored again."""

COPY: Final = "~"
"""The separator in the id of a message that left its slot to be tried again from its lane. The text behind it is
unique, to tell apart such copies of one id that follows from contents. In an id that a publisher chose it means
nothing."""

CONTENT: Final = "[0-9]+-[0-9a-f]{24}"
"""An id that follows from contents (`emq.message.slot_id`), as a regular expression."""

SLOT_ID: Final = f"^{CONTENT}({COPY}.*)?$"
"""Ids that follow from contents, and ids of their copies, as a regular expression. Such ids may be published again."""

COPIED: Final = f"^{CONTENT}{COPY}"
"""The start of the id of a copy, as a regular expression."""

_COPIED = re.compile(COPIED)


def is_copy(message_id: str) -> bool:
    """Return True for the id of a message that left its slot for its lane."""
    return _COPIED.match(message_id) is not None


def origin(message_id: str) -> str:
    """Return the id under which a message was published."""
    return message_id.partition(COPY)[0] if is_copy(message_id) else message_id


class Record(msgspec.Struct, frozen=True):
    """An event to be recorded, named like its class. Fields that are called like columns of the trail are described in
    `emq.trail.schema`; times are by the caller's clock.
    """

    time_us: int

    @property
    def event(self) -> str:
        return type(self).__name__.lower()


class GroupRecord(Record, frozen=True):
    topic: str
    group: int


class Batch(GroupRecord, frozen=True):
    """The messages of one publish, by their ids. Sequences are kept until written: do not change them afterwards."""

    ids: Sequence[str]


class Published(Batch, frozen=True):
    """A publish returned: these messages are in the store.

    Attributes:
        offsets: one for each id, or None if there are none (a delayed message, a sorted topic).
        keys: one for each id, or None if no message has a key.
        due_ms: one for each id, or None if none is delayed.
    """

    priority: int
    published_us: int
    offsets: Sequence[int] | None = None
    keys: Sequence[str | None] | None = None
    due_ms: Sequence[int] | None = None


class Merged(Batch, frozen=True):
    """Publishes to a sorted topic returned, and the store merged each with a waiting message of the same id."""

    published_us: int


class Doubted(Batch, frozen=True):
    """A publish of these messages failed; they may or may not be in the store."""

    priority: int


class Failure(Record, frozen=True):
    """An attempt at `message`, with its attempt count as started, failed."""

    message: Message
    reason: str


class Retried(Failure, frozen=True):
    """The message is due again at `due_ms`."""

    due_ms: int


class Dead(Failure, frozen=True):
    """The message went to the dead letters; if attempts were left, `reason` begins with one of the above."""

    @property
    def until(self) -> int | None:
        return self.message.expires_us or None


class Range(GroupRecord, frozen=True):
    """The offsets [offset, until) of a queue."""

    priority: int
    offset: int
    until: int


class Skipped(Range, frozen=True):
    """The owner took the offsets for holes and will not deliver them."""


class Dropped(Range, frozen=True):
    """The offsets were dropped on purpose."""

    reason: str = "max_length"


class Lost(Range, frozen=True):
    """The store came back from a crash: some or all of the messages from `offset` on are gone.

    The owner knew of messages below `until`. The store gives out offsets from `offset` on again.
    """


class Recalled(GroupRecord, frozen=True):
    """A waiting message was taken back before it was started."""

    priority: int
    id: str


class Replayed(GroupRecord, frozen=True):
    """A dead letter was put back to be delivered again."""

    priority: int
    id: str


class Owned(GroupRecord, frozen=True):
    """This source consumes the group from now on."""

    epoch: int


class Released(GroupRecord, frozen=True):
    """This source has stopped consuming the group."""

    epoch: int


class Event(NamedTuple):
    """One row of the trail; the columns are described in `emq.trail.schema`."""

    event: str
    time_us: int
    source: str
    topic: str
    group: int
    priority: int | None = None
    offset: int | None = None
    until: int | None = None
    id: str | None = None
    key: str | None = None
    attempt: int | None = None
    epoch: int | None = None
    published_us: int | None = None
    ready_us: int | None = None
    due_ms: int | None = None
    reason: str | None = None
