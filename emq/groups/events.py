"""What the parts of a host report: each method is one kind of report; `emq.host.host.Host` says what follows."""

from __future__ import annotations

from collections.abc import Iterable

from emq.groups.owned import OwnedGroup, OwnedQueue
from emq.message import Message


class HostEvents:
    """Nothing follows from a report here: for tests of one part. A host does what each report asks for.

    All calls return at once.
    """

    # --------------------------------------------------------------------------------------------- what came to a group

    def ready(self, group: OwnedGroup) -> None:
        """Messages of the group can start: some were buffered, or a gate opened."""

    def expiring(self, group: OwnedGroup) -> None:
        """Some of the group's buffered messages have a time to live."""

    def claimed(self, group: OwnedGroup, id_: str) -> None:
        """An entry of the group's lane was claimed, which proves that the entry had been put there."""

    def schedule_due(self, group: OwnedGroup, message: Message) -> None:
        """A schedule was claimed from the group's lane: publish what is due of the schedule."""

    def moved(self, group: OwnedGroup, message: Message, body: bytes, now_ms: int) -> None:
        """An entry was claimed whose key belongs to another group by now: hand the entry on.

        Args:
            body: the stored record.
            now_ms: time of the claim.
        """

    def damaged(self, group: OwnedGroup, message: Message, reason: str) -> None:
        """A stored record could not be decoded; the record is the message's payload."""

    def expired(self, group: OwnedGroup, message: Message) -> None:
        """A message has outlived its time to live, and was taken out of its group."""

    def drained(self, group: OwnedGroup) -> None:
        """Some of the group's buffers may want to be filled again."""

    # ------------------------------------------------------------------------------------------ what became of messages

    def acknowledged(self, group: OwnedGroup, n: int) -> None:
        """The store knows of the success of `n` messages; they are in flight no more."""

    def settled(self, group: OwnedGroup, message: Message) -> None:
        """The store has taken the failure or expiry of a message; the message is in flight no more."""

    def refused(self, group: OwnedGroup, message: Message) -> None:
        """The store did not take a failure or expiry, because the group has a newer owner, who delivers again."""

    def due(self, name: str, due_ms: int) -> None:
        """Something waits until `due_ms` in the lane of that name, or in the slot of that address."""

    def dirty(self, queue: OwnedQueue) -> None:
        """The queue's progress changed for the first time since its last checkpoint."""

    def saved(self) -> None:
        """A checkpoint was saved."""

    # ------------------------------------------------------------------------------------------- what the store told

    def lanes_woken(self, names: Iterable[str]) -> None:
        """These lanes have something that is due earlier than they were armed with."""

    def slots_woken(self, addresses: Iterable[str]) -> None:
        """The slots of these addresses have something in front of what they were armed with."""

    def doubted(self, group: OwnedGroup) -> None:
        """Wake-ups of the group may have been lost, or its store came back from a crash."""

    def lost(self, group: OwnedGroup) -> None:
        """The group has a newer owner; nothing of the group is started, settled or saved here any more."""

    def shrunk(self, group: OwnedGroup) -> None:
        """The group's store came back from a crash without messages that were read."""

    def broken(self, loop: str, group: OwnedGroup, failure: Exception) -> None:
        """A loop could not go on with the group, because of a bug. Raises `failure` where nobody can start it again."""
        raise failure
