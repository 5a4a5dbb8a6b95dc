"""Messages that were taken and put back: their order, also among the messages of their keys."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any, cast

from emq.groups.capacity import Gauge
from emq.groups.priority import STRICT
from emq.groups.waiting_messages import WaitingMessages
from emq.storage.message import Message


def group_of(*messages: Message) -> WaitingMessages:
    group = WaitingMessages(0, STRICT, Gauge())
    group.owner = cast(Any, SimpleNamespace(gate=None))
    group.slot = None
    group.buffers = [deque(), deque()]
    for priority in (0, 1):
        if mine := [m for m in messages if m.priority == priority]:
            group.push(priority, mine)
    return group


def message(name: str, offset: int, key: str | None = None, priority: int = 1) -> Message:
    return Message(name, b"x", key, priority=priority, offset=offset, size=1)


def take(group: WaitingMessages, now_us: int) -> Message:
    found = group.take(now_us)
    assert found is not None
    found.started_us = now_us
    return found


def rest(group: WaitingMessages) -> str:
    found = ""
    while (m := group.take(1000)) is not None:
        found += m.id
        if m.key is not None:
            group.release_key(m.key)
    return found


def test_messages_come_back_in_the_order_in_which_they_started() -> None:
    group = group_of(*(message(name, i) for i, name in enumerate("abcdef")))
    a, b, c, d = (take(group, 10 + i // 2) for i in range(4))
    for m in (c, a, d, b):
        group.put_back(m, 20)
    assert (group.buffered, group.gauge.messages, group.gauge.bytes) == (6, 6, 6)
    assert rest(group) == "abcdef"
    assert (group.buffered, group.gauge.messages, group.gauge.bytes) == (0, 0, 0)


def test_a_message_that_came_back_stays_before_the_others_of_its_key() -> None:
    group = group_of(*(message(name, i, "k") for i, name in enumerate("abc")))
    a = take(group, 10)
    assert group.take(11) is None, "the others wait for their key"
    group.put_back(a, 20)
    group.push(0, [message("u", 0, "k", priority=0)])
    u = take(group, 30)
    assert u.id == "u", "the higher priority goes first"
    assert group.take(31) is None
    group.release_key("k")
    assert rest(group) == "abc"


def test_a_retry_that_came_back_is_counted_again() -> None:
    group = group_of()
    retry = message("r", -1)
    group.count(retry)
    group.push(1, [retry])
    assert take(group, 10) is retry
    assert group.retries == {1: 0}
    group.put_back(retry, 20)
    assert (group.retries, retry.ready_us) == ({1: 1}, 20)
