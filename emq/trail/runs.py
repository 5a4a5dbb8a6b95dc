"""The runs of sources: which segments of each run are there, and why a run proves nothing."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import msgspec

from emq.runtime import plurals


class CutShort(NamedTuple):
    """A trail of one source that was not closed.

    Attributes:
        first_us, last_us: times of its first and last event, microseconds since 1970.
    """

    source: str
    first_us: int
    last_us: int


class SourceRun(msgspec.Struct):
    """The knowledge about one run of a source, over all segments so far.

    Attributes:
        spans: numbers of the segments that were read, as half-open ranges, ascending.
        closed: True if its last segment says that it ended in order.
        dropped: number of events that the source lost.
        first_us, last_us: times of its first and last event, microseconds since the epoch.
        last_seq: number of the first segment that says that the run ended; -1 without one.
    """

    spans: list[tuple[int, int]] = msgspec.field(default_factory=list)
    closed: bool = False
    dropped: int = 0
    first_us: int = 0
    last_us: int = 0
    last_seq: int = -1

    def has(self, seq: int) -> bool:
        return any(start <= seq < end for start, end in self.spans)

    def add(self, seq: int, first_us: int, last_us: int, dropped: int, closed: bool) -> None:
        """Add a segment by the fields of its header, see `emq.trail.segments.Header`."""
        self.first_us = min(self.first_us or first_us, first_us)
        self.last_us = max(self.last_us, last_us)
        self.dropped = max(self.dropped, dropped)
        if closed:
            self.closed, self.last_seq = True, seq if self.last_seq < 0 else min(self.last_seq, seq)
        merged: list[tuple[int, int]] = []
        for start, end in sorted([*self.spans, (seq, seq + 1)]):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        self.spans = merged

    def flaws(self, name: str) -> list[str]:
        """Return lines about missing segments, dropped events, and segments after the last one of the run.

        Args:
            name: `<source>-<run_us>`.
        """
        found = []
        missing: list[int] = []
        for (_, reached), (start, _) in itertools.pairwise([(0, 0), *self.spans]):
            missing += range(reached, start)
        if missing:
            some = ", ".join(map(str, missing[:10])) + (" ..." if len(missing) > 10 else "")
            segments = plurals.count(len(missing), "segment")
            found.append(f"{name}: {segments} {plurals.are(len(missing))} missing (numbers {some})")
        if self.dropped:
            found.append(f"{name}: {plurals.count(self.dropped, 'event')} {plurals.were(self.dropped)} dropped")
        if self.closed and self.last_seq < self._newest:
            found.append(f"{name}: segment {self._newest} comes after the last one of its run")
        return found

    @property
    def unclosed(self) -> str:
        """A text about a run without a last segment."""
        return f"not closed after segment {self._newest}"

    def cut_short(self, name: str) -> CutShort:
        """Return the run `<source>-<run_us>` as one that was not closed."""
        return CutShort(source_of(name), self.first_us, self.last_us)

    @property
    def _newest(self) -> int:
        return self.spans[-1][1] - 1


def source_of(name: str) -> str:
    """Return the source of a run `<source>-<run_us>`."""
    return name.rpartition("-")[0]
