"""`emq drain` and `emq weight`: what they change, what they wait for, and how they say no."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from emq.runtime import errors
from emq_cli import hosts, orders, plan
from emq_cli.cluster import DatabaseView
from support.cluster_shell import Shell, shell
from support.members import Follower
from support.virtual import virtual

pytestmark = virtual


@pytest.fixture
def emq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return shell(tmp_path, monkeypatch, capsys)


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
