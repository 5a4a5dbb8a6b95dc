"""How many members of a slot may be claimed: as many as can start now."""

from __future__ import annotations

from collections import deque

import pytest

from emq.fetcher.slot_looks import room
from emq.groups.capacity import Gauge
from emq.groups.owned import OwnedGroup, OwnedSlot, OwnedTopic
from emq.groups.priority import STRICT
from emq.quota.counter import WindowCounter
from emq.storage.message import Message
from emq.topics.model import Kind, Topic


async def ignore(m: Message) -> None:
    pass


def group_with(waits_for_its_key: Message, quota: float) -> OwnedGroup:
    """A group whose key `k` runs, and one more message of that key waits."""
    owner = OwnedTopic(Topic("t", 6.0, kind=Kind.FIXED_TIME, slots=1))
    owner.handler = ignore
    group = OwnedGroup(owner, 0, 1, WindowCounter(quota, 0.0), STRICT, Gauge())
    group.slot, group.buffers = OwnedSlot(group, owner.topic.slot(0)), [deque()]
    group.running["k"] = 0
    if waits_for_its_key.member is None:
        group.retries[0] = 1
    else:
        group.slot.buffered = 1
    group.push(0, [waits_for_its_key])
    assert group.take(0) is None
    assert group.held == 1
    return group


@pytest.mark.parametrize("member", [None, b"member"], ids=["of the lane", "of the slot"])
def test_a_message_that_waits_for_its_key_neither_takes_a_start_nor_gives_one(member: bytes | None) -> None:
    for quota, most in ((0.0, 0), (2.0, 2)):
        group = group_with(Message("m", b"m", key="k", member=member), quota)
        assert group.slot is not None
        assert room(group.slot, 1.0) == most


def test_the_slots_of_a_topic_claim_together_no_more_than_the_topic_may_start() -> None:
    owner = OwnedTopic(Topic("t", 10.0, kind=Kind.FIXED_TIME, slots=4, active_groups=4, groups=4))
    owner.handler = ignore
    slots = []
    for index in range(4):
        group = OwnedGroup(owner, index, 1, owner.counter.join(index, 0.0), STRICT, Gauge())
        group.slot, group.buffers = OwnedSlot(group, owner.topic.slot(index)), [deque()]
        group.capacity = 10
        slots.append(group.slot)
    wanted = []
    for slot in (*slots, *slots):
        wanted.append(room(slot, 1.0))
        owner.coming += wanted[-1]
    assert wanted == [2, 2, 2, 2, 2, 0, 0, 0]
