"""What the counters of a budget promise: the cap in every second, parts by weight, nothing left unused."""

from __future__ import annotations

import math
import random

import pytest

from emq.quota.budget import KEEP_S, LOOK_AGAIN_S
from emq.quota.charge import BudgetedCounter, Charge, limited
from emq.quota.counter import WindowCounter, own_counter
from emq.quota.smooth import SmoothCounter
from emq.quota.throttle import Throttle, ThrottledCounter
from emq.topics import changing
from emq.topics.model import Topic, TopicOptions, split
from emq.topics.shares import LEARN_S, share_of
from support.budgets import Asking, Unit, topic

T = 1_000_000  # a second at which hosts begin


def asking(unit: Unit, *topics: Topic) -> Asking:
    return Asking({its.name: unit.counter(its, now=T) for its in topics})


@pytest.mark.parametrize("qps", [0.5, 1, 7.3, 100, 2_000])
@pytest.mark.parametrize("seed", range(3))
def test_in_every_second_all_topics_together_start_what_the_budget_allows(qps: float, seed: int) -> None:
    rng = random.Random(seed)
    topics = [topic(f"t{i}", rng.choice([0.7, 10, 5000]), "root", rng.uniform(0.1, 10)) for i in range(40)]
    asks = asking(Unit({"root": topic("root", qps)}, T), *topics, topic("root", qps))
    asks.run(T + 0.4, T + 20.0)
    for second in range(T, T + 20):
        most = share_of(qps).allowance(second)
        assert asks.in_second(second) == (0 if second == T else most)


def test_a_topic_is_never_more_than_two_starts_from_its_part() -> None:
    weights = (0.1, 0.3, 1, 1, 2.5, 7)
    topics = [topic(f"t{i}", budget="root", share=weight) for i, weight in enumerate(weights)]
    asks = asking(Unit({"root": topic("root", 3)}, T), *topics)
    asks.run(T, T + 1.0)
    for seconds in range(1, 200):
        asks.run(T + seconds, T + 1.0 + seconds)
        for its in topics:
            part = 3 * seconds * its.options.share / sum(weights)
            assert abs(asks.of(its.name) - part) <= 2.0


def test_a_weight_may_change_while_topics_compete() -> None:
    unit, a, b = Unit({"root": topic("root", 100)}, T), topic("a", budget="root"), topic("b", budget="root")
    asks = asking(unit, a, b)
    asks.run(T, T + 5.0)
    unit.budgets["root"].member_of(topic("a", budget="root", share=4))
    asks.run(T + 5.0, T + 6.0)
    assert (asks.starts["a", T + 5], asks.starts["b", T + 5]) == (80, 20)


def test_a_topic_without_messages_leaves_its_part_to_the_others() -> None:
    topics = [topic(f"t{i}", budget="root") for i in range(10)]
    asks = asking(Unit({"root": topic("root", 1_000)}, T), *topics)
    for its in topics[1:]:
        asks.backlog[its.name] = 300  # of which each starts 100 a second
    asks.run(T, T + 20.0)
    for second in range(T + 1, T + 20):
        assert asks.in_second(second) == 1_000
    assert [asks.of(its.name) for its in topics[1:]] == [300] * 9


@pytest.mark.parametrize("seed", range(5))
def test_a_backlog_anywhere_uses_the_budget_though_the_others_come_and_go(seed: int) -> None:
    rng = random.Random(seed)
    topics = [topic(f"t{i}", budget="root", share=rng.choice([1, 5])) for i in range(30)]
    asks = asking(Unit({"root": topic("root", 200)}, T), *topics)
    for its in topics[1:]:
        asks.backlog[its.name] = 0
    for _ in range(1_000):
        asks.publish(rng.choice(topics[1:]).name, rng.randrange(1, 9), T + rng.uniform(0, 30))
    asks.run(T, T + 30.0)
    used = sum(asks.in_second(second) for second in range(T + 1, T + 30))
    assert used >= 0.99 * 200 * 29
    assert max(asks.in_second(second) for second in range(T, T + 30)) <= 200


