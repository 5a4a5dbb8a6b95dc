"""When to look at a slot next, and how many of its members can start then."""

from __future__ import annotations

import math

from emq.groups import buffer_room
from emq.groups.owned import OwnedSlot

LOOK_S = 1.0
"""Seconds within which an expired message is found while it waits behind others; see `SlotClaimer`."""
LOOK_MESSAGES = 500
"""Most members that a look for expired members claims from a slot, unless more can start."""
LOOKED_AT_PER_S = 5_000
"""Most members in a second that a host looks at for expiry. If many slots have a backlog, each has its turn less
often."""

HELD_BACK_S = 0.05
"""Seconds until the next look at a slot whose topic has used up its share of the host's memory."""

OTHERS_CLAIM_S = 0.005
"""Seconds until the next look at a slot while claims from other slots of its topic may use up the quota."""


class SlotLooks:
    """Answers for all slots of a host when the claimer looks at a slot next."""

    def __init__(self) -> None:
        self._expiry_s = 0.0

    def next_ms(self, slot: OwnedSlot, now: float) -> float:
        """Return when to look at the slot, in ms since the epoch; 0: now; infinity: after the next change of the slot.

        If more members are due than can start, the slot is marked (`more`, or a place in its topic's `thirsty`), so
        that the claimer hears of the change that lets them start.
        """
        group, owner, now_ms = slot.group, slot.group.owner, now * 1000
        if slot.claiming or group.stopping or slot.unsure or (slot.suspect and slot.settling):
            return math.inf
        if slot.retry_ms > now_ms:
            return slot.retry_ms
        if slot.returning or slot.freed:
            return 0
        if (due_ms := min(slot.next_ms, slot.rest_ms)) > now_ms:
            return due_ms
        if not slot.known or room(slot, now) > 0 or (look_ms := self._expiry_ms(slot, now)) <= now_ms:
            return 0
        if owner.handler is None or slot.thirsty:
            return look_ms  # the slots of a resumed topic are looked at again
        if slot.buffered or group.busy:
            slot.more = True
        elif owner.room() <= owner.coming:
            slot.wait_for_room()
        elif buffer_room.room(group, now) <= 0:
            return min(look_ms, now_ms + HELD_BACK_S * 1000)
        elif group.counter.available(now) > 0:  # for the claims under way, which may find less
            return min(look_ms, now_ms + OTHERS_CLAIM_S * 1000)
        elif (next_at := group.counter.next_at(now)) < math.inf:
            return min(look_ms, next_at * 1000)
        else:
            slot.more = True
        return look_ms

    def _expiry_ms(self, slot: OwnedSlot, now: float) -> float:
        """Return when to look for expired members behind members that cannot start; infinity if none can expire."""
        if not slot.group.owner.topic.may_expire:
            return math.inf
        if not slot.look_ms:
            self._expiry_s = max(self._expiry_s + LOOK_MESSAGES / LOOKED_AT_PER_S, now + LOOK_S)
            slot.look_ms = int(self._expiry_s * 1000)
        return slot.look_ms


def room(slot: OwnedSlot, now: float) -> int:
    """Return how many messages of the slot can start now; 0 while it waits for room, stops, or its topic is paused.

    The number is that of the starts that the group's counter still grants and that no claim from another slot of the
    topic waits for, up to the room in flight and in buffers. It is at most an even part, so that the slots of a
    topic take turns. If messages run one by one, the number is 1, or as many as have run lately without waiting
    (`OwnedSlot.run`).
    """
    group, owner = slot.group, slot.group.owner
    if group.stopping or owner.handler is None or group.busy or slot.thirsty:
        return 0
    allowed = buffer_room.room(group, now)
    if allowed <= 0:
        allowed = buffer_room.scant_room(group, slot.buffered, now)
    ready = group.buffered  # members that wait for their key use up no quota
    if any(group.retries.values()):
        ready = sum([m.member is not None for m in group.buffers[0]])
    left = group.counter.available(now) - owner.coming
    startable = min(left - ready, owner.counter.most - ready, group.capacity - slot.buffered, allowed)
    if group.serial:
        startable = min(startable, slot.run - slot.buffered)
    return max(0, min(startable, owner.room() - owner.coming))
