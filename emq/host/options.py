"""The options of a host."""

from __future__ import annotations

import msgspec

from emq.offsets.checkpointer import CHECKPOINT_S, MAX_UNSAVED_S
from emq.quota.topic_counter import WINDOW_BEGINS_MS

CATALOG_POLL_S = 0.5
"""Seconds between looks at the catalog's version. Each look is one small transaction, whatever the number of topics."""

LAG_S = 10.0
"""Seconds between the end of a count of the lag and the beginning of the next one."""

DRAIN_S = 10.0
"""Seconds that a release waits for messages in flight; the next owner delivers the unsettled ones again."""


class HostOptions(msgspec.Struct, frozen=True):
    """Attributes:
    checkpoint_s: seconds between checkpoints.
    max_unsaved_s: seconds of its quota for which a group goes on while no checkpoint can be saved.
    lag_s: seconds between counts of the lag, each of which finds the topics in trouble.
    drain_s: seconds that a stop or a move waits for messages in flight.
    catalog_poll_s: seconds between looks at the catalog's version.
    max_in_flight: most messages started and not settled here; topics that settle nothing share half of these places.
    window_begins_ms: milliseconds into each second before which topics that count by the second start nothing.
    """

    checkpoint_s: float = CHECKPOINT_S
    max_unsaved_s: float = MAX_UNSAVED_S
    lag_s: float = LAG_S
    drain_s: float = DRAIN_S
    catalog_poll_s: float = CATALOG_POLL_S
    max_in_flight: int = 20_000
    window_begins_ms: float = WINDOW_BEGINS_MS
