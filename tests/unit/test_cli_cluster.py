"""`emq hosts`, `plan`, `drain` and `weight`: what they show, what they change, and how they say no."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from emq.allocation import records
from emq.allocation.records import Order, Running
from emq.host.statistics import HostStatistics, Rates, Totals
from emq.observe.snapshots import AgedSnapshot
from emq.runtime import errors
from emq.topics.model import Topic
from emq_cli import cluster, host_view, hosts, orders, plan, plan_view, session
from emq_cli.cluster import DatabaseView
from emq_trace import cluster_view
from support import emq_shell
from support.cluster_shell import QUOTAS, TOPICS, Shell
from support.members import Follower
from support.virtual import virtual

pytestmark = virtual


@pytest.fixture
def emq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Commands on a cluster, in an empty directory, without settings from the environment."""
    emq_shell.enter(tmp_path, monkeypatch)
    return Shell(monkeypatch, capsys)


def snapshot(host: str, started_per_s: float, age_s: float = 0.1) -> AgedSnapshot:
    rates = Rates(started=started_per_s)
    return AgedSnapshot(
        HostStatistics(host, 0.0, 5.0, 1, 7, 1, 0, 0, 0, 0, 0.0, None, None, Totals(), rates, ()), age_s
    )


# ------------------------------------------------------------------------------------------------------------- hosts


async def test_hosts_are_shown_with_their_weights_loads_and_the_leader(emq: Shell) -> None:
    emq.known = emq.known._replace(hosts=[snapshot("a", 123.0), snapshot("b", 50.0, age_s=60)])

    meeting = emq.meet()
    async with Follower(meeting, "a"), Follower(meeting, "b", weight=2.0):
        await asyncio.sleep(8)
        found = await emq.json(hosts.hosts)
        a, b = found["hosts"]
        assert found["leader"] == "a"
        assert found["groups"] == len(QUOTAS) == a["groups"] + b["groups"]
        assert (a["leads"], b["leads"]) == (True, False)
        assert a["quota"] + b["quota"] == pytest.approx(490.5)
        assert b["load"] == pytest.approx(b["quota"] / (490.5 * 2 / 3))
        assert (a["started_per_s"], b["started_per_s"]) == (123.0, None)
        assert [h["state"] for h in (a, b)] == ["member", "member"]
        assert {h["generation"] for h in (a, b)} == {found["generation"]}
        assert (a["pid"], a["waiting"], a["draining"]) == (os.getpid(), 0, 0)
        said = await emq(hosts.hosts)
        assert "2 hosts [online], 11 groups by plan" in said
        assert "member, leads" in said
        assert f":{os.getpid()}" in said


async def test_an_empty_cluster_says_how_to_begin(emq: Shell) -> None:
    emq.meet()
    assert await emq(hosts.hosts) == "the cluster has no hosts; start one with: emq host\n"
    assert (await emq.json(hosts.hosts))["hosts"] == []
    assert "no plan yet" in await emq(plan.plan)
    assert (await emq.json(plan.plan))["generation"] is None


async def test_a_cluster_whose_hosts_are_all_gone_says_so(emq: Shell) -> None:
    meeting = emq.meet()
    async with Follower(meeting, "a"):
        await asyncio.sleep(3)
    assert "no host is there: nobody consumes the 11 groups" in await emq(hosts.hosts)
    [gone] = (await emq.json(hosts.hosts))["hosts"]
    assert (gone["state"], gone["groups"], gone["weight"]) == ("gone", 11, None)


@pytest.mark.parametrize(
    ("member", "order", "groups", "state"),
    [
        (Running("i", "m", 1, 1.0, 0.0, generation=5), Order(), 1, "member"),
        (Running("i", "m", 1, 0.0, 0.0, generation=5), Order(), 0, "no weight"),
        (Running("i", "m", 1, 1.0, 0.0, generation=5), Order(weight=0.0), 0, "no weight"),
        (Running("new", "m", 1, 1.0, 0.0), Order(), 0, "joining"),
        (Running("i", "m", 1, 1.0, 0.0, leaving=True, generation=5), Order(), 1, "leaving"),
        (Running("i", "m", 1, 1.0, 0.0, generation=4), Order(drain=True), 0, "draining"),
        (Running("i", "m", 1, 1.0, 0.0, generation=5, draining=("t/1",)), Order(drain=True), 0, "draining"),
        (Running("i", "m", 1, 1.0, 0.0, generation=5), Order(drain=True), 1, "draining"),
        (Running("i", "m", 1, 1.0, 0.0, generation=5), Order(drain=True), 0, "drained"),
        (None, Order(), 1, "gone"),
        (None, Order(drain=True), 0, "absent"),
    ],
)
def test_the_state_of_a_host_is_what_an_operator_would_call_it(
    member: Running | None, order: Order, groups: int, state: str
) -> None:
    lists = {"a": records.Pointer("i", 5, 1)}
    seen = cluster_view.View(
        "online",
        records.Record("online", 5, 1, "a", 0.0, lists),
        {} if member is None else {"a": member},
        {"a": order},
        {f"t/{i}": cluster_view.Owned("a", records.Entry(5, "")) for i in range(groups)},
        "a",
    )
    assert host_view.state(seen, "a", groups) == state
    [row] = host_view.rows(seen, DatabaseView([], {"t/0": 1.0}, 1, [], loads={"t/0": 1.0}))
    assert row.state == state


