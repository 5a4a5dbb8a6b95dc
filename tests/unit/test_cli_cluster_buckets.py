"""`emq hosts`, `plan`, `drain` and `weight` where the plan has buckets of families: users see topics and groups."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from emq.runtime import errors
from emq.topics import buckets
from emq.topics.model import Topic, TopicOptions, split
from emq_cli import cluster, hosts, orders, plan
from emq_cli.bucket_contents import Amount, BucketContents
from support import emq_shell
from support.cluster_shell import Shell
from support.members import Follower
from support.virtual import virtual

pytestmark = virtual

FAMILY = "orders.*"
ALONE = [split(Topic("mails", 90))]
BELOW = [split(Topic(f"orders.{name}", qps, family=FAMILY)) for name, qps in (("acme", 150), ("hooli", 40), ("odd", 9))]
GROUPS = sum(topic.groups for topic in (*ALONE, *BELOW))
SLOW_S = 4.0


@pytest.fixture
async def emq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Commands on a cluster with a family of three topics, and a topic of no family."""
    emq_shell.enter(tmp_path, monkeypatch)
    made = Shell(monkeypatch, capsys)
    made.known = await cluster.view_of([*ALONE, *BELOW], {FAMILY: buckets.BUCKETS})
    return made


def bucket_of(group: str) -> str:
    [topic] = [topic for topic in BELOW if group in topic.name + "/0"]
    found = buckets.bucket_of(topic, 0, {})
    assert found is not None
    return found


# ------------------------------------------------------------------------------------------------------------- hosts


async def test_hosts_count_the_groups_and_quotas_of_topics_with_the_buckets_beside(emq: Shell) -> None:
    meeting = emq.meet()
    async with Follower(meeting, "a"), Follower(meeting, "b"):
        await asyncio.sleep(8)
        found = await emq.json(hosts.hosts)
        a, b = found["hosts"]
        assert (found["groups"], found["buckets"]) == (GROUPS, buckets.BUCKETS)
        assert a["groups"] + b["groups"] == GROUPS
        assert a["buckets"] + b["buckets"] == buckets.BUCKETS
        assert a["quota"] + b["quota"] == pytest.approx(289)
        loads = emq.known.loads
        its_load = sum(loads[entry] for entry, host in meeting.owners.items() if host == "a")
        assert a["load"] == pytest.approx(its_load / (sum(loads.values()) / 2))
        assert [h[name] for h in (a, b) for name in ("waiting", "waiting_buckets", "draining_buckets")] == [0] * 6
        said = await emq(hosts.hosts)
        assert f"2 hosts [online], {GROUPS} groups and 1,024 buckets by plan" in said
        assert "/bucket/" not in said
        assert f" {a['buckets']} " in said


async def test_without_families_hosts_have_no_column_of_buckets(emq: Shell) -> None:
    emq.known = await cluster.view_of(ALONE)
    meeting = emq.meet()
    async with Follower(meeting, "a"):
        await asyncio.sleep(3)
        assert "bucket" not in await emq(hosts.hosts)
        assert "bucket" not in await emq(plan.plan)
        assert (await emq.json(hosts.hosts))["buckets"] == 0


async def test_buckets_without_groups_are_told_of_while_they_wait_and_drain(emq: Shell) -> None:
    emq.known = await cluster.view_of([], {FAMILY: buckets.BUCKETS})
    meeting = emq.meet()
    async with Follower(meeting, "a", drain_s=SLOW_S):
        await asyncio.sleep(3)
        async with Follower(meeting, "b"):
            await asyncio.sleep(2)
            a, b = (await emq.json(hosts.hosts))["hosts"]
            assert (b["groups"], b["waiting"]) == (0, 0)
            assert b["buckets"] == b["waiting_buckets"] == a["draining_buckets"] > 400
            said = await emq(hosts.hosts)
            assert f"{b['buckets']}, {b['buckets']} waiting" in said
            assert f"all but {b['buckets']} buckets" in said
            assert f"draining: {b['buckets']} buckets" in await emq(plan.plan, "a")


