"""Marks: messages by which a queue is known again after its store has come back from a crash.

A store that is restored from a snapshot, from an append-only file or from a replica that lagged comes back as it was
some time ago. It has then forgotten its last messages, and gives their offsets to new ones. The tail alone does not
tell, since it may have grown past the old one by then. But a store comes back with a *prefix* of what it was told: if
the message that a host read last is still there, everything before it is there too.

So a host remembers the last message that it read of each queue, and a few older ones in the checkpoint, and has the
store compare. What is behind the newest mark that is still there has to be read again.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

PREFIX = 256
"""Bytes of a body that its digest covers: a message's unique id is at the front."""

DIGITS = 12
"""Hexadecimal digits of a digest."""

AGES_S = (5.0, 300.0)
"""A checkpoint holds the newest mark and, for each of these, two that are one to two times so old."""


_PLACES = range(1, 1 + 2 * len(AGES_S), 2)


class Mark(NamedTuple):
    """A message that was read.

    Attributes:
        offset: its place in its queue.
        digest: of its body, see `digest`.
    """

    offset: int
    digest: str


def digest(body: bytes) -> str:
    """What a message is known by: the first digits of the SHA-1 of the first bytes of its body."""
    return hashlib.sha1(body[:PREFIX], usedforsecurity=False).hexdigest()[:DIGITS]


def of(offset: int, body: bytes) -> Mark:
    """The mark of a message."""
    return Mark(offset, digest(body))


def dropped(head: int) -> Mark:
    """The mark of a queue of which nothing was read, whose first message is at `head`.

    What was before that has been dropped for good. So a store that has a message there, or ends before it, has come
    back from a crash; no message has this digest.
    """
    return Mark(head - 1, "dropped")


class Marks:
    """The marks of one queue, as its owner keeps them.

    Attributes:
        newest: of the last message that was read, or None.
    """

    __slots__ = ("_older", "newest")

    def __init__(self, known: tuple[Mark, ...] = ()) -> None:
        """Args:
        known: those of a checkpoint, newest first.
        """
        self.newest = known[0] if known else None
        # Most queues of many have nothing yet, and a host may have tens of thousands.
        self._older = [[(0.0, mark) for mark in known[i : i + 2]] for i in _PLACES] if len(known) > 1 else None

    def saved(self, now_s: float) -> tuple[Mark, ...]:
        """The marks to save with a checkpoint, newest first; some are put by as older ones."""
        if self.newest is None:
            return ()
        coming: Mark = self.newest
        if self._older is None:
            self._older = [[] for _ in AGES_S]
        for age_s, older in zip(AGES_S, self._older, strict=True):
            if not older or now_s - older[0][0] >= age_s:
                older.insert(0, (now_s, coming))
                del older[2:]
            coming = older[-1][1]
        found = [self.newest, *(mark for older in self._older for _, mark in older)]
        return tuple(dict.fromkeys(sorted(found, reverse=True)))
