"""What a plan would be like: numbers that follow from the real allocation code."""

from __future__ import annotations

import math

import pytest

from emq.allocation.leader import DEBOUNCE_S
from emq.topics.model import Topic
from emq_cli import forecast
from emq_cli.forecast import Forecast

QUOTAS = forecast.skewed(300, 20_000.0, 1.0)


def test_made_up_topics_add_up_to_what_was_asked_for() -> None:
    assert sum(QUOTAS.values()) == pytest.approx(20_000, rel=1e-4)
    sizes: dict[str, float] = {}
    for group, quota in QUOTAS.items():
        topic = group.rpartition("/")[0]
        sizes[topic] = sizes.get(topic, 0.0) + quota
    assert len(sizes) == 300
    ordered = sorted(sizes.values(), reverse=True)
    assert ordered[0] / ordered[9] == pytest.approx(10, rel=1e-3)
    assert max(QUOTAS.values()) <= 50


def test_without_a_sum_there_are_as_many_groups_as_the_design_speaks_of() -> None:
    assert len(forecast.skewed(5_000, None, 1.0)) == pytest.approx(forecast.GROUPS, abs=20)
    assert len(forecast.skewed(5_000, None, 0.0)) == forecast.GROUPS
    assert len(forecast.skewed(25_000, None, 1.0)) >= 25_000


def test_a_seed_says_it_all() -> None:
    assert forecast.skewed(50, 1_000, 1.0, seed=7) == forecast.skewed(50, 1_000, 1.0, seed=7)
    assert forecast.skewed(50, 1_000, 1.0, seed=7).keys() != forecast.skewed(50, 1_000, 1.0, seed=8).keys()
    steps = []
    for _ in range(2):
        made = Forecast(QUOTAS, seed=3)
        steps.append([s._replace(plan_s=0, pause=None) for s in (made.start(9), made.kill(2), made.add(3, 2.0))])
    assert steps[0] == steps[1]


def test_topics_are_split_as_the_catalog_splits_them() -> None:
    assert forecast.quotas_of([Topic("a", 120)]) == {"a/0": 40, "a/1": 40, "a/2": 40}
    assert forecast.quotas_of([Topic("a", 120, active_groups=3, groups=4)]) == dict.fromkeys(
        ("a/0", "a/1", "a/2", "a/3"), 30
    )


def test_who_is_killed_gives_away_its_groups_and_nobody_else_does() -> None:
    made = Forecast(QUOTAS)
    first = made.start(10)
    assert (first.hosts, first.groups_moved) == (10, 0)
    assert len(first.loads) == 10
    assert first.loads == sorted(first.loads)
    assert first.loads[-1] == pytest.approx(first.max_over_mean)
    assert math.fsum(first.loads) == pytest.approx(10)
    killed = made.kill(2)
    assert killed.hosts == len(made.weights) == 8
    assert 0 < killed.least <= killed.groups_moved <= 1.2 * killed.least
    assert killed.moves_over_minimum == killed.groups_moved / killed.least
    added = made.add(2, weight=2.0)
    assert added.hosts == 10
    assert sorted(made.weights.values()) == [1.0] * 8 + [2.0] * 2
    assert 0 < added.least <= added.groups_moved <= 1.2 * added.least
    assert added.max_over_mean <= 1.10


def test_a_pause_is_made_up_of_what_the_code_waits_for() -> None:
    made = Forecast(QUOTAS, session_timeout_s=6.0)
    made.start(4)
    killed, added = made.kill(1), made.add(1)
    assert added.pause == (0.5, 1.0)
    assert killed.pause.most == pytest.approx(6.0 + DEBOUNCE_S + killed.plan_s + 1.0)
    assert killed.pause.typical == pytest.approx(5.0 + DEBOUNCE_S + killed.plan_s + 0.5)


def test_messages_are_counted_for_the_hosts_that_change_only() -> None:
    made = Forecast(QUOTAS)
    first = made.start(10)
    # A list for each host, the record and the catalog's version; each host says that it has followed.
    assert first.writes == 10 + 2 + 10
    assert first.reads == 10 + 10 + 10
    made = Forecast({f"t/{i}": 1.0 for i in range(4)})
    made.start(2)
    # One list changes and is written, the record, the version; the former list goes; two hosts and the loser say so.
    killed = made.kill(1)
    assert killed.groups_moved == 2
    assert killed.writes == 1 + 2 + 1 + 1
    assert killed.written_bytes > 0


def test_hosts_for_a_million() -> None:
    assert forecast.hosts_for(1_000_000, 2.6, 0.6) == 5
    assert forecast.hosts_for(1_000_000, 300, 0.5) == 600
    assert forecast.hosts_for(1) == 1
