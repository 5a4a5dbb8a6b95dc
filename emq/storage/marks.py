"""Marks: messages that show a host that a queue has lost its end in a crash of the store.

A store that is restored from a snapshot, from an append-only file or from a replica that lagged has forgotten its last
messages, and gives their offsets to new ones. The tail does not show this, since it may have grown past the old tail by
then. But such a store has a *prefix* of its messages: if it has the message that a host read last, it has all before
it.

So a host remembers the last message that it read of each queue (the *mark*), and a few older ones in the checkpoint,
and the store compares them with its own. The host reads again from behind the newest mark that the store still has.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

PREFIX = 256
"""Bytes at the front of a body that its digest covers; they hold the message's unique id."""

DIGITS = 12
"""Hexadecimal digits of a digest."""

AGES_S = (5.0, 300.0)
"""Ages of older marks in seconds. For each age, a checkpoint holds two marks that are one to two times as old."""


_PLACES = range(1, 1 + 2 * len(AGES_S), 2)


class Mark(NamedTuple):
    """A message that a host has read.

    Attributes:
        offset: the message's offset in its queue.
        digest: the digest of its body, see the function `digest`.
    """

    offset: int
    digest: str


def digest(body: bytes) -> str:
    """The digest of a message: the first digits of the SHA-1 of the first bytes of its body."""
    return hashlib.sha1(body[:PREFIX], usedforsecurity=False).hexdigest()[:DIGITS]


def of(offset: int, body: bytes) -> Mark:
    """The mark of a message."""
    return Mark(offset, digest(body))


def dropped(head: int) -> Mark:
    """The mark of a queue whose first message is at `head`, if the host has read none of its messages.

    Everything before `head` was dropped for good. So a store that has a message at the mark's offset, or that ends
    before `head`, has come back from a crash. No message has this mark's digest.
    """
    return Mark(head - 1, "dropped")


class Marks:
    """The marks of one queue, as its owner keeps them.

    Attributes:
        newest: the mark of the last message that the owner read, or None.
    """

    __slots__ = ("_older", "newest")

    def __init__(self, known: tuple[Mark, ...] = ()) -> None:
        """Args:
        known: the marks of a checkpoint, newest first.
        """
        self.newest = known[0] if known else None
        # A host may have tens of thousands of queues, most of them without older marks, so these have no lists.
        self._older = [[(0.0, mark) for mark in known[i : i + 2]] for i in _PLACES] if len(known) > 1 else None

    def saved(self, now_s: float) -> tuple[Mark, ...]:
        """Return the marks to save with a checkpoint, newest first; keep some of them as older marks."""
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
