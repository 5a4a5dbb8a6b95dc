"""What every part of a host is given."""

from __future__ import annotations

import dataclasses

from emq.clock import Clock
from emq.groups.events import HostEvents
from emq.groups.owned import Gauge
from emq.loops.lease import Lease
from emq.trail.sink import NullTrail, TrailSink


@dataclasses.dataclass(frozen=True, slots=True)
class HostContext:
    """Attributes:
    clock: the host's, kept by the environment's time.
    events: whom the part reports to.
    trail: where events of messages are recorded.
    lease: past its end nothing is read, claimed or started.
    gauge: how much the host has buffered.
    """

    clock: Clock
    events: HostEvents = dataclasses.field(default_factory=HostEvents)
    trail: TrailSink = dataclasses.field(default_factory=NullTrail)
    lease: Lease = dataclasses.field(default_factory=Lease)
    gauge: Gauge = dataclasses.field(default_factory=Gauge)
