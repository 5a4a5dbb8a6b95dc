"""The reports of a part of a host, kept for a test to look at."""

from __future__ import annotations

from typing import Any

from emq.groups.events import HostEvents
from emq.groups.owned import OwnedGroup, OwnedQueue
from emq.storage.message import Message


class RecordedEvents(HostEvents):
    """Keeps each report in the list that is named for it; `broken` raises."""

    def __init__(self) -> None:
        self.buffered: list[OwnedGroup] = []
        self.schedules: list[tuple[OwnedGroup, Message]] = []
        self.moves: list[tuple[Any, ...]] = []
        self.damages: list[tuple[OwnedGroup, Message, str]] = []
        self.losses: list[OwnedGroup] = []
        self.shrinks: list[OwnedGroup] = []
        self.changes: list[OwnedQueue] = []
        self.settles: list[str] = []
        self.refusals: list[str] = []
        self.successes = 0
        self.waits: list[tuple[str, int]] = []
        self.lanes: list[str] = []
        self.slots: list[str] = []
        self.doubts: list[str] = []

    def ready(self, group: OwnedGroup) -> None:
        self.buffered.append(group)

    def schedule_due(self, group: OwnedGroup, message: Message) -> None:
        self.schedules.append((group, message))

    def moved(self, group: OwnedGroup, message: Message, body: bytes, now_ms: int) -> None:
        self.moves.append((group, message, body, now_ms))

    def damaged(self, group: OwnedGroup, message: Message, reason: str) -> None:
        self.damages.append((group, message, reason))

    def lost(self, group: OwnedGroup) -> None:
        self.losses.append(group)

    def shrunk(self, group: OwnedGroup) -> None:
        self.shrinks.append(group)

    def dirty(self, queue: OwnedQueue) -> None:
        self.changes.append(queue)

    def acknowledged(self, group: OwnedGroup, n: int) -> None:
        self.successes += n

    def settled(self, group: OwnedGroup, message: Message) -> None:
        self.settles.append(message.id)

    def refused(self, group: OwnedGroup, message: Message) -> None:
        self.refusals.append(message.id)

    def due(self, name: str, due_ms: int) -> None:
        if due_ms:
            self.waits.append((name, due_ms))
        else:
            (self.slots if name.endswith("/") else self.lanes).append(name)

    def doubted(self, group: OwnedGroup) -> None:
        self.doubts.append(group.name)
