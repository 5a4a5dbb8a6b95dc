"""The groups of a topic together keep its cap in every second, on any number of hosts that learn of changes late."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, deque
from collections.abc import Iterator

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from emq.quota.topic_counter import GroupCounter, TopicCounter
from emq.topics.changing import divided
from emq.topics.model import Topic, TopicOptions, split
from emq.topics.shares import (
    LEARN_S,
    MICRO,
    Division,
    Share,
    beginning,
    learned_s,
    share_of,
)
from emq.topics.tokens import TokenSource, pace, smooth_burst

START = 1_700_000_000
STEP_S = 0.2

capacities = st.one_of(
    st.sampled_from([0.5, 1.0, 2.0, 10.0, 10.5, 64.0]),
    st.integers(1, 60 * MICRO).map(lambda micros: micros / MICRO),
)
sizes = st.sampled_from([2.5, 7.0, 50.0])


@given(capacities, sizes, st.sets(st.integers(1, 90)), st.integers(0, 2_000_000_000))
def test_the_shares_of_a_division_add_up_to_what_the_topic_may_start(
    qps: float, group_qps: float, draining: set[int], second: int
) -> None:
    topic = split(Topic("t", qps, group_qps))
    topic = msgspec.structs.replace(topic, groups=topic.active_groups + 91)
    division = topic.divided(topic.active_groups + i for i in draining)
    shares = [division.share(group) for group in range(topic.groups)]
    assert sum(s.allowance(second) for s in shares) == share_of(qps).allowance(second)
    for share in shares:
        assert share.num // share.den <= share.allowance(second) <= share.ceiling
    assert sum(map(float, shares)) <= qps * (1 + 1e-9)
    ceiling = division.ceilings()
    assert [ceiling(g) for g in range(topic.groups)] == [math.ceil(division.quota(g)) for g in range(topic.groups)]


@given(capacities, st.integers(1, 64), st.integers(0, 63), st.integers(0, 2_000_000_000))
def test_the_next_second_of_a_share_is_the_first_that_allows_a_start(
    qps: float, members: int, position: int, second: int
) -> None:
    share = Share(round(qps * MICRO), members * MICRO, position % members * MICRO)
    at = share.next_second(second)
    assert at is not None
    assert share.allowance(at) >= 1
    assert at == second or share.allowance(at - 1) == 0
    assert all(share.allowance(s) == 0 for s in range(second, min(at, second + 50)))


@given(capacities, sizes, st.sets(st.integers(1, 90)), st.sets(st.integers(0, 40)), st.integers(0, 2_000_000_000))
def test_the_part_of_several_groups_is_the_sum_of_their_shares(
    qps: float, group_qps: float, draining: set[int], groups: set[int], second: int
) -> None:
    topic = split(Topic("t", qps, group_qps))
    topic = msgspec.structs.replace(topic, groups=topic.active_groups + 91)
    division = topic.divided(topic.active_groups + i for i in draining)
    part = division.part(groups)
    assert part.allowance(second) == sum(division.share(group).allowance(second) for group in groups)
    assert math.isclose(float(part), sum(float(division.share(group)) for group in groups), rel_tol=1e-9)
    at, soonest = part.next_second(second), [division.share(group).next_second(second) for group in groups]
    assert at == min((s for s in soonest if s is not None), default=None)


raises = st.lists(st.one_of(st.integers(1, 2_000).map(float), capacities), min_size=2, max_size=6)


@given(raises, st.sampled_from([1.0, 7.0, 50.0]), st.integers(0, 10**9))
@example([98.9, 120.5], 50.0, 0)  # the group that has the fraction keeps it, or gets a whole start for it
@example([19.9, 20.0], 10.0, 0)
@example([2.9, 7.3], 1.0, 0)
@settings(deadline=None)
def test_a_raise_lowers_no_groups_share_while_messages_of_earlier_layouts_wait(
    qps: list[float], group_qps: float, second: int
) -> None:
    topic, now = split(Topic("t", qps[0], group_qps)), float(START)
    for value in qps[1:]:
        before, now = topic, now + 10
        topic = divided(before, split(msgspec.structs.replace(before, qps=value)), None, now)
        starts = [topic.division.share(group).allowance(second) for group in range(topic.groups)]
        allowed = topic.division.total.allowance(second)
        assert sum(starts) == allowed
        assert max(starts) <= group_qps + 1
        assert topic.division.part(range(1, topic.groups)).allowance(second) == allowed - starts[0]
        if value >= before.qps:
            assert all(topic.division.quota(group) >= before.division.quota(group) for group in range(before.groups))
    done = divided(topic, msgspec.structs.replace(topic, earlier=()), None, now + 10)
    assert done.division.uneven == ()


@given(
    st.lists(st.tuples(st.sampled_from([3, 40, 50, 70]), st.sets(st.integers(0, 9))), min_size=2, max_size=6),
    st.integers(0, 10**9),
)
def test_each_group_that_shares_gets_a_start_sooner_or_later(changes: list[tuple[int, set[int]]], second: int) -> None:
    topic, now = split(Topic("t", float(changes[0][0]), 10.0)), float(START)
    for qps, retired in changes[1:]:
        now += 10
        wanted = split(msgspec.structs.replace(topic, qps=float(qps)))
        wanted = msgspec.structs.replace(wanted, groups=wanted.active_groups + 10)
        topic = divided(topic, wanted, sorted(wanted.active_groups + i for i in retired), now)
        sharing = [*range(topic.division.active), *topic.division.draining]
        assert all(topic.division.share(group).next_second(second) is not None for group in sharing)
        assert topic.division.part(sharing).allowance(second) == qps


@given(raises, st.sampled_from([1.0, 7.0, 50.0]))
@settings(deadline=None)
def test_a_raise_slows_down_no_group_with_smooth_pacing(qps: list[float], group_qps: float) -> None:
    topic, now = split(Topic("t", qps[0], group_qps)), float(START)
    for value in qps[1:]:
        before, now = topic, now + 10
        topic = divided(before, split(msgspec.structs.replace(before, qps=value)), None, now)
        if value < before.qps:
            continue
        rates = [[rate(pace(t.division, [group], None)) for group in range(before.groups)] for t in (before, topic)]
        assert all(new >= old - 1 for old, new in zip(*rates, strict=True))
        assert math.isclose(sum(rate(pace(topic.division, [g], None)) for g in range(topic.groups)), value)


def rate(source: TokenSource) -> float:
    """Return tokens a second."""
    return float(source.share) * (len(source.positions) / source.members if source.lifetime_s else 1.0)


@given(st.integers(1, MICRO - 1), st.integers(1, 64), st.sets(st.integers(0, 63)), st.integers(1, 10**9))
def test_a_start_of_a_small_quota_falls_due_in_its_first_second_and_shares_add_up_from_then_on(
    micros: int, active: int, groups: set[int], origin_s: int
) -> None:
    division = Division(0, micros / MICRO, 50.0, active, origin_s=origin_s)
    assert division.total.allowance(origin_s) == 1
    assert division.total.next_second(origin_s) == origin_s
    part = division.part(groups)
    for second in (0, origin_s - 1, origin_s, origin_s + 1, origin_s + MICRO // micros, origin_s + 10**6):
        each = [division.share(group) for group in range(active)]
        assert sum(share.allowance(second) for share in each) == division.total.allowance(second)
        assert part.allowance(second) == sum(division.share(group).allowance(second) for group in groups)
        soonest = [s for group in groups if (s := division.share(group).next_second(second)) is not None]
        assert part.next_second(second) == min(soonest, default=None)


@dataclasses.dataclass
class Group:
    counter: GroupCounter
    buffered: int = 1


class Host:
    """Knows the topic as it was when it last looked, and starts all that its counters grant."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.groups: dict[int, Group] = {}
        self.counter = TopicCounter(topic)

    def learn(self, topic: Topic | None, now: float) -> None:
        if topic is None or topic.layout != self.topic.layout:  # deleted, or created again: what is held of it ends
            for index in list(self.groups):
                self.release(index, now)
            self.topic = topic or msgspec.structs.replace(self.topic, layout=-1, groups=0)
            self.counter = TopicCounter(self.topic)
        elif topic != self.topic:
            self.topic = topic
            self.counter.follow(topic, now)

    def acquire(self, index: int, now: float) -> None:
        self.groups[index] = Group(self.counter.join(index, now))

    def release(self, index: int, now: float) -> None:
        if (group := self.groups.pop(index, None)) is not None:
            group.counter.leave(now)


