"""The gate: a message of a key that has moved waits until its key's former groups have nothing left of it."""

from __future__ import annotations

from collections import deque

import msgspec
import pytest

from emq.groups import priority
from emq.groups.capacity import Gauge
from emq.groups.owned import OwnedGroup, OwnedTopic
from emq.quota.counter import WindowCounter
from emq.storage.message import Message
from emq.topics.key_layouts import KeyGate, group_of_key
from emq.topics.model import Layout, Topic

KEY = next(key for key in map(str, range(1_000)) if [group_of_key(key, n) for n in (2, 3, 5)] == [1, 2, 4])
"""Of the second, third and last group among two, three and five."""

TOPIC = msgspec.structs.replace(
    Topic("t", 100, active_groups=5, groups=5), layout=2, earlier=(Layout(0, 2), Layout(1, 3))
)


def held(passed: dict[int, int], layout: int = 2, group: int = 4) -> bool:
    return KeyGate(TOPIC, passed).holds(Message("m", b"", KEY, layout=layout), group)


def test_a_message_waits_for_each_former_group_of_its_key() -> None:
    assert held({})
    assert held({1: 0})
    assert held({2: 1})
    assert not held({1: 0, 2: 1})
    assert held({0: 1, 3: 1, 4: 1}), "those of other keys do not matter"


def test_a_message_waits_only_for_layouts_older_than_its_own() -> None:
    assert held({}, layout=1, group=2)
    assert not held({1: 0}, layout=1, group=2)
    assert not held({}, layout=0, group=1)


def test_a_group_does_not_wait_for_itself_nor_for_one_that_is_gone() -> None:
    assert not held({1: 0}, group=2)
    smaller = msgspec.structs.replace(TOPIC, groups=2, active_groups=2)
    assert not KeyGate(smaller, {1: 0}).holds(Message("m", b"", KEY, layout=2), 1)


@pytest.mark.parametrize("passed", [{}, dict.fromkeys(range(5), 9)])
def test_what_was_routed_by_a_layout_that_the_host_does_not_know_waits(passed: dict[int, int]) -> None:
    """Its key's former group may be one that the host takes for its present one."""
    assert held(passed, layout=3)


def owned(*messages: Message) -> OwnedGroup:
    """Group 4 with messages that were looked at, behind a gate that knows of no group that has passed."""
    owner = OwnedTopic(TOPIC)
    group = owner.groups[4] = OwnedGroup(owner, 4, 1, WindowCounter(50, 0), priority.STRICT, Gauge())
    group.buffers = [deque()]
    owner.set_gate(KeyGate(TOPIC), 0)
    group.push(0, list(messages))
    while group.take(0) is not None:
        pass
    return group


def waiting(id_: str, key: str = KEY, layout: int = 2) -> Message:
    return Message(id_, b"", key, offset=1, ready_us=7, layout=layout)


def test_what_the_gate_held_back_is_ready_when_the_gate_opens() -> None:
    older, newer = waiting("a", layout=1), waiting("b")
    owner = owned(older, newer).owner
    owner.set_gate(KeyGate(TOPIC, {1: 0}), 100)
    assert (older.ready_us, newer.ready_us) == (100, 100), "the first is let through; the second was held until now"
    owner.set_gate(KeyGate(TOPIC, {1: 0, 2: 1}), 200)
    assert (older.ready_us, newer.ready_us) == (100, 200)
    owner.set_gate(None, 300)
    assert (older.ready_us, newer.ready_us) == (100, 200)


def test_what_the_gate_holds_on_is_ready_when_there_is_no_gate_any_more() -> None:
    held = waiting("a")
    owner = owned(held).owner
    owner.set_gate(KeyGate(TOPIC, {1: 0}), 100)
    assert held.ready_us == 7
    owner.set_gate(None, 200)
    assert held.ready_us == 200


def test_what_waits_for_its_running_key_alone_was_ready_all_the_time() -> None:
    second = waiting("b", layout=0)
    group = owned(waiting("a", layout=0), second)
    assert group.held == 1, "the first runs"
    group.owner.set_gate(None, 100)
    assert second.ready_us == 7
