"""The state of a slot, from which a group of a sorted topic claims."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from emq.storage.message import Message
from emq.storage.slot_store import Slot


@dataclass(slots=True, eq=False, repr=False)
class SlotState:
    """The host's knowledge of a slot: the set of members, sorted by score, from which a group of a sorted topic claims.

    Attributes:
        slot: the slot's name and rules in the store.
        address: the slot's name in wake-ups.
        buffered: number of messages claimed and not started.
        held: members claimed and not settled, with the number of claims of each: an equal member may be claimed while
            the first one is being acknowledged.
        done: (member, token) of the handled messages that wait to be acknowledged.
        expected: messages that the next claim may find, estimated from the last claim.
        size: bytes of one message, averaged over the last ones; 0 before the first.
        look_ms: when to look for expired members behind members that cannot start yet; 0 for no look.
        more: at the last claim, more members were due than could start.
        known: the host has claimed from the slot since it acquired the group, so the store is armed or has woken it.
        run: if one message runs at a time: how many to claim at once; more than one after handlers that did not wait.
        waited: the handler of the slot's last message did not end at once.
        thirsty: the slot is in its topic's `thirsty`.
        freed: keys whose message has ended. They count as running until the store has told whether the messages that
            wait for them were sent again.
        next_ms: when the next waiting member may be claimed, as far as is known; infinity: the store is to wake us.
        rest_ms: when to bring back the first of the slot's resting members, as far as is known; infinity for none.
        retry_ms: until then the slot is left alone, because the store could not serve it.
        returning: messages that were claimed and cannot start now; they go back before the next claim.
        claiming: a claim from the slot is under way.
        suspect: seconds of claims whose answers were lost. Members of these claims may be in prepare without any host
            having them.
        settling: number of calls under way that settle members of the slot. No roll-back for a lost claim begins
            before they end: one of them may have settled a member that the lost claim took again.
        unsure: number of verdicts in doubt: their answers were lost, and they will be sent again. No claim begins
            before that: a repeated verdict could act on a newer claim of the same second, which has the same token.
    """

    slot: Slot
    address: str = field(init=False)
    buffered: int = 0
    held: dict[bytes, int] = field(default_factory=dict)
    done: list[tuple[bytes, int]] = field(default_factory=list)
    expected: int = 1
    size: float = 0.0
    more: bool = False
    known: bool = False
    look_ms: int = 0
    run: int = 1
    waited: bool = False
    thirsty: bool = False
    freed: dict[str, None] = field(default_factory=dict)
    next_ms: float = 0
    rest_ms: float = math.inf
    retry_ms: int = 0
    returning: list[Message] = field(default_factory=list)
    claiming: bool = False
    suspect: set[int] = field(default_factory=set)
    settling: int = 0
    unsure: int = 0

    def __post_init__(self) -> None:
        self.address = self.slot.address

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

    def lost_claim(self, second: int) -> None:
        """Note that the answer of a claim was lost: its members may be in prepare, but no host has them."""
        self.suspect.add(second)
        self.next_ms = 0

    def begin_settling(self) -> None:
        """A call that settles members of the slot is under way."""
        self.settling += 1

    def end_settling(self) -> None:
        self.settling -= 1
        if self.suspect and not self.settling:
            self.look()

    def begin_doubt(self) -> None:
        """The answer to a verdict was lost; it will be sent again."""
        self.unsure += 1

    def end_doubt(self) -> None:
        self.unsure -= 1
        if not self.unsure:
            self.look()

    def look(self) -> None:
        """The slot has changed: plan the next look at it."""

    def forget(self) -> None:
        """Forget the claimed members: the group is being released."""
        self.buffered = 0
        self.held.clear()
        self.returning.clear()
        self.freed.clear()