changes = st.one_of(
    st.tuples(st.just("qps"), capacities),
    st.tuples(st.just("qps"), st.sampled_from([2.0, 40.0])),
    st.tuples(st.just("draining"), st.sets(st.integers(0, 30)).map(frozenset)),
    st.tuples(st.just("move"), st.integers(0, 1_000)),
    st.tuples(st.just("idle"), st.integers(0, 1_000)),
    st.tuples(st.just("again"), st.tuples(capacities, st.sampled_from([0.0, 0.2, 1.4, 2.4, 4.0]))),
)
timed = st.lists(st.tuples(st.floats(0, 25), changes), max_size=12).map(lambda found: sorted(found, key=lambda c: c[0]))


class World:
    """Hosts, each with a delay after which it learns, and what they start in 30 seconds."""

    def __init__(self, topic: Topic, late_s: list[float]) -> None:
        self.topic = split(topic)
        self.all: list[Division] = [*self.topic.timeline]
        self.known: list[tuple[float, Topic | None]] = [(float("-inf"), self.topic)]
        self.hosts = [Host(self.topic) for _ in late_s]
        self.late_s = late_s
        self.starts: list[float] = []
        self.now = float(START)
        self.owner: dict[int, int] = {}
        self.lives = 0
        self.coming: tuple[float, float, Topic] | None = None
        """While there is no topic: when it was deleted, when it is created again, and as what."""

    def change(self, what: str, value: object) -> None:
        if what == "move" and isinstance(value, int):
            index = value % self.topic.groups
            self.hosts[self.owner.get(index, 0)].release(index, self.now)
            self.owner[index] = value % len(self.hosts)
            return
        if what == "idle" and isinstance(value, int):
            for host in self.hosts:
                if (group := host.groups.get(value % self.topic.groups)) is not None:
                    group.buffered = 1 - group.buffered
            return
        if self.coming is not None:
            return
        if what == "again" and isinstance(value, tuple):
            self.lives += 1
            new = split(Topic(self.topic.name, value[0], self.topic.group_qps, options=self.topic.options))
            self.coming = self.now, self.now + value[1], msgspec.structs.replace(new, layout=self.lives * 100)
            self.known.append((self.now, None))
            return
        before, draining = self.topic, None
        if what == "qps":
            after = split(msgspec.structs.replace(before, qps=value))
        elif isinstance(value, frozenset):
            after, draining = before, value
        self.topic = divided(before, after, draining, self.now)
        self.all = [d for d in self.all if d.since_s <= self.now]  # what was to come may never be in force
        self.all += [d for d in self.topic.timeline if d.since_s > self.now]
        self.known.append((self.now, self.topic))

    def create(self, ended_s: float, topic: Topic) -> None:
        divisions = beginning(topic.division, learned_s(ended_s), self.now)
        self.topic, self.coming = msgspec.structs.replace(topic, divisions=divisions), None
        begun = self.topic.timeline[-1]
        begun = msgspec.structs.replace(begun, since_s=begun.since_s or int(self.now) + 1)
        self.all = [*(d for d in self.all if d.since_s < begun.since_s), begun]
        self.known.append((self.now, self.topic))

    def step(self) -> None:
        if self.coming is not None and self.now >= self.coming[1]:
            self.create(self.coming[0], self.coming[2])
        for host, late_s in zip(self.hosts, self.late_s, strict=True):
            host.learn(next(t for at, t in reversed(self.known) if at <= self.now - late_s), self.now)
        for index in range(self.topic.groups):
            host = self.hosts[self.owner.setdefault(index, index % len(self.hosts))]
            if index not in host.groups and index < host.topic.groups:
                host.acquire(index, self.now)
        for host in self.hosts:
            for group in host.groups.values():
                if group.buffered:
                    granted = group.counter.reserve(1_000, self.now)
                    back = granted // 3
                    if back:
                        group.counter.release(back, self.now)
                    self.starts += [self.now] * (granted - back)
        self.now = round(self.now + STEP_S, 3)

    def run(self, steps: list[tuple[float, tuple[str, object]]]) -> Iterator[tuple[int, int]]:
        """Yield (started, allowed) for each second."""
        waiting = deque(steps)
        while self.now < START + 30:
            while waiting and START + waiting[0][0] <= self.now:
                self.change(*waiting.popleft()[1])
            self.step()
        counts = Counter(int(at) for at in self.starts)
        for second in range(START, START + 30):
            allowed = [d for d in self.all if d.since_s <= second][-1]
            yield counts[second], allowed.total.allowance(second)


