"""The loops of a host that ownership tells about groups that come and go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from emq.dispatch.dispatcher import Dispatcher
from emq.dispatch.expiry import Expiry
from emq.fetcher.forwarder import Forwarder
from emq.fetcher.lane_claimer import LaneClaimer
from emq.fetcher.readiness import Readiness
from emq.fetcher.slot_claimer import SlotClaimer
from emq.groups.owned import OwnedGroup
from emq.offsets.checkpointer import Checkpointer
from emq.timetable.firing import Firing


class Loops(NamedTuple):
    """The loops that ownership tells about groups that come and go.

    Attributes:
        look: reads the catalog if the catalog has changed.
    """

    readiness: Readiness
    lanes: LaneClaimer
    slots: SlotClaimer
    dispatcher: Dispatcher
    expiry: Expiry
    firing: Firing
    forwarder: Forwarder
    checkpointer: Checkpointer
    look: Callable[[], Awaitable[object]]

    def unsettled(self, group: OwnedGroup) -> int:
        """Count the group's messages in flight, schedules being fired and entries being handed on."""
        return self.dispatcher.unsettled(group) + self.firing.unsettled(group) + self.forwarder.unsettled(group)
