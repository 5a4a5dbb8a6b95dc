"""The objects that every part of a host shares."""

from __future__ import annotations

import dataclasses

from emq.groups.capacity import Gauge
from emq.groups.deliveries import HandlerDeliveries
from emq.groups.events import HostEvents
from emq.groups.records import Records
from emq.runtime.clock import Clock
from emq.runtime.lease import Lease
from emq.trail.sink import NullTrail, TrailSink


@dataclasses.dataclass(frozen=True, slots=True)
class HostContext:
    """Attributes:
    clock: the host's clock, which follows the environment's time.
    events: receives the reports of the parts.
    trail: records the events of messages.
    lease: the host reads, claims and starts nothing after the lease has ended.
    gauge: counts the messages and bytes that the host buffers.
    deliveries: counts the deliveries to each handler; None on a host without metrics.
    records: written before the host saves that messages are finished.
    """

    clock: Clock
    events: HostEvents = dataclasses.field(default_factory=HostEvents)
    trail: TrailSink = dataclasses.field(default_factory=NullTrail)
    lease: Lease = dataclasses.field(default_factory=Lease)
    gauge: Gauge = dataclasses.field(default_factory=Gauge)
    deliveries: HandlerDeliveries | None = None
    records: Records = dataclasses.field(default_factory=Records)