@given(capacities, sizes, st.lists(capacities, min_size=1, max_size=100), st.floats(0.01, 1.5))
def test_however_often_a_topic_is_changed_the_last_change_counts_within_seconds(
    qps: float, group_qps: float, wanted: list[float], every_s: float
) -> None:
    topic, now = split(Topic("t", qps, group_qps)), float(START)
    for value in wanted:
        now += every_s
        known = topic.timeline
        topic = divided(topic, split(msgspec.structs.replace(topic, qps=value)), None, now)
        assert topic.division.since_s <= now + LEARN_S + 1
        assert len(topic.timeline) <= LEARN_S + 2
        lost = [d for d in known if now < d.since_s <= now + LEARN_S and d not in topic.timeline]
        assert not lost  # some hosts may not hear of the new one before it begins


worlds = st.lists(st.floats(0, LEARN_S - 0.2), min_size=1, max_size=3)


@given(capacities, sizes, worlds, timed)
@example(200.0, 50.0, [0.0, 1.0], [(5.0, ("qps", 2.0)), (8.0, ("qps", 40.0)), (12.0, ("draining", frozenset()))])
@example(
    *(200.0, 50.0, [0.0, 1.7]),
    [(5.1, ("again", (2.0, 0.0))), (9.0, ("again", (60.0, 1.4))), (9.9, ("qps", 2.0)), (12.0, ("again", (2.0, 4.0)))],
)
@example(
    *(200.0, 50.0, [0.0, 1.7]),
    [
        (5.1, ("qps", 2.0)),
        (6.2, ("qps", 200.0)),
        (7.3, ("qps", 2.0)),
        (7.5, ("again", (200.0, 0.0))),
        (8.9, ("qps", 2.0)),
    ],
)
@settings(deadline=None, max_examples=40)
def test_the_sum_over_groups_keeps_the_cap_in_every_second_whatever_changes(
    qps: float, group_qps: float, late_s: list[float], steps: list[tuple[float, tuple[str, object]]]
) -> None:
    world = World(Topic("t", qps, group_qps), late_s)
    for started, allowed in world.run(steps):
        assert started <= allowed


