"""When consumed messages of topics with a retention may be dropped."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from emq.groups.owned import OwnedQueue

NOTES = 10
"""Times in one retention at which a queue's progress is noted; what is retained stays up to a tenth longer."""

MOST_NOTES = 16
"""Most notes of one queue, should its retention change; the oldest is left out, and what it spoke of stays longer."""


class Note(NamedTuple):
    """Everything below `watermark` was consumed by `at_s`, seconds since the epoch by the owner's clock."""

    at_s: float
    watermark: int


class Retention:
    """Remembers how far queues had come when, and finds what has been kept for long enough.

    The notes are saved with the checkpoints, so that they outlive restarts and moves, however often these come. A queue
    has some ten of them and one place in the heap.

    Attributes:
        outdated: queues were let go of, which are to be forgotten at the next look.
    """

    def __init__(self) -> None:
        self._due: list[tuple[float, int, OwnedQueue]] = []
        self._tickets = itertools.count()
        self.outdated = False

    def resumed(self, queue: OwnedQueue) -> None:
        """The queue goes on with the notes of its checkpoint."""
        if queue.notes:
            self._expect(queue)

    def progressed(self, queue: OwnedQueue, now_s: float) -> bool:
        """Note how far a queue has come, unless that was done lately; answers whether it is noted now."""
        notes = queue.notes
        if notes and queue.saved <= notes[-1].watermark:
            return True
        if notes and now_s < notes[-1].at_s + _retention_s(queue) / NOTES:
            return False
        queue.notes = (*notes, Note(now_s, queue.saved))[-MOST_NOTES:]
        if not notes:
            self._expect(queue)
        return True

    def ripe(self, now_s: float) -> Iterator[tuple[OwnedQueue, int]]:
        """Queues, and up to where they may be dropped; say `dropped` or `failed` of each."""
        if self.outdated:
            self.outdated = False
            self._due = [each for each in self._due if not each[2].group.stopping]
            heapq.heapify(self._due)
        found = []
        while self._due and self._due[0][0] <= now_s:
            _, _, queue = heapq.heappop(self._due)
            kept_s = _retention_s(queue)
            upto = max((note.watermark for note in queue.notes if note.at_s + kept_s <= now_s), default=0)
            if upto:
                found.append((queue, min(upto, queue.saved)))
            elif queue.notes and not queue.group.stopping:  # it is kept for longer than it was then
                self._expect(queue)
        return iter(found)

    def dropped(self, queue: OwnedQueue, upto: int) -> None:
        """What lay below `upto` is gone."""
        queue.notes = tuple(note for note in queue.notes if note.watermark > upto)
        if queue.notes:
            self._expect(queue)

    def failed(self, queue: OwnedQueue, now_s: float) -> None:
        """The store could not drop it; look again soon."""
        heapq.heappush(self._due, (now_s, next(self._tickets), queue))

    def _expect(self, queue: OwnedQueue) -> None:
        heapq.heappush(self._due, (queue.notes[0].at_s + _retention_s(queue), next(self._tickets), queue))


def _retention_s(queue: OwnedQueue) -> float:
    return queue.group.owner.topic.options.retention_s
