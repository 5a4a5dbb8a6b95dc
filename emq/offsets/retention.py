"""Decides when the consumed messages of topics with a retention may be dropped."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from emq.groups.offset_tracker import Note
from emq.groups.owned import OwnedQueue

NOTES = 10
"""Notes of a queue's progress in one retention time; messages therefore stay up to a tenth longer."""

MOST_NOTES = 16
"""Most notes of one queue; its retention may change. Then the oldest note is dropped, and the messages below it stay
longer."""


class Retention:
    """Notes the progress of queues over time, and finds messages that have been kept for long enough.

    The notes are saved with the checkpoints, so that they outlive all restarts and moves. A queue has about ten notes
    and one place in the heap.

    Attributes:
        outdated: True if queues were released since the last `ripe`, which then forgets them.
    """

    def __init__(self) -> None:
        self._due: list[tuple[float, int, OwnedQueue]] = []
        self._tickets = itertools.count()
        self.outdated = False

    def resumed(self, queue: OwnedQueue) -> None:
        """Plan a look at a queue that goes on with the notes of its checkpoint."""
        if queue.notes:
            self._expect(queue)

    def progressed(self, queue: OwnedQueue, now_s: float) -> bool:
        """Note a queue's progress, unless a note was made lately; return whether the progress is noted now."""
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
        """Return queues with the offset below which to drop messages; call `dropped` or `failed` for each."""
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
            elif queue.notes and not queue.group.stopping:  # the retention has grown since the look was planned
                self._expect(queue)
        return iter(found)

    def dropped(self, queue: OwnedQueue, upto: int) -> None:
        """The messages below `upto` are gone: forget their notes."""
        queue.notes = tuple(note for note in queue.notes if note.watermark > upto)
        if queue.notes:
            self._expect(queue)

    def failed(self, queue: OwnedQueue, now_s: float) -> None:
        """The store could not drop the queue's messages: look at the queue again at the next trim."""
        heapq.heappush(self._due, (now_s, next(self._tickets), queue))

    def _expect(self, queue: OwnedQueue) -> None:
        heapq.heappush(self._due, (queue.notes[0].at_s + _retention_s(queue), next(self._tickets), queue))


def _retention_s(queue: OwnedQueue) -> float:
    return queue.group.owner.topic.options.retention_s
