"""The work on the groups of a host: the parts that fetch, start, settle and save their messages."""

from __future__ import annotations

from emq.dispatch.dispatcher import Dispatcher
from emq.dispatch.expiry import Expiry
from emq.dispatch.settler import Settler
from emq.fetcher.forwarder import Forwarder
from emq.fetcher.lane_claimer import LaneClaimer
from emq.fetcher.puller import Puller
from emq.fetcher.readiness import Readiness
from emq.fetcher.slot_claimer import SlotClaimer
from emq.groups.context import HostContext
from emq.groups.owned import OwnedGroup
from emq.host.options import HostOptions
from emq.host.surroundings import Storage
from emq.offsets.checkpointer import Checkpointer
from emq.timetable.firing import Firing


class GroupWork:
    """The parts of a host that work on its groups; `Ownership` tells them of each group.

    Messages pass them in this order: `readiness` and `puller` fetch from queues, `lanes` and `slots` claim retries,
    delays and members; `firing`, `forwarder` and `expiry` take out entries that are not for a handler; `dispatcher`
    starts the rest; `settler` tells the stores the outcomes; `checkpointer` saves the progress.
    """

    def __init__(self, storage: Storage, context: HostContext, options: HostOptions) -> None:
        store = storage.store
        self.gauge = context.gauge
        self.checkpointer = Checkpointer(
            storage.checkpoints, store.log, context, options.checkpoint_s, options.max_unsaved_s
        )
        self.readiness = Readiness(self.checkpointer.soon, context.events)
        self.lanes = LaneClaimer(store.lanes, context)
        self.slots = SlotClaimer(store.sorted, context)
        self.firing = Firing(store.lanes, store.sorted, context)
        self.forwarder = Forwarder(store.lanes, storage.catalog.get, context)
        self.expiry = Expiry(context)
        self.settler = Settler(store.lanes, store.sorted, context)
        self.dispatcher = Dispatcher(self.settler, context, options.max_in_flight, self.slots)
        self.puller = Puller(store.log, self.readiness, context, self.dispatcher.has_few)
        self.endings = self.dispatcher.endings

    def unsettled(self, group: OwnedGroup) -> int:
        """Count the group's messages in flight, schedules being fired and entries being handed on."""
        return self.dispatcher.unsettled(group) + self.firing.unsettled(group) + self.forwarder.unsettled(group)