async def test_buckets_that_nobody_consumes_are_a_trouble(emq: Shell) -> None:
    meeting = emq.meet()
    async with Follower(meeting, "a"):
        await asyncio.sleep(3)
    assert f"nobody consumes the {GROUPS} groups and 1,024 buckets" in await emq(hosts.hosts)


# -------------------------------------------------------------------------------------------------------------- plan


async def test_a_plan_counts_groups_of_topics_and_says_how_to_see_the_family(emq: Shell) -> None:
    meeting = emq.meet()
    async with Follower(meeting, "a"):
        await asyncio.sleep(3)
        whole = await emq.json(plan.plan)
        assert (whole["groups"], whole["buckets"]) == (GROUPS, buckets.BUCKETS)
        assert (whole["holding"]["held"], whole["holding_buckets"]["held"]) == (GROUPS, buckets.BUCKETS)
        assert whole["max_over_mean"] == pytest.approx(1.0)
        said = await emq(plan.plan)
        assert "emq plan 'orders.*'" in said
        assert "/bucket/" not in said


async def test_a_group_of_a_family_has_the_owner_and_epoch_of_its_bucket(emq: Shell) -> None:
    meeting = emq.meet()
    async with Follower(meeting, "a"):
        await asyncio.sleep(3)
        async with Follower(meeting, "b"):
            await asyncio.sleep(6)
            [one] = (await emq.json(plan.plan, "orders.hooli"))["groups"]
            bucket = bucket_of("orders.hooli/0")
            owner = meeting.owners[bucket]
            assert (one["group"], one["quota"], one["host"], one["bucket"]) == ("orders.hooli/0", 40, owner, bucket)
            assert one["epoch"] == meeting.members[owner].held[bucket]
            assert len((await emq.json(plan.plan, "orders.acme"))["groups"]) == 3
            assert bucket in await emq(plan.plan, "orders.hooli")
            group = await emq.json(plan.plan, "orders.hooli/0")
            assert group["explanation"][0].startswith(
                f"orders.hooli/0 is in bucket {bucket}. A bucket goes to one host"
            )
            assert group["explanation"][1].startswith(f"{bucket} (")
            assert f"is on {owner}: " in group["explanation"][1]
            assert bucket in await emq(plan.plan, "orders.hooli/0")
            assert "bucket" not in await emq(plan.plan, "mails/0")


async def test_a_group_of_a_family_names_the_host_that_its_bucket_waits_for(emq: Shell) -> None:
    meeting = emq.meet()
    async with Follower(meeting, "a", drain_s=SLOW_S):
        await asyncio.sleep(3)
        async with Follower(meeting, "b"):
            await asyncio.sleep(2)
            found = await emq.json(plan.plan, "b")
            moving = [row["group"] for row in found["group_list"] if row["bucket"]]
            assert moving
            for group in moving:
                assert (await emq.json(plan.plan, group))["awaited"] == ["a"]
                assert "waits for a" in await emq(plan.plan, group)
            assert {*moving} <= {*(await emq.json(plan.plan, "a"))["draining_list"]}
            assert found["buckets_by_family"] == {FAMILY: found["buckets"]}
            shown = await emq(plan.plan, FAMILY)
            assert f"{found['buckets']} buckets: waits for its former owner" in shown


async def test_a_family_is_shown_by_hosts_and_not_by_buckets(emq: Shell) -> None:
    meeting = emq.meet()
    async with Follower(meeting, "a"), Follower(meeting, "b"):
        await asyncio.sleep(8)
        found = await emq.json(plan.plan, FAMILY)
        below = sum(topic.groups for topic in BELOW)
        assert (found["family"], found["groups"], found["buckets"]) == (FAMILY, below, buckets.BUCKETS)
        assert found["quota"] == sum(row["quota"] for row in found["hosts"]) == 199
        assert [row["host"] for row in found["hosts"]] == ["a", "b"]
        assert sum(row["groups"] for row in found["hosts"]) == below
        assert sum(row["buckets"] for row in found["hosts"]) == buckets.BUCKETS
        said = await emq(plan.plan, FAMILY)
        assert f"orders.*: {below} groups of topics that are awake, in 1,024 buckets" in said
        assert len(said.splitlines()) < 10


