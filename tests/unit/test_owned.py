"""What a host holds of a group: priorities, keys, and how much is buffered."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emq.groups import buffer_room
from emq.groups.capacity import Gauge, buffer_capacity, in_flight_limit
from emq.groups.nothing import NOTHING
from emq.groups.offset_tracker import OffsetTracker
from emq.groups.owned import OwnedGroup, OwnedQueue, OwnedTopic
from emq.groups.priority import policy_for
from emq.groups.reading_ahead import startable
from emq.quota.counter import WindowCounter
from emq.storage.message import Message
from emq.topics.model import Topic, TopicOptions, split


def group(priorities: int = 3, gauge: Gauge | None = None, **options: object) -> OwnedGroup:
    topic = Topic("t", 50.0, priorities=tuple("abcdefgh"[:priorities]), options=TopicOptions(**options))  # type: ignore[arg-type]
    made = OwnedGroup(OwnedTopic(topic), 0, 1, WindowCounter(50, 0), policy_for(topic), gauge or Gauge())
    made.buffers = [deque() for _ in range(priorities)]
    return made


def messages(keys: str, first: int = 1, priority: int = 0) -> list[Message]:
    """One message for each character, which is its key; `.` stands for none."""
    return [
        Message(f"{priority}:{first + i}", b"", None if k == "." else k, priority=priority, offset=first + i)
        for i, k in enumerate(keys)
    ]


def taken(g: OwnedGroup, n: int = 100) -> list[str]:
    found: list[str] = []
    while len(found) < n and (m := g.take(0)) is not None:
        found.append(m.id)
    return found


def test_the_highest_priority_is_taken_first_and_each_in_order() -> None:
    g = group()
    for priority in (2, 0, 1):
        g.push(priority, messages("..", priority=priority))
    assert taken(g) == ["0:1", "0:2", "1:1", "1:2", "2:1", "2:2"]
    assert g.take(0) is None


def test_a_message_whose_key_runs_waits_and_others_pass_it() -> None:
    g = group(1)
    g.push(0, messages("aab.a"))
    assert taken(g) == ["0:1", "0:3", "0:4"]
    assert (g.buffered, g.held) == (0, 2)
    g.finish_key("b")
    assert taken(g) == []
    g.finish_key("a")
    assert taken(g) == ["0:2"]
    g.push(0, messages("a", first=6))
    g.finish_key("a")
    assert taken(g) == ["0:5"]
    g.finish_key("a")
    assert taken(g) == ["0:6"]
    g.finish_key("a")
    assert (g.buffered, g.held, g.blocked, g.running) == (0, 0, {}, {})


def test_order_within_a_priority_survives_another_priority_of_the_key_in_between() -> None:
    g = group(2)
    g.push(1, messages("aaa", priority=1))
    assert taken(g) == ["1:1"]
    g.finish_key("a")  # the second is ready again ...
    g.push(0, messages("a"))
    assert taken(g, 1) == ["0:1"]  # ... but the other priority goes before it
    g.finish_key("a")
    assert taken(g) == ["1:2"]
    g.finish_key("a")
    assert taken(g) == ["1:3"]


def test_a_retry_of_a_running_key_waits_too() -> None:
    g = group(1)
    g.push(0, messages("aa"))
    assert taken(g) == ["0:1"]
    retry = Message("retry", b"", "a", offset=-1)
    g.retries[0] = 1
    g.push(0, [retry])
    assert taken(g) == []
    g.finish_key("a")
    g.finish_key("a")
    assert len(taken(g)) == 1
    g.finish_key("a")
    assert len(taken(g)) == 1
    assert g.retries == {0: 0}


def test_what_is_buffered_is_counted_on_the_gauge_and_forgotten_by_discard() -> None:
    gauge = Gauge(max_messages=4, max_bytes=100)
    g = group(2, gauge)
    g.push(0, [Message("x", b"12345", "k", offset=1, size=5), Message("y", b"12345", "k", offset=2, size=5)])
    g.push(1, [Message("z", b"1234567", priority=1, offset=1, size=7)])
    assert (gauge.messages, gauge.bytes) == (3, 17)
    taken(g)
    assert (gauge.messages, gauge.bytes, g.held) == (1, 5, 1)
    g.push(0, [Message("x", b"x" * 95, offset=3, size=95)])
    assert buffer_room.room(g, 0) <= 0
    g.discard()
    assert (gauge.messages, gauge.bytes, g.buffered, g.held) == (0, 0, 0, 0)
    assert g.take(0) is None


def test_in_full_memory_a_quick_topic_buffers_what_it_starts_until_it_reads_again() -> None:
    gauge = Gauge(max_bytes=1_000_000)
    g = group(1, gauge)
    g.quota = 50
    gauge.bytes = 2_000_000
    assert buffer_room.room(g, 0) <= 0
    assert [buffer_room.scant_room(g, buffered, 0) for buffered in (0, 1)] == [1, 0]
    for _ in range(20):
        g.owner.pace.began(0)
        g.owner.pace.ended(0, 50_000)
    assert buffer_room.scant_room(g, 0, 0.05) == 8  # of 0.15 s
    assert buffer_room.scant_room(g, 5, 0.05) == 3
    g.in_flight = 6
    assert buffer_room.scant_room(g, 5, 0.05) < 0
    g.in_flight, g.mean_bytes = 0, 400_000.0
    assert buffer_room.scant_room(g, 0, 0.05) == 2
    g.mean_bytes = 4e6
    assert buffer_room.scant_room(g, 0, 0.05) == 1


def test_unknown_topics_fill_half_of_the_memory() -> None:
    gauge = Gauge(max_bytes=1_000_000)
    g = group(1, gauge)
    gauge.flying = 500_000
    assert buffer_room.room(g, 0) <= 0
    g.owner.pace.passed(1)
    assert buffer_room.room(g, 0) > 0


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_messages_of_one_key_are_taken_one_at_a_time_and_in_order_within_their_priority(data: st.DataObject) -> None:
    gauge = Gauge()
    g = group(2, gauge)
    running: list[Message] = []
    order: dict[tuple[int, str | None], list[int]] = {}
    pushed = expired = 0
    for _ in range(data.draw(st.integers(1, 40))):
        step = data.draw(st.sampled_from(["push", "take", "finish", "expire"]))
        if step == "push":
            priority = data.draw(st.integers(0, 1))
            new = messages(data.draw(st.text("abc.", min_size=1, max_size=5)), pushed + 1, priority)
            pushed += len(new)
            if data.draw(st.booleans()):  # they come from the lane
                g.retries[priority] = g.retries.get(priority, 0) + len(new)
                for m in new:
                    m.offset = -1
            for m in new:
                m.expires_us = data.draw(st.sampled_from([0, 0, 1_000]))
            g.push(priority, new)
        elif step == "expire":
            expired += len(g.take_expired(1_000))
        elif step == "take" and (m := g.take(0)) is not None:
            assert m.key is None or m.key not in {r.key for r in running}
            running.append(m)
            order.setdefault((m.priority, m.key), []).append(int(m.id[2:]))
        elif step == "finish" and running:
            m = running.pop(data.draw(st.integers(0, len(running) - 1)))
            if m.key is not None:
                g.finish_key(m.key)
        assert g.buffered == sum(map(len, g.buffers))
        assert g.held == sum(map(len, g.blocked.values()))
        assert gauge.messages == g.buffered + g.held
    while running or g.buffered:
        while (m := g.take(0)) is not None:
            running.append(m)
            order.setdefault((m.priority, m.key), []).append(int(m.id[2:]))
        m = running.pop()
        if m.key is not None:
            g.finish_key(m.key)
    assert g.held == sum(g.retries.values()) == 0
    assert sum(map(len, order.values())) + expired == pushed
    assert all(numbers == sorted(numbers) for numbers in order.values())


@pytest.mark.parametrize(("quota", "capacity"), [(0.5, 8), (8, 8), (49.5, 50), (1e6, 500)])
def test_a_buffer_covers_the_horizon_within_bounds(quota: float, capacity: int) -> None:
    assert buffer_capacity(quota, 1.0) == capacity


def test_room_in_flight_follows_the_qps_unless_the_topic_says_so() -> None:
    assert [in_flight_limit(Topic("t", qps)) for qps in (0.5, 10.0, 1e6)] == [8, 50, 1000]
    assert in_flight_limit(Topic("t", 1e6, options=TopicOptions(max_in_flight=3))) == 3


def test_those_behind_a_message_that_expired_as_its_key_came_free_do_not_wait_for_ever() -> None:
    g = group(1)
    first, second, third = messages("aaa")
    second.expires_us = 1_000
    g.push(0, [first, second, third])
    assert taken(g) == [first.id]  # the others wait for their key
    g.finish_key("a")  # the second is ready now
    assert g.take_expired(2_000) == [second]
    assert taken(g) == [third.id]


def test_order_within_a_priority_survives_the_end_of_a_later_one_of_the_key() -> None:
    g = group(1)
    first, second, third = messages("aaa")
    g.push(0, [first, second, third])
    assert taken(g) == [first.id]  # the others wait for their key
    [brief] = messages("a", first=4)
    brief.expires_us = 1_000
    g.push(0, [brief])
    g.finish_key("a")  # the second is ready now
    assert g.take_expired(2_000) == [brief]
    for m in (second, third):
        assert taken(g) == [m.id]
        g.finish_key("a")


def test_beyond_its_share_a_group_starts_no_low_message_while_a_higher_priority_is_read() -> None:
    owner = OwnedTopic(split(Topic("t", 40.0, 10.0, ("high", "low"))))
    group = OwnedGroup(owner, 0, 1, owner.counter.join(0, 0.0), policy_for(owner.topic), Gauge())
    owner.counter.join(1, 0.0)
    for priority in (0, 1):
        group.add(OwnedQueue(group, priority, OffsetTracker(1), 1.0))
        group.push(
            priority, [Message(f"{priority}-{i}", b"", priority=priority, offset=i) for i in range((12, 30)[priority])]
        )
    high = group.queues[0]
    assert group.counter.reserve(8, 1.0) == 8
    assert [group.take(1) for _ in range(8)]
    assert startable(group, 1.0) == 34
    high.enlist()
    assert startable(group, 1.0) == 4, "as many as the high buffer holds, though two are left of the share"
    assert group.counter.reserve(4, 1.0) == 4
    assert [group.take(1) for _ in range(4)]
    assert startable(group, 1.0) == 0
    assert startable(group, 2.0) == 10, "the share of the next second"
    high.delist()
    assert startable(group, 1.0) == 30


def test_a_queue_that_is_saved_and_empty_holds_no_buffer_and_gets_one_again() -> None:
    g = group(2)
    queue = OwnedQueue(g, 0, OffsetTracker(1), 1.0)
    g.push(0, messages("..."))
    first, run = g.take(0), list[Message]()
    assert first is not None
    g.take_run(first, 5, run)
    queue.cover(0)
    assert g.buffers[0] is NOTHING
    g.return_run(run)
    queue.cover(0)
    assert taken(g) == ["0:2", "0:3"]
    queue.cover(3)
    assert g.buffers[0] is NOTHING
    assert g.buffers[1] is not NOTHING
    g.put_back(first, 0)
    assert taken(g) == ["0:1"]
