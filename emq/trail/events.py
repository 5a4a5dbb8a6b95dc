"""The events of the trail: their names, the record of each, and the row that readers get. Does not need pyarrow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from emq.storage.message import Message, label

PUBLISHED: Final = "published"
MERGED: Final = "merged"
STARTED: Final = "started"
SETTLED: Final = "settled"
RETRIED: Final = "retried"
RETURNED: Final = "returned"
DEAD: Final = "dead"
LOST: Final = "lost"
FORGOTTEN: Final = "forgotten"
SKIPPED: Final = "skipped"
DROPPED: Final = "dropped"
DOUBTED: Final = "doubted"
RECALLED: Final = "recalled"
REPLAYED: Final = "replayed"
OWNED: Final = "owned"
RELEASED: Final = "released"

AGAIN: Final = (RETRIED, RETURNED)
"""Ends of a delivery after which its message is delivered again."""

EXPIRED: Final = "expired"
"""The reason of a dead letter that expired: its time to live had passed."""
REJECTED: Final = "rejected: "
"""The start of the reason of a dead letter whose handler refused further attempts, even if attempts were left."""
UNFIT: Final = "unfit: "
"""The start of the reason of a dead letter that could not be read, or not be stored again."""

COPY: Final = "~"
"""The separator in the id of a *copy*: a message that left its slot to be tried again from its lane. The text behind
the separator is unique, so that the copies of one id that follows from contents differ. In an id that a publisher chose
the separator means nothing."""

CONTENT: Final = "[0-9]+-[0-9a-f]{24}"
"""An id that follows from contents (`emq.storage.message.slot_id`), as a regular expression."""

SLOT_ID: Final = f"^{CONTENT}({COPY}.*)?$"
"""Ids that follow from contents, and ids of their copies, as a regular expression. Such ids may be published again."""

COPIED: Final = f"^{CONTENT}{COPY}"
"""The start of the id of a copy, as a regular expression."""

_COPIED = re.compile(COPIED)
_CONTENT = re.compile(SLOT_ID)


def is_copy(message_id: str) -> bool:
    """Return whether an id is that of a message that left its slot for its lane."""
    return _COPIED.match(message_id) is not None


def is_content(message_id: str) -> bool:
    """Return whether an id follows from contents, so that it may be published again; also true for a copy's id."""
    return _CONTENT.match(message_id) is not None


def origin(message_id: str) -> str:
    """Return the id under which a message was published."""
    return message_id.partition(COPY)[0] if is_copy(message_id) else message_id


def is_named(uid: str, asked: str, *, by_identity: bool = False) -> bool:
    """Return whether an id, or an identity, names a message or what it is a copy of."""
    return asked == (uid if by_identity else label(uid)) or (is_copy(uid) and asked == origin(uid))


class Record(msgspec.Struct, frozen=True):
    """An event to record; its name is that of its class. `emq.trail.schema` explains fields with a column's name.

    Times are by the caller's clock.
    """

    time_us: int

    @property
    def event(self) -> str:
        return type(self).__name__.lower()


class GroupRecord(Record, frozen=True):
    topic: str
    group: int


class Batch(GroupRecord, frozen=True):
    """The messages of one publish, by their ids. The trail keeps the sequences: do not change them afterwards."""

    ids: Sequence[str]


class Published(Batch, frozen=True):
    """A publish returned: these messages are in the store.

    Attributes:
        offsets: one for each id; None for messages without offsets (delayed ones, and those of a sorted topic).
        keys: one for each id; None if no message has a key.
        due_ms: one for each id; None if no message is delayed.
    """

    priority: int
    published_us: int
    offsets: Sequence[int] | None = None
    keys: Sequence[str | None] | None = None
    due_ms: Sequence[int] | None = None


class Merged(Batch, frozen=True):
    """A publish to a sorted topic returned: the store merged each message with a waiting one of the same id."""

    published_us: int


class Doubted(Batch, frozen=True):
    """A publish of these messages failed; the messages may or may not be in the store."""

    priority: int


class Failure(Record, frozen=True):
    """An attempt failed. `message` has the attempt count of this attempt."""

    message: Message
    reason: str


class Retried(Failure, frozen=True):
    """The message is due again at `due_ms`."""

    due_ms: int


class Returned(Failure, frozen=True):
    """The handler gave the message back untried; this delivery does not count as an attempt."""


class Dead(Failure, frozen=True):
    """The message became a dead letter. With attempts left, `reason` begins with `EXPIRED`, `REJECTED` or `UNFIT`."""

    @property
    def until(self) -> int | None:
        return self.message.expires_us or None


class Range(GroupRecord, frozen=True):
    """The offsets [offset, until) of a queue."""

    priority: int
    offset: int
    until: int


class Skipped(Range, frozen=True):
    """The owner took the offsets for holes (offsets without a message) and will not deliver from them."""


class Dropped(Range, frozen=True):
    """The messages at these offsets were dropped on purpose."""

    reason: str = "max_length"


class Lost(Range, frozen=True):
    """The store came back from a crash: some or all of the messages from `offset` on are gone.

    The owner knew of messages below `until`. The store gives out offsets from `offset` on again.
    """


class Forgotten(Range, frozen=True):
    """The store forgot the empty queue of a topic that ended long ago. It gives out offsets from `offset` on again."""


class Recalled(GroupRecord, frozen=True):
    """A waiting message was recalled: taken back before its start."""

    priority: int
    id: str


class Replayed(GroupRecord, frozen=True):
    """A dead letter was replayed: put back for another delivery."""

    priority: int
    id: str


class Owned(GroupRecord, frozen=True):
    """This source consumes the group from now on."""

    epoch: int


class Released(GroupRecord, frozen=True):
    """This source has stopped consuming the group."""

    epoch: int


class Event(NamedTuple):
    """One row of the trail; `emq.trail.schema` explains the columns."""

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
