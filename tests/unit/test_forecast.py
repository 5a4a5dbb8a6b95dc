"""What a plan would be like: numbers that follow from the real allocation code."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from emq.allocation.leader import DEBOUNCE_S
from emq.topics import buckets
from emq.topics.model import Topic
from emq_cli import forecast, simulation
from emq_cli.forecast import Forecast
from support.emq_shell import Shell

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


# -------------------------------------------------------------------------------------------------- emq plan --simulate


def test_a_simulation_needs_neither_cluster_nor_catalog_and_leaves_nothing_behind(emq: Shell, tmp_path: Path) -> None:
    found = emq.json("plan --simulate --hosts 8 --topics 200 --qps 20000 --kill 2 --add 1 --weight 2")
    assert [step["hosts"] for step in found["steps"]] == [8, 6, 7]
    assert found["qps"] == pytest.approx(20_000, rel=1e-3)
    assert all(step["max_over_mean"] <= 1.10 for step in found["steps"])
    assert all(step["moves_over_minimum"] <= 1.2 for step in found["steps"])
    assert found["steps"][0]["pause"] is None
    assert found["steps"][1]["pause"]["most"] > 10
    assert found["steps"][2]["pause"] == {"typical": 0.5, "most": 1.0}
    assert list(tmp_path.iterdir()) == []


def test_a_million_a_second_takes_so_many_hosts_under_assumptions_that_are_named(emq: Shell) -> None:
    said = emq("plan --simulate --qps 1000000 --topics 2000 --kill 1")
    assert "5 hosts, of one process each, needed: 2.6 us of a core for a message, at most 60% busy" in said
    assert "This assumes handlers that do nothing" in said
    assert "Predicted pause" in said
    assert "1 of them killed: " in said
    assert said.count("####") >= 9
    found = emq.json("plan --simulate --qps 1000000 --topics 2000 --message-us 300 --utilisation 0.5 --hosts 4")
    assert (found["hosts_needed"], found["hosts"]) == (600, 4)


def test_a_simulation_is_of_the_catalog_where_there_is_one(emq: Shell) -> None:
    emq("topic create shop --qps 400")
    assert "8 groups of the catalog's 1 topic: 400 starts a second" in emq("plan --simulate --hosts 2")
    assert "made-up" in emq("plan --simulate --hosts 2 --topics 5 --qps 100")


def test_a_simulation_of_families_plans_buckets_and_counts_the_starts_of_their_topics(emq: Shell) -> None:
    emq("family create orders.* --qps 100")
    emq("topic create orders.acme")
    found = emq.json("plan --simulate --hosts 2 --kill 1")
    assert (found["groups"], found["buckets"], found["qps"]) == (2, buckets.BUCKETS, 100)
    assert 400 < found["steps"][1]["groups_moved"] < 700
    said = emq("plan --simulate --hosts 2")
    assert "2 groups and 1,024 buckets of the catalog's 1 topic: 100 starts a second" in said
    assert "A bucket of a family moves with all groups in it" in said


def test_a_simulation_refuses_what_cannot_be(emq: Shell) -> None:
    assert "3 of 3 hosts leaves none" in emq.refused("plan --simulate --hosts 3 --topics 5 --qps 100 --kill 3", code=2)
    assert "leave the name out" in emq.refused("plan orders --simulate", code=2)


def test_the_picture_has_a_line_for_each_host_or_for_each_twentieth() -> None:
    few = simulation.bars([0.5, 1.0])
    assert [line.count("#") for line in few] == [20, 40]
    many = simulation.bars([0.96] * 30 + [1.0] * 60 + [1.09])
    assert [line.split("#")[0].strip() for line in many] == ["0.95 to 1.00", "1.00 to 1.05", "1.05 to 1.10"]
    assert [line.count("#") for line in many] == [20, 40, 1]
    assert many[-1].endswith(" 1 host")
