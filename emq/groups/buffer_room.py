"""How many more messages a group may buffer, while the memory of the host is short."""

from __future__ import annotations

import math

from emq.groups.owned import OwnedGroup
from emq.quota.places import sharing

UNKNOWN_BYTES = 4096
"""Assumed size of a message, in bytes, before its group has read any."""

SOON_S = 0.1
"""Seconds after which a group that waited for memory surely reads again."""

SCANT_BYTES = 1 << 20
"""Most bytes of a queue that a quick topic has in memory beyond its share; one message may be larger."""


def room(group: OwnedGroup, now: float) -> int:
    """Return how many more messages the group may buffer and leave room for all topics; 0 or less for none."""
    gauge = group.gauge
    if not gauge.pressed():
        return gauge.max_messages
    owner, waiting = group.owner, group.buffered + group.held
    hold_s = owner.pace.hold_s(int(now * 1e6)) if owner.pace.known else math.inf
    messages = sharing.room(sharing.ceiling(gauge.max_messages, hold_s), gauge.messages, waiting)
    size = group.mean_bytes or UNKNOWN_BYTES
    held_bytes = int(waiting * group.mean_bytes) + owner.flying
    room_bytes = sharing.room(sharing.ceiling(gauge.max_bytes, hold_s), gauge.bytes + gauge.flying, held_bytes)
    return min(messages, int(room_bytes // size))


def scant_room(group: OwnedGroup, buffered: int, now: float) -> int:
    """Return how many more messages to buffer for a queue, lane or slot if `room` returns none.

    A topic with nothing in flight may have one message, a quick topic as many as it starts before it can read again.
    Otherwise tenants that hang with large messages would slow all others down.

    Args:
        buffered: messages that the host has buffered of this queue, lane or slot.
    """
    owner = group.owner
    hold_s = owner.pace.hold_s(int(now * 1e6))
    if not owner.pace.known or hold_s > sharing.UNKNOWN_S:
        return int(not buffered and not owner.flying)
    few = min(math.ceil(group.quota * (hold_s + SOON_S)), int(SCANT_BYTES // (group.mean_bytes or UNKNOWN_BYTES)))
    return max(1, few) - buffered - group.in_flight
