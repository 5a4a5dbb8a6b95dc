"""Messages that a handler's `withdraws` ends when the host reads them, before they start."""

from __future__ import annotations

from emq.groups.events import HostEvents
from emq.groups.owned import OwnedGroup
from emq.storage.message import Message


def kept(group: OwnedGroup, messages: list[Message], events: HostEvents) -> list[Message]:
    """Return the messages that may start; report the withdrawn ones."""
    withdraws = group.owner.withdraws
    if withdraws is None:
        return messages
    found = []
    for message in messages:
        if withdraws(message):
            events.unstarted(group, message, withdrawn=True)
        else:
            found.append(message)
    return found
