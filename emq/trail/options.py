"""The options of a trail, and its statistics."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from emq.runtime import errors


@dataclasses.dataclass(frozen=True, slots=True)
class TrailOptions:
    """The sizes of a trail's segments and of its backlog.

    A *segment* is one Parquet file of events.

    Attributes:
        rotate_rows: events after which a segment is written, at least 1.
        rotate_s: seconds after which a segment is written even if it is small; a crash of the process loses at most the
            events of this time.
        early_s: seconds after which a segment is written when a group was acquired. The group's first start comes in
            the next second, so the trail knows the owner even if the host is killed early.
        max_pending: events that may wait in memory; more are dropped and counted. At least 2; a value below
            `rotate_rows` makes segments smaller.
    """

    rotate_rows: int = 500_000
    rotate_s: float = 1.0
    early_s: float = 0.05
    max_pending: int = 1_000_000

    def __post_init__(self) -> None:
        if self.rotate_rows < 1:
            raise errors.InvalidSettings(f"trail rotate_rows {self.rotate_rows} must be at least 1")
        if not self.rotate_s > 0:
            raise errors.InvalidSettings(f"trail rotate_s {self.rotate_s} must be above 0")
        if self.max_pending < 2:
            raise errors.InvalidSettings(f"trail max_pending {self.max_pending} must be at least 2")


class TrailStatistics(NamedTuple):
    """The counts of a trail at one moment.

    Attributes:
        recorded: events handed to the trail.
        written: events in segments.
        pending: events in memory.
        dropped: events lost to a slow or broken disk; any voids the proof.
        segments: files written.
        disk_errors: segments that could not be written.
    """

    recorded: int
    written: int
    pending: int
    dropped: int
    segments: int
    disk_errors: int
