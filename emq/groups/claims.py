"""What the dispatcher tells whoever claims from slots."""

from __future__ import annotations

from emq.groups.owned import OwnedGroup, OwnedTopic


class Claims:
    """Claims from slots, as the dispatcher sees them: it reports when messages cannot start, and when they can again.

    The host claims nothing ahead from a slot: members that wait in the slot merge with later publishes, and claimed
    messages do not.
    """

    def stuck(self, group: OwnedGroup, room: bool = False) -> None:
        """The claimed messages of the group cannot start now; `room`: because the topic has no room in flight."""

    def has_room(self, owner: OwnedTopic) -> None:
        """The topic has room in flight again, and slots that wait for room."""
