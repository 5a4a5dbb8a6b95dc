"""`emq plan --simulate`: what it computes, assumes and shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from emq_cli import simulation
from support.emq_shell import Shell


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
