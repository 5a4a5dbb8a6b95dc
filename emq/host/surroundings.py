"""The surroundings of a host: the places of its data, and the services that it uses."""

from __future__ import annotations

import dataclasses

from emq.groups.capacity import Gauge
from emq.groups.context import HostContext
from emq.groups.deliveries import HandlerDeliveries
from emq.groups.events import HostEvents
from emq.groups.records import Records
from emq.host.neighbours import Neighbours
from emq.offsets.checkpoints import CheckpointStore
from emq.runtime.clock import Clock, SystemClock
from emq.runtime.lease import Lease
from emq.runtime.timekeeping import Timekeeper
from emq.storage.store import Store
from emq.topics.catalog import Catalog
from emq.trail.sink import NullTrail, TrailSink


@dataclasses.dataclass(frozen=True, slots=True)
class Storage:
    """Attributes:
    store: keeps the messages.
    catalog: knows the topics.
    checkpoints: keeps the progress of the queues, in the database of the catalog.
    """

    store: Store
    catalog: Catalog
    checkpoints: CheckpointStore


@dataclasses.dataclass(frozen=True, slots=True)
class Services:
    """Attributes:
    clock: tells the time.
    timekeeper: sets the clock by the environment's time; None to trust the clock as it is.
    neighbours: finds hosts that consume from the same store; None for a store that only one host can open.
    trail: records the events of messages.
    deliveries: counts the deliveries to each handler, for metrics; None without metrics.
    records: written before the host saves that messages are finished.
    """

    clock: Clock = dataclasses.field(default_factory=SystemClock)
    timekeeper: Timekeeper | None = None
    neighbours: Neighbours | None = None
    trail: TrailSink = dataclasses.field(default_factory=NullTrail)
    deliveries: HandlerDeliveries | None = None
    records: Records = dataclasses.field(default_factory=Records)

    def context(self, events: HostEvents, lease: Lease) -> HostContext:
        """Return what every part of a host shares.

        Args:
            events: receives the reports of the parts.
            lease: ends the host's right to start messages.
        """
        return HostContext(self.clock, events, self.trail, lease, Gauge(), self.deliveries, self.records)
