"""Messages that a handler's `withdraws` ends when the host reads them, before they start."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from emq.storage.message import Message

if TYPE_CHECKING:
    from emq.groups.events import HostEvents
    from emq.groups.owned import OwnedGroup

log = logging.getLogger(__name__)

TELL_S = 10.0
"""Least seconds between two log lines about a function that fails."""


class Withdraws:
    """Calls a function that says whether a message is withdrawn. If the call fails, the message is not withdrawn."""

    def __init__(self, function: Callable[[Message], object]) -> None:
        self._function = function
        self._told_at = -math.inf

    def __call__(self, message: Message) -> bool:
        try:
            return bool(self._function(message))
        except (Exception, asyncio.CancelledError):  # such as the `result()` of a task that was cancelled
            if (now := time.monotonic()) >= self._told_at + TELL_S:
                self._told_at = now
                log.exception("`withdraws` of topic %r failed; the message %s may start", message.topic, message.uid)
            return False


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
