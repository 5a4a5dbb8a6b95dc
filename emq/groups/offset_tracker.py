"""Progress of one queue: the finished offsets, and the watermark up to which they have no gap."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import NamedTuple


class Note(NamedTuple):
    """All offsets below `watermark` were finished at `at_s`, in seconds since the epoch by the owner's clock."""

    at_s: float
    watermark: int


class OffsetTracker:
    """Tracks finished offsets. The watermark is the first offset that is not finished (promise M).

    Messages may finish out of order. The tracker keeps the finished offsets above the watermark as ascending ranges
    with gaps, in two parallel lists that exist only while there are such ranges. There are at most as many ranges as
    messages in flight, so memory is bounded and an insertion costs very little.
    """

    __slots__ = ("_ends", "_starts", "watermark")

    _ends: list[int]  # exists together with `_starts`

    def __init__(self, watermark: int, finished: Iterable[tuple[int, int]] = ()) -> None:
        self.watermark = watermark
        self._starts: list[int] | None = None
        for start, end in finished:
            self.finish(start, end)

    def finish(self, start: int, end: int) -> None:
        """Mark [start, end) as finished; parts may be finished already. Used for offsets without a message, too."""
        start = max(start, self.watermark)
        if start >= end:
            return
        if self._starts is None:
            if start == self.watermark:
                self.watermark = end
                return
            self._starts, self._ends = [], []
        starts, ends = self._starts, self._ends
        low = bisect.bisect_left(ends, start)  # the first range that reaches up to start
        high = bisect.bisect_right(starts, end)  # behind the last range that begins at end or before
        if low < high:
            start, end = min(start, starts[low]), max(end, ends[high - 1])
        starts[low:high] = [start]
        ends[low:high] = [end]
        if starts[0] <= self.watermark:
            self.watermark = ends[0]
            del starts[0], ends[0]
            if not starts:
                self._starts = None

    def is_finished(self, offset: int) -> bool:
        if offset < self.watermark or self._starts is None:
            return offset < self.watermark
        i = bisect.bisect_right(self._starts, offset) - 1
        return i >= 0 and offset < self._ends[i]

    def total(self) -> int:
        """Return the number of finished offsets, below the watermark and in the ranges above it."""
        return self.watermark + (sum(self._ends) - sum(self._starts) if self._starts is not None else 0)

    def finished(self) -> list[tuple[int, int]]:
        """Return the finished ranges [start, end) above the watermark, ascending, at least one offset apart."""
        return list(zip(self._starts, self._ends, strict=True)) if self._starts is not None else []
