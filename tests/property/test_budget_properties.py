"""Budgets under any course of asking, giving back, moving and changing: the cap of each holds in every second."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from emq.quota.budget import Budget
from emq.quota.counter import WindowCounter
from emq.topics.model import Topic
from emq.topics.shares import share_of
from support.budgets import Unit, topic

T = 1_000_000

BUDGETS = {"root": None, "inner": "root", "deep": "inner"}
LEAVES = {"a": "root", "b": "inner", "c": "inner", "d": "deep", "e": "deep", "root": None, "inner": None}

qps_of = st.sampled_from([0.3, 1.0, 2.5, 7.0, 40.0])
asks = st.tuples(
    st.sampled_from(sorted(LEAVES)),
    st.integers(1, 30),
    st.integers(0, 30),
    st.sampled_from([0.0, 0.01, 0.06, 0.3, 1.1]),
)
moves = st.tuples(st.just("move"), st.just(0), st.just(0), st.sampled_from([0.0, 0.2]))


@given(
    st.fixed_dictionaries(dict.fromkeys(BUDGETS, qps_of)),
    st.fixed_dictionaries(dict.fromkeys(LEAVES, st.sampled_from([0.01, 1.0, 3.0, 100.0]))),
    st.lists(asks | moves, max_size=60),
)
def test_no_budget_is_exceeded_in_any_second(
    qps: dict[str, float], shares: dict[str, float], steps: list[tuple[str, int, int, float]]
) -> None:
    """Each step asks for starts, gives some of them back within the same second, and lets time pass."""
    topics = {name: topic(name, qps[name], above, shares.get(name, 1.0)) for name, above in BUDGETS.items()}
    unit = Unit(topics, T)
    leaves = {name: topics.get(name) or topic(name, 1_000, above, shares[name]) for name, above in LEAVES.items()}
    counters = {name: unit.counter(leaf, WindowCounter(1_000, T), T) for name, leaf in leaves.items()}
    used: Counter[tuple[str, int]] = Counter()
    now, began = T + 0.5, T
    for name, wanted, unused, pause in steps:
        if name == "move":  # the unit leaves this host and comes back
            unit.budgets["root"].begin(unit.guard, now)
            began = int(now)
        else:
            can = counters[name].available(now)
            granted = counters[name].reserve(wanted, now)
            assert granted >= min(wanted, can)
            back = min(unused, granted)
            if back:
                counters[name].release(back, now)
            for budget in _above(leaves[name]):
                used[budget, int(now)] += granted - back
            assert not (granted and int(now) == began)
        now += pause
    for (budget, second), count in used.items():
        assert count <= share_of(qps[budget]).allowance(second)


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=20), st.integers(1, 50), st.integers(2, 40))
def test_a_backlog_uses_a_budget_in_full_whatever_the_weights(shares: list[float], qps: int, seconds: int) -> None:
    unit = Unit({"root": topic("root", float(qps))}, T)
    counters = [unit.counter(topic(f"t{i}", 1_000, "root", share), now=T) for i, share in enumerate(shares)]
    for second in range(T + 1, T + seconds):
        started = 0
        for step in (0.0, 0.1, 0.3, 0.5, 0.85, 0.95):
            started += sum(counter.reserve(64, second + step) for counter in counters)
        assert started == qps


def _above(leaf: Topic) -> list[str]:
    found = [leaf.name] if leaf.name in BUDGETS else []
    at = leaf.options.budget
    while at is not None:
        found.append(at)
        at = BUDGETS[at]
    return found


def test_a_member_is_found_again_by_its_name() -> None:
    budget = Budget("root")
    assert budget.member_of(topic("a", budget="root")) is budget.member_of(topic("a", budget="root", share=2))