@given(capacities, sizes, st.sampled_from([None, 1.0, 5.0]), worlds, timed)
@settings(deadline=None, max_examples=40)
def test_the_bursts_of_smooth_groups_add_up_to_the_topics_in_any_span(
    qps: float,
    group_qps: float,
    burst: float | None,
    late_s: list[float],
    steps: list[tuple[float, tuple[str, object]]],
) -> None:
    world = World(Topic("t", qps, group_qps, options=TopicOptions(pacing="smooth", burst=burst)), late_s)
    for _ in world.run(steps):
        pass
    most = max(smooth_burst(division, burst) for division in world.all)
    rate = max(division.qps for division in world.all)
    level, last = 0.0, float(START)
    for at in world.starts:
        level = max(0.0, level - rate * (at - last)) + 1
        last = at
        assert level <= most + 1e-3


@given(st.sampled_from([1.0, 10.0, 10.5, 100.0]), st.integers(0, 6), st.sampled_from(["window", "smooth"]))
@settings(deadline=None, max_examples=20)
def test_a_sorted_topic_with_a_backlog_everywhere_uses_its_quota_to_the_full(qps: float, power: int, how: str) -> None:
    topic = Topic("t", qps, 50.0, options=TopicOptions(pacing="smooth" if how == "smooth" else "window"))
    topic = msgspec.structs.replace(split(topic), active_groups=1 << power, groups=1 << power)
    hosts = [TopicCounter(topic) for _ in range(3)]
    counters = [hosts[i % 3].join(i, START) for i in range(topic.groups)]
    granted = sum(c.reserve(1_000, START + i * 0.02) for i in range(50, 2_051) for c in counters)
    assert granted >= 0.99 * qps * 40 - 1