async def test_a_narrow_terminal_shows_what_matters_most(emq: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = emq.meet()
    async with Follower(meeting, "web-0.internal"):
        await asyncio.sleep(3)
        assert "runs on" in await emq(hosts.hosts)
        monkeypatch.setattr(session, "PIPE_WIDTH", 80)
        said = await emq(hosts.hosts)
        assert "runs on" not in said
        assert "web-0.internal   member, leads   1" in said


def test_a_clock_that_is_off_is_told_of(emq: Shell) -> None:
    members = {
        "a": Running("i", "m", 1, 1.0, 0.0, generation=5, ahead_s=-3.2),
        "b": Running("i", "m", 1, 1.0, 0.0, generation=5, ahead_s=0.3),
    }
    record = records.Record("online", 5, 1, "a", 0.0, dict.fromkeys(members, records.Pointer("i", 5, 0)))
    seen = cluster_view.View("online", record, members, {}, {}, "a")
    known = DatabaseView([], {}, 1, [], trouble="quotas and rates are not known: no database today")
    found = host_view.rows(seen, known)
    first, second = host_view.troubles(seen, found, known)
    assert first == known.trouble
    assert second.startswith("a: its clock is 3.2 s behind that of the servers in which hosts meet")


async def test_watching_goes_on_while_the_ensemble_is_out_of_reach(emq: Shell) -> None:
    meeting = emq.meet()
    async with Follower(meeting, "a"):
        await asyncio.sleep(3)
        asyncio.get_running_loop().call_later(1.5, setattr, meeting.ensemble, "quorum", False)
        asyncio.get_running_loop().call_later(3.5, setattr, meeting.ensemble, "quorum", True)
        lines = (await emq(hosts.hosts, watch=True, count=6, json=True)).splitlines()
        found = [json.loads(line) for line in lines]
        assert len(found) == 6
        assert [len(frame.get("hosts", [])) for frame in (found[0], found[-1])] == [1, 1]
        assert any("ensemble in memory" in frame["trouble"][0] for frame in found if frame["trouble"])


def test_without_a_cluster_hosts_shows_what_the_database_knows(emq: Shell) -> None:
    said = emq.command("hosts")
    assert "no host is running; start one with: emq up" in said
    assert "one host alone consumes from this store" in said
    assert emq.command.json("hosts")["hosts"] == []


# -------------------------------------------------------------------------------------------------------------- plan


async def test_a_plan_says_who_owns_what_and_why(emq: Shell) -> None:
    meeting = emq.meet()
    async with Follower(meeting, "a"):
        await asyncio.sleep(3)
        async with Follower(meeting, "b"):
            await asyncio.sleep(5)
            whole = await emq.json(plan.plan)
            assert (whole["hosts"], whole["groups"], whole["catalog"], whole["planned_by"]) == (2, 11, 1, "a")
            assert whole["holding"]["held"] == 11
            assert 1.0 <= whole["max_over_mean"] <= 1.11
            assert [h["host"] for h in whole["host_list"]] == ["a", "b"]
            owner = {g["group"]: g["host"] for g in (await emq.json(plan.plan, "orders"))["groups"]}
            assert [*owner] == [f"orders/{i}" for i in range(8)]
            host = await emq.json(plan.plan, "b")
            mine = {g["group"] for g in host["group_list"]}
            assert {g for g, h in owner.items() if h == "b"} <= mine
            assert host["groups"] == len(mine)
            group = await emq.json(plan.plan, "orders/3")
            assert group["host"] == owner["orders/3"]
            assert group["quota"] == 50
            assert (group["holding"], group["awaited"]) == ("held", [])
            assert group["explanation"][0].startswith(f"orders/3 (50 a second) is on {owner['orders/3']}: ")
            for name, text in (("", "fullest"), ("orders/3", "its host"), ("orders", "8 groups"), ("b", "member")):
                assert text in await emq(plan.plan, name or None), name


async def test_a_group_that_moves_names_whom_it_waits_for(emq: Shell) -> None:
    meeting = emq.meet()
    async with Follower(meeting, "a", drain_s=4.0):
        await asyncio.sleep(3)
        async with Follower(meeting, "b"):
            await asyncio.sleep(2)
            moving = [g["group"] for g in (await emq.json(plan.plan, "b"))["group_list"]]
            assert "waits for a" in await emq(plan.plan, moving[0])
            said = await emq(hosts.hosts)
            assert f"{len(moving)}, {len(moving)} waiting" in said
            assert f"all but {len(moving)}" in said
            assert f"{len(moving)} groups: waits for its former owner" in await emq(plan.plan)
            assert (await emq.json(plan.plan, "a"))["draining_list"] == moving


async def test_a_name_that_the_plan_does_not_know_is_refused_with_those_alike(emq: Shell) -> None:
    meeting = emq.meet()
    async with Follower(meeting, "web-1"):
        await asyncio.sleep(3)
        with pytest.raises(errors.UnknownTopic, match="did you mean 'orders'"):
            await emq(plan.plan, "ordesr")
        with pytest.raises(errors.UnknownTopic, match="did you mean 'web-1'"):
            await emq(plan.plan, "web-2")
        emq.known = emq.known._replace(topics=[*TOPICS, Topic("new", 1)])
        with pytest.raises(errors.UnknownTopic, match="does not know 'new' yet"):
            await emq(plan.plan, "new")


def test_groups_of_a_host_that_is_gone_and_unknown_to_the_catalog_are_explained() -> None:
    record = records.Record("online", 5, 1, "a", 0.0, {"a": records.Pointer("i", 5, 1)})
    groups = {g: cluster_view.Owned("a", records.Entry(5, "ring")) for g in ("t/0", "old/0")}
    seen = cluster_view.View("online", record, {"b": Running("i", "m", 1, 1.0, 0.0)}, {}, groups, "b")
    known = DatabaseView([], {"t/0": 1.0}, 1, [], loads={"t/0": 1.0})
    [gone] = plan_view.explanation(seen, known, "t/0")
    assert gone == "t/0 is on a, which is gone; the next plan gives it to another."
    [unknown] = plan_view.explanation(seen, known, "old/0")
    assert "not in the catalog" in unknown


# ---------------------------------------------------------------------------------------------- what can be in the way


@pytest.mark.parametrize("line", ["plan", "drain a", "weight a 2"])
def test_without_a_cluster_the_remedy_is_named(emq: Shell, line: str) -> None:
    said = emq.command.refused(line, code=2)
    assert "one host alone consumes from 'sqlite:///emq.db', so there is no cluster" in said


def test_an_ensemble_that_does_not_answer_is_given_up_with_its_servers_and_reasons(
    emq: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def known(session: object) -> DatabaseView:
        return DatabaseView([], {}, 0, [])

    monkeypatch.setattr(cluster, "known", known)
    original = cluster_view.opened
    monkeypatch.setattr(cluster_view, "opened", lambda tree, servers, timeout_s: original(tree, servers, 1.5))
    said = emq.command.refused("plan --cluster zookeeper://u:secret@127.0.0.1:1,127.0.0.1:2", code=4)
    assert "no ZooKeeper server of zookeeper://u:***@127.0.0.1:1,127.0.0.1:2 answered within 1.5 s" in said
    assert "127.0.0.1:1: " in said
    assert "secret" not in said


def test_a_database_out_of_reach_does_not_hide_the_cluster(emq: Shell, tmp_path: Path) -> None:
    (tmp_path / "broken.db").write_bytes(b"not a database, and long enough to be taken for one" * 100)
    found = asyncio.run(cluster.known(session.Session({"database": "sqlite:///broken.db"})))
    assert found.quotas == {}
    assert "quotas and rates are not known" in found.trouble
    assert "not an SQLite database" in found.trouble


# ----------------------------------------------------------------------------------------------------- drain and weight


async def test_a_drain_waits_until_the_groups_have_moved_and_says_where_to(emq: Shell) -> None:
    meeting = emq.meet()
    async with Follower(meeting, "a", drain_s=3.0), Follower(meeting, "b"), Follower(meeting, "c"):
        await asyncio.sleep(12)
        before = (await emq.json(hosts.hosts))["hosts"][0]["groups"]
        loop = asyncio.get_running_loop()
        began = loop.time()
        done = await emq.json(orders.drain, "a")
        assert 3.0 < loop.time() - began < 6.0
        assert done["waited"]
        assert done["drain"]
        assert set(done["moved_to"]) <= {"b", "c"}
        assert sum(done["moved_to"].values()) == before
        [a, *_] = (await emq.json(hosts.hosts))["hosts"]
        assert (a["state"], a["groups"], a["draining"]) == ("drained", 0, 0)
        assert await emq(orders.drain, "a") == "a gets no groups; nothing had to move\n"
        assert "a gets groups again: " in await emq(orders.drain, "a", undo=True)
        assert (await emq.json(hosts.hosts))["hosts"][0]["groups"] > 0


async def test_a_weight_counts_at_once_and_until_it_is_reset(emq: Shell) -> None:
    meeting = emq.meet()
    async with Follower(meeting, "a"), Follower(meeting, "b"):
        await asyncio.sleep(8)
        said = await emq(orders.weight, "a", 3)
        assert said.startswith("a gets weight 3: ")
        a, b = (await emq.json(hosts.hosts))["hosts"]
        assert a["quota"] > 2 * b["quota"]
        assert (a["weight"], a["ordered_weight"]) == (1.0, 3.0)
        assert "3 (set: 1)" in await emq(hosts.hosts)
        assert "gets the weight of its own setting" in await emq(orders.weight, "a", reset=True)
        a, b = (await emq.json(hosts.hosts))["hosts"]
        assert a["ordered_weight"] is None
        assert a["quota"] < 1.2 * b["quota"]


async def test_an_order_waits_for_other_hosts_and_for_groups_that_go_to_nobody_too(emq: Shell) -> None:
    meeting = emq.meet()
    async with Follower(meeting, "a", drain_s=3.0), Follower(meeting, "b"):
        await asyncio.sleep(12)
        now_s = asyncio.get_running_loop().time
        began = now_s()
        assert "to b" in await emq(orders.weight, "b", 4.0)
        assert 3.0 < now_s() - began < 6.0
        await emq(orders.weight, "b", 0.0)
        began = now_s()
        assert "to nobody" in await emq(orders.drain, "a", yes=True)
        assert 3.0 < now_s() - began < 6.0


async def test_a_move_that_takes_too_long_is_no_success(emq: Shell) -> None:
    meeting = emq.meet()
    async with Follower(meeting, "a", drain_s=60.0), Follower(meeting, "b"):
        await asyncio.sleep(8)
        with pytest.raises(errors.EMQError, match=r"still under way after 5 s; see: emq hosts"):
            await emq(orders.drain, "a", timeout=5.0)
        [a, _] = (await emq.json(hosts.hosts))["hosts"]
        assert a["state"] == "draining"
        assert a["draining"] > 0


async def test_nobody_is_left_only_if_that_is_meant(emq: Shell) -> None:
    meeting = emq.meet()
    async with Follower(meeting, "a"), Follower(meeting, "b", weight=0.0):
        await asyncio.sleep(5)
        for call in ((orders.drain, "a"), (orders.weight, "a", 0.0)):
            with pytest.raises(errors.EMQError, match="nobody would consume the groups of a"):
                await emq(*call)
        assert (await emq.json(hosts.hosts))["hosts"][0]["groups"] == 11
        assert "11 groups moved, 11 to nobody" in await emq(orders.drain, "a", yes=True)
        said = await emq(hosts.hosts)
        assert "11 groups without a host" in said
        assert "nobody" in await emq(plan.plan, "odd/0")


async def test_an_order_for_a_host_that_is_not_there_must_be_meant_and_waits_for_it(emq: Shell) -> None:
    meeting = emq.meet()
    async with Follower(meeting, "web-1"):
        await asyncio.sleep(3)
        with pytest.raises(errors.EMQError, match="no host 'web-2'; did you mean 'web-1'"):
            await emq(orders.drain, "web-2")
        assert "the order waits for it" in await emq(orders.drain, "web-2", force=True)
        assert "absent, to be drained" in await emq(hosts.hosts)
        async with Follower(meeting, "web-2"):
            await asyncio.sleep(5)
            assert (await emq.json(hosts.hosts))["hosts"][1]["state"] == "drained"
            await emq(orders.drain, "web-2", undo=True)
            assert (await emq.json(hosts.hosts))["hosts"][1]["groups"] > 0


async def test_without_waiting_and_without_a_database_an_order_is_only_written(emq: Shell) -> None:
    meeting = emq.meet()
    async with Follower(meeting, "a"), Follower(meeting, "b"):
        await asyncio.sleep(5)
        assert await emq(orders.weight, "a", 2.0, wait=False) == "a gets weight 2\n"
        emq.known = DatabaseView([], {}, 0, [], "no database today")
        assert "nothing is planned while the database is out of reach" in await emq(orders.drain, "b")


def test_a_weight_is_given_or_reset(emq: Shell) -> None:
    for line in ("weight a", "weight a 2 --reset"):
        assert "either a weight or --reset" in emq.command.refused(f"{line} --cluster zookeeper://z", code=2)
    said = emq.command.refused("weight a 1001 --cluster zookeeper://z", code=2)
    assert "1000" in said  # typer says it in words, older ones in signs
