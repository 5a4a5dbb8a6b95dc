"""Plans under arbitrary groups, weights and former plans."""

from __future__ import annotations

import random
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from emq.allocation.plan.levelling import LOW, SHED, PlacementReason
from emq.allocation.plan.plan import plan

Weights = Mapping[str, float]
Situation = tuple[dict[str, float], dict[str, float], dict[str, str]]
"""Quotas of groups, weights of hosts, and who had which group."""

Cluster = tuple[dict[str, float], list[str]]
"""Quotas of groups, and hosts."""

names = st.text(alphabet="abcdefg/-.0123", min_size=1, max_size=6)
any_quota = st.one_of(
    st.sampled_from([0.5, 1.0, 50.0]), st.floats(1e-12, 1e6), st.integers(1, 60).map(float), st.just(1e9)
)
quotas = st.dictionaries(names, any_quota, max_size=60)
weights = st.dictionaries(
    names, st.one_of(st.just(1.0), st.just(0.0), st.floats(0, 100), st.just(1e-320), st.just(1e300)), max_size=12
)
previous = st.dictionaries(names, names, max_size=60)
many = settings(max_examples=300, deadline=None)


@st.composite
def former(draw: st.DrawFn, groups: Mapping[str, float], hosts: Weights) -> dict[str, str]:
    """Some of these groups on some of these hosts, at random, and some on hosts that are gone."""
    homes = [*sorted(hosts), "gone"]
    return {group: draw(st.sampled_from(homes)) for group in sorted(groups) if draw(st.booleans())}


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    groups, hosts = draw(quotas), draw(weights)
    return groups, hosts, draw(st.one_of(previous, former(groups, hosts)))


@st.composite
def fine_clusters(draw: st.DrawFn) -> Cluster:
    """So many small groups that any bound can be kept: none is more than 2 % of a host's share."""
    hosts = [f"host-{i}" for i in range(draw(st.integers(2, 6)))]
    random_ = random.Random(draw(st.integers(0, 10_000)))
    largest = draw(st.sampled_from([1.0, 1.5, 3.0]))
    count = draw(st.integers(110, 160)) * len(hosts)
    return {f"t{i // 7}/{i % 7}": random_.uniform(1, largest) for i in range(count)}, hosts


def ratios(quotas: Mapping[str, float], weights: Weights, owner: Mapping[str, str]) -> dict[str, float]:
    total, whole = sum(quotas.values()), sum(weights.values())
    load = dict.fromkeys(weights, 0.0)
    for group, host in owner.items():
        load[host] += quotas[group]
    return {host: load[host] / (total * weights[host] / whole) for host in weights if weights[host]}


@given(situations())
@many
def test_each_group_is_on_exactly_one_live_host_that_has_a_weight(situation: Situation) -> None:
    groups, hosts, before = situation
    made = plan(groups, hosts, before)
    able = {host for host, weight in hosts.items() if weight > 0}
    assert made.owner.keys() == (groups.keys() if able else set())
    assert set(made.owner.values()) <= able
    assert made.moved.keys() == {group for group, host in made.owner.items() if before.get(group) != host}
    assert made.bound >= SHED


@given(situations(), st.randoms(use_true_random=False))
@many
def test_the_same_is_planned_whatever_the_order_of_what_is_given(situation: Situation, random_: random.Random) -> None:
    shuffled = []
    for given_ in situation:
        items = list(given_.items())
        random_.shuffle(items)
        shuffled.append(dict(items))
    assert plan(*shuffled) == plan(*situation)


@given(situations())
@many
def test_nothing_moves_if_nothing_changed(situation: Situation) -> None:
    groups, hosts, before = situation
    made = plan(groups, hosts, before)
    again = plan(groups, hosts, made.owner)
    assert again.moved == {}
    assert again.owner == made.owner


@given(situations())
@many
def test_a_bound_is_raised_only_as_far_as_whole_groups_need(situation: Situation) -> None:
    groups, hosts, before = situation
    made = plan(groups, hosts, before)
    if not made.owner or PlacementReason.ALONE in plan(groups, hosts).moved.values():
        return
    taking = {host: weight for host, weight in hosts.items() if weight >= 1e-9 * max(hosts.values())}
    needs = {group: max(1, round(quota * 1e6)) for group, quota in groups.items()}
    fullest = max(ratios(needs, {h: w / max(taking.values()) for h, w in taking.items()}, made.owner).values())
    assert abs(fullest - made.max_over_mean) <= 1e-6 * fullest
    assert fullest <= max(SHED, 1 + len(taking) * max(needs.values()) / sum(needs.values())) + 1e-6


@given(fine_clusters(), st.data())
@settings(max_examples=60, deadline=None)
def test_weights_are_kept_to_within_the_bounds(cluster: Cluster, data: st.DataObject) -> None:
    groups, hosts = cluster
    given_ = {host: data.draw(st.sampled_from([1.0, 0.7, 1.3])) for host in hosts}
    first = plan(groups, given_)
    changed = {host: data.draw(st.sampled_from([1.0, 0.7, 1.3])) for host in hosts}
    for weights_, made in ((given_, first), (changed, plan(groups, changed, first.owner))):
        assert all(LOW - 0.03 <= ratio <= SHED + 1e-6 for ratio in ratios(groups, weights_, made.owner).values())
        assert made.bound == SHED


@given(fine_clusters(), st.data())
@settings(max_examples=60, deadline=None)
def test_only_the_groups_of_a_host_that_leaves_move(cluster: Cluster, data: st.DataObject) -> None:
    groups, hosts = cluster
    before = plan(groups, dict.fromkeys(hosts, 1.0)).owner
    gone = data.draw(st.sampled_from(hosts))
    after = plan(groups, dict.fromkeys(set(hosts) - {gone}, 1.0), before)
    assert after.moved.keys() == {group for group, host in before.items() if host == gone}


@given(fine_clusters())
@settings(max_examples=60, deadline=None)
def test_groups_move_only_to_a_host_that_joins_and_fill_it(cluster: Cluster) -> None:
    groups, hosts = cluster
    before = plan(groups, dict.fromkeys(hosts, 1.0)).owner
    grown = dict.fromkeys([*hosts, "new"], 1.0)
    after = plan(groups, grown, before)
    assert {after.owner[group] for group in after.moved} == {"new"}
    assert 0.93 <= ratios(groups, grown, after.owner)["new"] <= 1.0 + 1e-6
