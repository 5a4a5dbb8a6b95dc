"""What an owned group of a sorted topic claims from. State only, as in `emq.groups.owned`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from emq.storage.slot_store import Slot, SlotKind

if TYPE_CHECKING:
    from emq.groups.owned import Claims, OwnedGroup
    from emq.message import Message


class OwnedSlot:
    """What a group of a sorted topic claims from.

    Attributes:
        slot: its name and rules in the store.
        address: its name among wake-ups.
        buffered: messages claimed and not started.
        held: members claimed and not settled, with how many claims of each: an acknowledgement may be under way while
            its twin has been claimed.
        done: (member, token) of those that were handled and wait to be acknowledged.
        expected: messages that the next claim will find, going by the last one.
        size: bytes of one message, going by the last ones; 0 before the first.
        look_ms: when what waits behind those that cannot start yet is looked at for what has expired; 0: not planned.
        more: members are due beyond what could start when it was claimed from.
        known: it was claimed from since it was acquired, so the store is armed or has woken it.
        run: where one message runs at a time: how many may be claimed at once, since those before ran one behind the
            other without waiting.
        waited: the handler of its last message did not end at once.
        thirsty: it is in its topic's `thirsty`.
        claims: whom to tell of keys in `freed`; None before it was acquired.
        freed: keys that run no more, and count as running until the store was asked about what waited for them.
        rest_ms: when the first of its resting members is to be brought back, as far as is known; 0 for none.
        returning: messages that were claimed and cannot start now; they go back before the next claim.
        claiming: it is with a claim under way.
        again: it was woken meanwhile.
        suspect: the seconds in which claims were made whose answers were lost, so that members may be in prepare that
            nobody has.
        settling: calls under way that settle its members.
        unsure: of these, those whose answer was lost and that are to be repeated. No claim begins before they are
            known, so that a repeated verdict cannot meet a newer claim of the same second, which looks the same.
    """

    __slots__ = (
        "address",
        "again",
        "buffered",
        "claiming",
        "claims",
        "done",
        "expected",
        "freed",
        "group",
        "held",
        "known",
        "look_ms",
        "more",
        "rest_ms",
        "returning",
        "run",
        "settling",
        "size",
        "slot",
        "suspect",
        "thirsty",
        "unsure",
        "waited",
    )

    def __init__(self, group: OwnedGroup, slot: Slot) -> None:
        self.group = group
        self.slot = slot
        self.address = slot.address
        self.buffered = 0
        self.held: dict[bytes, int] = {}
        self.done: list[tuple[bytes, int]] = []
        self.expected = 1
        self.size = 0.0
        self.more = False
        self.known = False
        self.look_ms = 0
        self.run = 1
        self.waited = False
        self.thirsty = False
        self.claims: Claims | None = None
        self.freed: dict[str, None] = {}
        self.rest_ms = 0
        self.returning: list[Message] = []
        self.claiming = False
        self.again = False
        self.suspect: set[int] = set()
        self.settling = 0
        self.unsure = 0

    def hold(self, members: Iterable[bytes]) -> None:
        held = self.held
        for member in members:
            held[member] = held.get(member, 0) + 1

    def let_go(self, members: Iterable[bytes]) -> None:
        held = self.held
        for member in members:
            left = held.get(member, 0) - 1
            if left > 0:
                held[member] = left
            else:
                held.pop(member, None)

    def until_ms(self, now_ms: int) -> int:
        """What is due up to when a claim at `now_ms` takes: by the second for fixed times of that precision."""
        return now_ms - now_ms % 1000 if self._by_second() else now_ms

    def due_ms(self, score: float | None) -> int | None:
        """When a member of that score may be claimed; None for no member."""
        if score is None:
            return None
        if self.slot.kind is SlotKind.PRIORITY:
            return 0
        return math.ceil(score / 1000) * 1000 if self._by_second() else math.ceil(score)

    def _by_second(self) -> bool:
        return self.slot.kind is SlotKind.FIXED_TIME and self.group.owner.topic.options.precision == "second"
