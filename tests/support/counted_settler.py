"""A settler of which a test waits until it has settled all that it was given."""

from __future__ import annotations

from emq.dispatch.settler import Settler
from emq.groups.context import HostContext
from emq.groups.owned import OwnedGroup
from emq.runtime.clock import Clock
from emq.storage.message import Message
from emq.storage.store import Store
from support.recorded_events import RecordedEvents
from support.waiting import until


class CountedSettler(Settler):
    """A settler that counts the messages it was given, to compare them with those of which `events` heard the end."""

    def __init__(self, store: Store, clock: Clock, events: RecordedEvents) -> None:
        super().__init__(store.lanes, store.sorted, HostContext(clock, events))
        self._heard = events
        self._given = 0

    def acknowledge(self, group: OwnedGroup, m: Message) -> None:
        self._given += 1
        super().acknowledge(group, m)

    def failed(self, group: OwnedGroup, m: Message, failure: BaseException) -> None:
        self._given += 1
        super().failed(group, m, failure)

    def expired(self, group: OwnedGroup, m: Message) -> None:
        self._given += 1
        super().expired(group, m)

    def damaged(self, group: OwnedGroup, m: Message, reason: str) -> None:
        self._given += 1
        super().damaged(group, m, reason)

    async def idle(self) -> None:
        """Return once nothing waits to be settled."""
        await until(self._is_idle)

    def _is_idle(self) -> bool:
        heard = self._heard
        return heard.successes + len(heard.settles) + len(heard.refusals) == self._given
