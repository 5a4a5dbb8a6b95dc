"""The reports of a host's parts: one method for each kind. `emq.host.reports.Reports` acts on them."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from emq.groups.owned import OwnedGroup, OwnedQueue
from emq.runtime import errors
from emq.storage.message import Message

GroupLoop: TypeAlias = Literal["dispatch", "fetch", "lanes", "slots", "settle", "expiry"]
"""The parts of a host that work on group after group, and go on with the next one if a group breaks."""

GROUP_LOOPS: tuple[GroupLoop, ...] = get_args(GroupLoop)


class HostEvents:
    """Receives reports and ignores them, for tests of one part; `emq.host.reports.Reports` overrides the methods.

    All calls return at once.
    """

    # --------------------------------------------------------------------------------------------- what came to a group

    def ready(self, group: OwnedGroup) -> None:
        """Messages of the group can start: some were buffered, or a gate opened."""

    def claimed(self, group: OwnedGroup, id_: str) -> None:
        """A lane's entry, or a slot's member in hand, was claimed: the store has carried out what put it there."""

    def schedule_due(self, group: OwnedGroup, message: Message) -> None:
        """A schedule was claimed from the group's lane: publish its occurrences that are due."""

    def moved(self, group: OwnedGroup, message: Message, body: bytes, now_ms: int) -> None:
        """The key of a claimed entry belongs to another group now: hand the entry on to that group.

        Args:
            body: the stored record.
            now_ms: time of the claim, in milliseconds since the epoch.
        """

    def damaged(self, group: OwnedGroup, message: Message, reason: str) -> None:
        """A stored record could not be decoded; the record is the message's payload."""

    def unstarted(self, group: OwnedGroup, message: Message, *, withdrawn: bool = False) -> None:
        """A message that is not in its group ends without a start: it has expired, or was withdrawn when it was read
        (`emq.groups.withdrawal`)."""

    def drained(self, group: OwnedGroup) -> None:
        """Some of the group's buffers may want to be filled again."""

    # ------------------------------------------------------------------------------------------ what became of messages

    def acknowledged(self, group: OwnedGroup, n: int) -> None:
        """The store has taken the success of `n` messages; they are not in flight any more."""

    def settled(self, group: OwnedGroup, message: Message) -> None:
        """The store has taken the failure or expiry of a message; the message is not in flight any more."""

    def given_back(self, group: OwnedGroup, message: Message, failure: errors.GiveBack) -> None:
        """The handler gave a message back; pause its topic, before the message can start again."""

    def refused(self, group: OwnedGroup, message: Message) -> None:
        """The store refused a message's failure or expiry: the group has a newer owner, which delivers again."""

    def due(self, name: str, due_ms: int) -> None:
        """An entry waits until `due_ms` in the lane of that name, or in the slot of that address.

        0: the store has woken the name, or may have; an entry may be due earlier than when the name was armed.
        """

    def dirty(self, queue: OwnedQueue) -> None:
        """The queue's progress changed for the first time since its last checkpoint."""

    def saved(self) -> None:
        """A checkpoint was saved."""

    # ------------------------------------------------------------------------------------------- what the store told

    def doubted(self, group: OwnedGroup) -> None:
        """Wake-ups of the group may have been lost, or its store came back from a crash."""

    def lost(self, group: OwnedGroup) -> None:
        """The group has a newer owner: start, settle and save nothing more of it here."""

    def ahead(self, group: OwnedGroup, layout: int) -> None:
        """A message was read of a layout that is newer than the topic's, as far as this host knows."""

    def shrunk(self, group: OwnedGroup) -> None:
        """The group's store came back from a crash without messages that were read."""

    def broken(self, loop: GroupLoop, group: OwnedGroup, failure: Exception) -> None:
        """A loop could not go on with the group, because of a bug; start the group again.

        Raises:
            Exception: `failure`, since here no host can start the group again.
        """
        raise failure
