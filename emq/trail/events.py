"""The events of the trail by name, and one of them as a plain record; free of pyarrow."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

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
