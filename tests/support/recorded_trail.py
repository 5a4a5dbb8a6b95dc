"""The events that a part records in the trail, kept for a test."""

from __future__ import annotations

from emq.trail.events import Record
from emq.trail.sink import NullTrail


class RecordedTrail(NullTrail):
    """Keeps each event that is recorded by `record`, in order."""

    enabled = True

    def __init__(self) -> None:
        self.events: list[Record] = []

    def record(self, event: Record) -> None:
        self.events.append(event)