async def test_a_bucket_is_shown_with_its_groups(emq: Shell) -> None:
    meeting = emq.meet()
    async with Follower(meeting, "a"):
        await asyncio.sleep(3)
        bucket = bucket_of("orders.odd/0")
        found = await emq.json(plan.plan, bucket)
        assert (found["bucket"], found["groups"], found["host"]) == (bucket, ["orders.odd/0"], "a")
        assert "orders.odd/0" in await emq(plan.plan, bucket)
        empty = next(name for name in buckets.names_of(FAMILY) if not emq.known.contents.groups([name]))
        assert "none of topics that are awake" in await emq(plan.plan, empty)


async def test_groups_below_a_budget_of_a_family_are_explained_by_the_bucket_that_they_share(emq: Shell) -> None:
    root = split(Topic("orders.all", 100, family=FAMILY, shared_s=1))
    below = split(Topic("orders.vip", 60, options=TopicOptions(budget="orders.all"), family=FAMILY))
    emq.known = await cluster.view_of([root, below], {FAMILY: buckets.BUCKETS})
    assert emq.known.units == {}
    meeting = emq.meet()
    async with Follower(meeting, "a"):
        await asyncio.sleep(3)
        found = [(await emq.json(plan.plan, group)) for group in ("orders.all/0", "orders.vip/0", "orders.vip/1")]
        assert len({group["bucket"] for group in found}) == 1
        assert [group["quota"] for group in found] == [50, 0, 0]
        assert "All groups that share the budget" not in await emq(plan.plan, "orders.vip/0")


async def test_a_topic_that_is_not_awake_is_told_from_a_name_that_nobody_knows(emq: Shell) -> None:
    meeting = emq.meet()
    async with Follower(meeting, "web-1"):
        await asyncio.sleep(3)
        for name in ("orders.zz", "orders.zz/0"):
            with pytest.raises(
                errors.UnknownTopic, match=r"no topic 'orders\.zz' is awake, .* makes or wakes the topic"
            ):
                await emq(plan.plan, name)
        with pytest.raises(errors.UnknownTopic, match=r"no group, .* 'order\.\*'; did you mean 'orders\.\*'"):
            await emq(plan.plan, "order.*")
        with pytest.raises(errors.UnknownTopic, match=r"no group, .* 'orders\.acme/7'; did you mean 'orders\.acme/"):
            await emq(plan.plan, "orders.acme/7")
        emq.known = emq.known._replace(families={FAMILY: buckets.BUCKETS, "new.*": buckets.BUCKETS})
        with pytest.raises(errors.UnknownTopic, match=r"does not know 'new\.\*' yet"):
            await emq(plan.plan, "new.*")


async def test_a_newer_catalog_that_asks_for_no_other_plan_is_no_delay(emq: Shell) -> None:
    meeting = emq.meet()
    async with Follower(meeting, "a"):
        await asyncio.sleep(3)
        emq.known = emq.known._replace(catalog=7)
        assert "version 1, now at 7; no change since then needs another plan" in await emq(plan.plan)
        emq.known = emq.known._replace(loads={**emq.known.loads, "more/0": 1.0})
        said = await emq(plan.plan)
        assert "now at 7" in said
        assert "needs another plan" not in said


async def test_without_the_database_buckets_are_counted_and_groups_in_them_are_unknown(emq: Shell) -> None:
    meeting = emq.meet()
    async with Follower(meeting, "a"):
        await asyncio.sleep(3)
        emq.known = cluster.DatabaseView([], {}, 0, [], "no database today")
        assert "1 host [online], 2 groups and 1,024 buckets by plan" in await emq(hosts.hosts)
        assert f"{FAMILY}: 0 groups" in await emq(plan.plan, FAMILY)
        with pytest.raises(errors.UnknownTopic, match=r"'orders\.acme/0' \(no database today\)"):
            await emq(plan.plan, "orders.acme/0")


# ----------------------------------------------------------------------------------------------------- drain and weight


