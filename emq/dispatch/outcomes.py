"""The interface by which the dispatcher reports the outcomes of messages."""

from __future__ import annotations

from typing import Protocol

from emq.groups.owned import OwnedGroup
from emq.storage.message import Message


class Outcomes(Protocol):
    """Receives the dispatcher's reports of messages that must be settled in the store."""

    def acknowledge(self, group: OwnedGroup, message: Message) -> None:
        """A message of a lane or a slot has succeeded; it counts as in flight until the store knows."""

    def failed(self, group: OwnedGroup, message: Message, failure: BaseException) -> None:
        """A delivery has failed: retry or dead-letter the message."""

    def expired(self, group: OwnedGroup, message: Message) -> None:
        """A message has outlived its time to live: dead-letter it."""

    def damaged(self, group: OwnedGroup, message: Message, reason: str) -> None:
        """A message could not be decoded: dead-letter it."""