def test_a_quiet_topic_does_not_wait_for_the_next_second_behind_a_flood() -> None:
    flood, quiet = topic("flood", budget="root"), topic("quiet", budget="root")
    asks = asking(Unit({"root": topic("root", 100)}, T), flood, quiet)
    asks.backlog["quiet"] = 0
    sent = [T + 2 + second + tenth / 10 for second in range(10) for tenth in (1, 3, 5)]
    for at in sent:
        asks.publish("quiet", 1, at)
    asks.run(T, T + 15.0)
    waited = sorted(started - at for at, started in zip(sent, asks.started_at["quiet"], strict=True))
    assert waited[len(waited) // 2] == 0.0
    assert waited[-1] <= 1.0
    assert all(asks.in_second(second) == 100 for second in range(T + 1, T + 15))


def test_what_a_topic_with_a_lower_qps_of_its_own_cannot_use_goes_to_the_others() -> None:
    slow, fast = topic("slow", 3, "root", 10), topic("fast", budget="root")
    asks = asking(Unit({"root": topic("root", 100)}, T), slow, fast)
    asks.run(T, T + 10.0)
    assert [asks.starts["slow", second] for second in range(T + 1, T + 10)] == [3] * 9
    assert [asks.starts["fast", second] for second in range(T + 1, T + 10)] == [97] * 9


def test_budgets_within_budgets_hold_and_share_by_weight_on_each_level() -> None:
    root, big, small = topic("root", 300), topic("big", 1_000, "root", 2), topic("small", 50, "root", 1)
    unit = Unit({"root": root, "big": big, "small": small}, T)
    leaves = [topic("b1", budget="big", share=3), topic("b2", budget="big"), topic("direct", budget="root")]
    leaves += [*(topic(f"s{i}", 1, "small") for i in "12"), topic("s3", budget="small")]
    asks = asking(unit, *leaves)
    asks.run(T, T + 2.0)
    before = {its.name: asks.of(its.name) for its in leaves}
    asks.run(T + 2.0, T + 22.0)
    for second in range(T + 1, T + 22):
        assert asks.in_second(second) == 300
        assert sum(asks.starts[f"s{i}", second] for i in "123") <= 50
    per_s = {name: (asks.of(name) - n) / 20 for name, n in before.items()}
    of_small, of_big = per_s["s1"] + per_s["s2"] + per_s["s3"], per_s["b1"] + per_s["b2"]
    assert (per_s["s1"], per_s["s2"]) == (1, 1)
    assert of_small == pytest.approx(50, rel=0.02)  # its own cap; the others share what is left, 2 to 1
    assert of_big == pytest.approx(2 / 3 * 250, rel=0.02)
    assert per_s["direct"] == pytest.approx(1 / 3 * 250, rel=0.02)
    assert per_s["b1"] == pytest.approx(3 / 4 * of_big, rel=0.02)


def test_the_own_messages_of_a_budget_count() -> None:
    root = topic("root", 10)
    asks = asking(Unit({"root": root}, T), root, topic("a", budget="root"))
    asks.run(T, T + 11.0)
    assert [asks.in_second(second) for second in range(T + 1, T + 11)] == [10] * 10
    assert asks.of("root") == pytest.approx(50, abs=6)


def test_a_new_qps_counts_as_that_of_any_topic() -> None:
    """The lower of the old and the new one counts at once, and a higher one `LEARN_S` later, as for every group."""
    root = split(Topic("root", 100))
    unit = Unit({"root": root}, T)
    asks = asking(unit, topic("a", budget="root"), topic("b", budget="root"))
    qps = {T: 100.0}
    for at, to in ((T + 3, 40.0), (T + 10, 250.0)):
        asks.run(T if at == T + 3 else T + 3.5, at + 0.5)
        changed = split(Topic("root", to, active_groups=root.active_groups, groups=root.groups))
        root = changing.divided(root, changed, None, at + 0.5)
        unit.budgets["root"].follow(root, None, at + 0.5)
        qps[root.timeline[-1].since_s] = to
    asks.run(T + 10.5, T + 20.0)
    assert sorted(qps) == [T, T + 3 + 1 + LEARN_S, T + 10 + 1 + LEARN_S]
    for second in range(T + 1, T + 20):
        in_force = qps[max(since for since in qps if since <= second)]
        assert asks.in_second(second) <= in_force
        if not T + 3 <= second <= T + 6 and not T + 10 <= second <= T + 13:
            assert asks.in_second(second) == in_force


def test_a_budget_starts_nothing_while_this_host_has_not_its_first_group_and_nothing_in_its_first_second() -> None:
    unit = Unit({"root": topic("root", 100), "inner": topic("inner", 100, "root")}, T)
    counter = unit.counter(topic("a", budget="inner"), now=T)
    assert counter.reserve(10, T + 0.9) == 0
    assert counter.reserve(10, T + 1.1) == 10
    unit.guard.stopping = True  # it is let go of
    assert (counter.reserve(10, T + 1.2), counter.available(T + 1.2), counter.reserve(10, T + 2.0)) == (0, 0, 0)
    assert counter.next_at(T + 2.5) == T + 3
    unit.guard.stopping = False
    unit.budgets["root"].begin(unit.guard, T + 3.4)  # it has come again
    assert [counter.reserve(200, T + 3.4 + i / 10) for i in range(6)] == [0] * 6
    assert counter.reserve(200, T + 4.0) == 100


def test_a_budget_whose_topic_is_not_known_starts_nothing() -> None:
    unit = Unit({"root": topic("root", 100)}, T)
    unit.budgets["root"].end()
    counter = unit.counter(topic("a", budget="root"), now=T)
    assert (counter.reserve(10, T + 1), counter.next_at(T + 1.5)) == (0, T + 2)


def test_what_is_released_may_be_started_by_another_topic() -> None:
    unit = Unit({"root": topic("root", 10), "inner": topic("inner", 10, "root")}, T)
    a, b = (unit.counter(topic(name, budget="inner"), now=T) for name in "ab")
    assert (a.reserve(10, T + 1.0), b.reserve(10, T + 1.0)) == (10, 0)
    a.release(10, T + 1.0)
    assert b.reserve(10, T + 1.0 + 2 * LOOK_AGAIN_S) + a.reserve(10, T + 1.9) == 10
    assert b.reserve(10, T + 1.95) == 0
    assert a.rolled_back == 10


def test_what_is_released_after_its_second_is_not_started_in_the_next() -> None:
    unit = Unit({"root": topic("root", 10), "inner": topic("inner", 10, "root")}, T)
    a, b = (unit.counter(topic(name, budget="inner"), now=T) for name in "ab")
    assert a.reserve(10, T + 1.9) == 10
    used = b.reserve(10, T + 2.0)
    a.release(10, T + 1.9)
    assert used + sum(a.reserve(10, T + 2 + i / 10) + b.reserve(10, T + 2 + i / 10) for i in range(9)) == 10


def test_a_start_counts_in_the_group_and_in_every_budget_or_in_none() -> None:
    unit = Unit({"root": topic("root", 10), "inner": topic("inner", 6, "root")}, T)
    counter = unit.counter(topic("a", 4, "inner"), now=T)
    assert counter.reserve(50, T + 1.0) == 4  # its own
    other = unit.counter(topic("b", 100, "inner"), now=T)
    assert other.reserve(50, T + 1.0) == 2  # of the inner budget
    last = unit.counter(topic("c", 100, "root"), now=T)
    assert last.reserve(50, T + 1.0) + last.reserve(50, T + 1.9) == 4
    assert own_counter(other).available(T + 1.9) == 98


def test_smooth_topics_below_a_budget_keep_their_pace_and_the_cap() -> None:
    unit = Unit({"root": topic("root", 10)}, T)
    its = topic("a", 100, "root")
    smooth = BudgetedCounter(SmoothCounter(100, T), Charge(unit.budgets["root"], unit.budgets["root"].member_of(its)))
    asks = Asking({"a": smooth, "b": unit.counter(topic("b", budget="root"), now=T)})
    asks.run(T, T + 6.0)
    assert [asks.in_second(second) for second in range(T + 1, T + 6)] == [10] * 5
    assert asks.of("a") == pytest.approx(25, abs=12)
    assert smooth.valid_until(T + 5.9999) == T + 6


def test_a_throttle_holds_a_topic_below_its_budget_and_leaves_its_part_to_the_others() -> None:
    unit, throttle = Unit({"root": topic("root", 100)}, T), Throttle()
    throttle.limit(5, "slow answers", T)
    budget, its = unit.budgets["root"], topic("a", budget="root")
    counter = limited(WindowCounter(100, T), Charge(budget, budget.member_of(its)), throttle)
    assert isinstance(own_counter(counter), WindowCounter)
    other, starts = unit.counter(topic("b", budget="root"), now=T), 0
    for step in range(1, 400):
        now = T + 1 + step / 100
        starts += counter.reserve(10, now)
        other.reserve(64, now)
        if step % 100 == 99:
            assert other.reserve(100, now) == 0
    assert 15 <= starts <= 22  # of the first second the other one has all
    assert counter.reserved + other.reserved == 400


@pytest.mark.parametrize("rate", [4, 20, 38, 49])
def test_a_throttled_topic_gets_its_whole_rate_beside_a_flood(rate: float) -> None:
    unit, throttle = Unit({"root": topic("root", 100)}, T), Throttle()
    throttle.limit(rate, "it asked for less", T)
    budget, its = unit.budgets["root"], topic("a", budget="root")
    throttled = ThrottledCounter(BudgetedCounter(WindowCounter(50, T), Charge(budget, budget.member_of(its))), throttle)
    asks = Asking({"a": throttled, "flood": unit.counter(topic("flood", budget="root"), now=T)})
    asks.run(T, T + 22.0)
    assert sum(asks.starts["a", second] for second in range(T + 2, T + 22)) >= 0.95 * rate * 20
    assert sum(asks.in_second(second) for second in range(T + 2, T + 22)) >= 0.99 * 100 * 20
    assert max(asks.in_second(second) for second in range(T, T + 22)) <= 100


def test_a_topic_knows_which_budget_holds_it() -> None:
    unit = Unit({"root": topic("root", 10), "inner": topic("inner", 100, "root")}, T)
    inner = unit.budgets["inner"]
    its = topic("a", budget="inner")
    charge = Charge(inner, inner.member_of(its))
    counter = BudgetedCounter(WindowCounter(1_000, T), charge)
    assert charge.held_by(T + 1.0) is None
    assert counter.reserve(10, T + 1.0) == 10
    assert charge.held_by(T + 1.0) is None
    assert counter.reserve(1, T + 1.1) == 0
    assert charge.held_by(T + 1.5) == "root"
    assert charge.held_by(T + 2.5) is None
    unit.budgets["root"].follow(split(Topic("root", 1_000)), None, T + 3)
    assert counter.reserve(200, T + 3.0) == 100
    assert charge.held_by(T + 3.5) == "inner"


def test_many_quiet_topics_cost_no_time_that_grows_with_their_number() -> None:
    """A start looks at all topics of its budget once a second; topics that ask for nothing are not looked at."""
    unit = Unit({"root": topic("root", 1_000)}, T)
    budget = unit.budgets["root"]
    for i in range(2_000):
        unit.counter(topic(f"quiet{i}", budget="root"), now=T).reserve(1, T + 1.0)
    counter = unit.counter(topic("a", budget="root"), now=T)
    for second in range(2, 5):
        counter.reserve(1, T + second)
    assert len(budget._active) == 1


def test_looks_become_rarer_with_more_topics() -> None:
    unit = Unit({"root": topic("root", 10)}, T)
    counters = [unit.counter(topic(f"t{i}", budget="root"), now=T) for i in range(5_000)]
    for counter in counters:
        counter.reserve(1, T + 1.0)
    assert unit.budgets["root"]._pause() > KEEP_S / 2
    assert counters[-1].next_at(T + 1.0) == T + 2
    assert math.isfinite(counters[-1].next_at(T + 1.5))


def test_options_of_a_budget_do_not_cost_topics_without_one_anything() -> None:
    plain = WindowCounter(10, T)
    assert limited(plain, None, None) is plain
    assert TopicOptions().budget is None