async def test_a_drain_counts_the_groups_of_topics_that_move(emq: Shell) -> None:
    meeting = emq.meet()
    async with Follower(meeting, "a", drain_s=3.0), Follower(meeting, "b"), Follower(meeting, "c"):
        await asyncio.sleep(12)
        before = (await emq.json(hosts.hosts))["hosts"][0]
        done = await emq.json(orders.drain, "a")
        assert done["waited"]
        assert sum(done["moved_to"].values()) == before["groups"]
        assert sum(done["buckets_moved_to"].values()) == before["buckets"]
        assert set(done["buckets_moved_to"]) == {"b", "c"}
        [a, *_] = (await emq.json(hosts.hosts))["hosts"]
        assert (a["state"], a["groups"], a["buckets"], a["draining_buckets"]) == ("drained", 0, 0, 0)
        assert await emq(orders.drain, "a") == "a gets no groups; nothing had to move\n"
        assert " buckets moved, " in await emq(orders.drain, "a", undo=True)


async def test_a_family_without_topics_moves_as_buckets(emq: Shell) -> None:
    emq.known = await cluster.view_of([], {FAMILY: buckets.BUCKETS})
    meeting = emq.meet()
    async with Follower(meeting, "a"), Follower(meeting, "b"):
        await asyncio.sleep(8)
        found = (await emq.json(hosts.hosts))["hosts"][0]["buckets"]
        assert await emq(orders.drain, "a") == f"a gets no groups: {found} buckets moved, {found} buckets to b\n"


async def test_an_order_waits_for_the_plan_that_the_leader_makes_for_hosts_with_different_handlers(emq: Shell) -> None:
    emq.known = await cluster.view_of([split(Topic("mails", 900)), *BELOW], {FAMILY: buckets.BUCKETS})
    meeting = emq.meet()
    async with (
        Follower(meeting, "a", serves=("mails",)),
        Follower(meeting, "b", serves=(FAMILY,)),
        Follower(meeting, "c"),
    ):
        await asyncio.sleep(12)
        loop = asyncio.get_running_loop()
        began = loop.time()
        done = await emq.json(orders.weight, "c", 2.0)
        assert loop.time() - began < 5
        assert done["waited"]
        assert "a" not in [row["host"] for row in (await emq.json(plan.plan, FAMILY))["hosts"]]


async def test_an_order_does_not_wait_for_moves_that_only_this_command_would_make(emq: Shell) -> None:
    """The leader goes by what was awake in the last minutes; the command sees what is awake now."""
    meeting = emq.meet()
    meeting.quotas = {g: buckets.LEAST_LOAD if buckets.is_bucket(g) else load for g, load in emq.known.loads.items()}
    async with Follower(meeting, "a"), Follower(meeting, "b"), Follower(meeting, "c"):
        await asyncio.sleep(12)
        for weight in (2.0, 0.5):
            assert (await emq.json(orders.weight, "c", weight))["waited"]
        assert (await emq.json(orders.drain, "c"))["waited"]
        assert "c" not in meeting.owners.values()


# -------------------------------------------------------------------------------------------------- counts and contents


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (Amount(0, 0), "0 groups"),
        (Amount(1, 0), "1 group"),
        (Amount(0, 12), "12 buckets"),
        (Amount(3, 1), "3 groups and 1 bucket"),
        (Amount(2_000, 1_024), "2,000 groups and 1,024 buckets"),
    ],
)
def test_an_amount_leaves_out_the_kind_of_which_there_is_none(amount: Amount, text: str) -> None:
    assert str(amount) == text


def test_contents_of_buckets_are_counted_as_groups() -> None:
    first, second = buckets.names_of(FAMILY)[:2]
    contents = BucketContents({"orders.a/0": first, "orders.b/0": first})
    assert contents.entry_of("orders.a/0") == first
    assert contents.entry_of("mails/0") == "mails/0"
    assert contents.groups([first, second, "mails/0"]) == ["orders.a/0", "orders.b/0", "mails/0"]
    assert contents.amount(entry for entry in (first, second, "mails/0")) == Amount(3, 2)
