"""Members of a cluster that meet in a tree: who is told what, when the tree fails, and what is in it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from unittest import mock

import pytest

from emq.allocation import records
from emq.allocation.grounds import Grounds
from emq.allocation.heartbeat import LEASE_SHARE
from emq.allocation.plan import plan
from emq.allocation.records import Order, Running
from emq.runtime import errors
from support.members import PATHS, TIMEOUT_S, Cluster, cluster_of, quotas
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """Two hosts that share the groups."""
    async with cluster_of("a", "b") as made:
        yield made


async def test_hosts_share_the_groups_and_a_host_that_leaves_gives_its_own_to_the_others(cluster: Cluster) -> None:
    before = cluster.owners
    async with cluster.member("c"):
        await cluster.settled()
        assert set(cluster.owners.values()) == {"a", "b", "c"}
        moved = [g for g, host in cluster.owners.items() if host != before[g]]
        assert all(cluster.owners[g] == "c" for g in moved)
    await cluster.settled()
    assert set(cluster.owners.values()) == {"a", "b"}


async def test_a_group_waits_for_its_former_owner_and_for_no_other(cluster: Cluster) -> None:
    cluster.members["a"].drain_s = 5.0
    async with cluster.member("c") as c:
        await until(lambda: len(c.held) > 0, 3)
        early = {g for g, host in cluster.owners.items() if host == "c"}
        await asyncio.sleep(6)
        late = {g for g, host in cluster.owners.items() if host == "c"} - early
        assert early
        assert late


async def test_epochs_of_a_group_grow_with_each_owner() -> None:
    async with cluster_of("a") as cluster:
        first = dict(cluster.members["a"].held)
        async with cluster.member("b") as b:
            await cluster.settled()
            assert b.held
            assert all(epoch > first[group] for group, epoch in b.held.items())
            assert all(first[g] == e for g, e in cluster.members["a"].held.items())


async def test_a_host_that_is_cut_off_stops_by_its_lease_before_others_begin(cluster: Cluster) -> None:
    a, b = cluster.members["a"], cluster.members["b"]
    cut_at = cluster.clock.now()
    cluster.ensemble.partition(a.tree)
    cluster.members.pop("a")
    assert a.membership.lease.until <= cut_at + LEASE_SHARE * TIMEOUT_S
    await until(lambda: a.membership.lease.suspended, 5)
    await until(lambda: len(b.held) == 12, 12)
    taken_after_s = cluster.clock.now() - cut_at
    assert a.membership.lease.until < cluster.clock.now()
    assert TIMEOUT_S * 0.8 <= taken_after_s <= TIMEOUT_S + 1.5
    cluster.ensemble.heal(a.tree)
    await until(lambda: a.era == 1, 5)
    cluster.members["a"] = a
    await cluster.settled()
    assert set(cluster.owners.values()) == {"a", "b"}
    assert not a.membership.lease.suspended


async def test_a_host_has_no_lease_of_a_new_session_before_it_has_forgotten_the_groups_of_the_former_one(
    cluster: Cluster,
) -> None:
    """An error may have broken the loop that forgets them; it starts again a second later."""
    a, b = cluster.members["a"], cluster.members["b"]
    cluster.ensemble.partition(a.tree)
    await until(lambda: len(b.held) == 12, 12)
    a.forgets_in_s = 7.0
    cluster.ensemble.heal(a.tree)
    held = dict(a.held)
    assert held
    await asyncio.sleep(6.0)
    assert a.held == held
    assert a.membership.lease.until < cluster.clock.now()
    await until(lambda: a.membership.lease.until > cluster.clock.now(), 5)
    assert a.era == 1
    await cluster.settled()


async def test_without_a_quorum_owners_go_on_to_their_deadline_and_keep_their_groups_when_it_is_back(
    cluster: Cluster,
) -> None:
    before, eras = cluster.owners, [m.era for m in cluster.members.values()]
    cluster.ensemble.quorum = False
    at = cluster.clock.now()
    leases = [m.membership.lease for m in cluster.members.values()]
    await asyncio.sleep(0.1)
    assert all(lease.suspended for lease in leases)
    assert all(lease.until > at for lease in leases)
    await asyncio.sleep(30)
    assert all(lease.until < at + TIMEOUT_S for lease in leases)
    cluster.ensemble.quorum = True
    await until(lambda: all(lease.until > cluster.clock.now() for lease in leases), 5)
    assert cluster.owners == before
    assert [m.era for m in cluster.members.values()] == eras


async def test_a_second_host_of_a_name_waits_for_the_first_to_vanish_and_is_refused_if_it_stays() -> None:
    async with cluster_of("a") as cluster:
        with pytest.raises(errors.HostConflict, match=r"'a' is a member of this cluster already \(process \d+ on"):
            await cluster.member("a").membership.join()
        old = cluster.members.pop("a")
        cluster.ensemble.partition(old.tree)
        async with cluster.member("a"):
            await cluster.settled()


async def test_a_host_that_meets_an_error_of_no_known_kind_while_it_joins_tries_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster()
    member, failures = cluster.member("a"), [RuntimeError("the handler is closed"), KeyError("data")]
    create = member.tree.create

    async def breaking(path: str, data: bytes = b"", **options: bool) -> str:
        if failures:
            raise failures.pop()
        return await create(path, data, **options)

    with mock.patch.object(member.tree, "create", breaking):
        async with member:
            await cluster.settled()
    assert "it tries again to join" in caplog.text


async def test_a_foreign_tree_is_refused_and_left_as_it_is() -> None:
    cluster = Cluster()
    tree = cluster.ensemble.tree()
    await tree.open(lambda state: None)
    await tree.create(PATHS.serverlist, b"somebody else's")
    with pytest.raises(errors.ForeignTree, match=r"/emq/online/serverlist .* was not written by this EMQ"):
        await cluster.member("a").membership.join()
    node = await tree.read(PATHS.serverlist)
    assert node is not None
    assert (node.data, node.version) == (b"somebody else's", 0)


async def test_a_damaged_plan_is_not_planned_over_and_hosts_keep_what_they_have(cluster: Cluster) -> None:
    before = cluster.owners
    tree = cluster.ensemble.tree()
    await tree.open(lambda state: None)
    good = await tree.read(PATHS.serverlist)
    assert good is not None
    await tree.write(PATHS.serverlist, good.data[:-3], -1)
    await cluster.members["a"].membership.offer(quotas(14), 2)
    await asyncio.sleep(20)
    assert cluster.owners == before
    bad = await tree.read(PATHS.serverlist)
    assert bad is not None
    assert bad.data == good.data[:-3]
    await tree.write(PATHS.serverlist, good.data, -1)
    await cluster.settled(14)
    await tree.close()


async def test_a_plan_that_was_written_half_counts_for_nobody(cluster: Cluster) -> None:
    leader = next(m for m in cluster.members.values() if m.membership._leader.leading)
    before, plan = cluster.owners, await cluster.record()
    writes = 0
    write = leader.tree.write

    async def fails(path: str, data: bytes, version: int) -> int:
        nonlocal writes
        if path == PATHS.serverlist:
            writes += 1
            raise errors.ClusterUnavailable("the leader was cut off between two writes")
        return await write(path, data, version)

    leader.tree.write = fails  # type: ignore[method-assign]
    for member in cluster.members.values():
        await member.membership.offer(quotas(15), 2)
    await until(lambda: writes > 0, 5)
    await asyncio.sleep(1)
    assert cluster.owners == before
    assert (await cluster.record()).generation == plan.generation
    leader.tree.write = write  # type: ignore[method-assign]
    await leader.end()
    await cluster.settled(15)
    tree = cluster.ensemble.tree()
    await tree.open(lambda state: None)
    record = await cluster.record()
    for host, pointer in record.lists.items():
        names = await tree.children(PATHS.lists(host))
        assert {name.partition("-")[0] for name in names} <= {str(pointer.generation)}, "leftovers were deleted"


async def test_of_two_that_lead_at_once_only_one_puts_its_plan_into_force(cluster: Cluster) -> None:
    a, b = (cluster.members[name].membership._leader for name in "ab")
    for leader in (a, b):
        leader._in_force, leader._done = await leader._read(), None
        leader.offer(quotas(13 if leader is a else 14), 2)
    results = await asyncio.gather(a._round(), b._round(), return_exceptions=True)
    assert sorted(type(r).__name__ for r in results) == ["Conflict", "NoneType"]
    record = await cluster.record()
    assert len(record.lists) == 2


async def test_a_group_that_a_stranger_took_comes_back_after_a_while_under_a_new_epoch(cluster: Cluster) -> None:
    a = cluster.members["a"]
    group, epoch = next(iter(a.held.items()))
    waits = []
    for _ in range(3):
        epoch = a.held.pop(group)
        a.membership.fenced(group, epoch)
        at = cluster.clock.now()
        await until(lambda: group in a.held, 30)
        assert a.held[group] > epoch
        waits.append(cluster.clock.now() - at)
    assert waits[0] < 3
    assert waits == sorted(waits), "longer each time, so that two clusters do not fight"
    assert waits[2] > 2 * waits[0]


async def test_a_stranger_is_told_of_and_the_deletion_of_a_topic_is_not(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster_of("a", "b") as cluster:
        a = cluster.members["a"]
        deleted, taken = list(a.held.items())[:2]
        a.held.pop(deleted[0])
        a.membership.fenced(*deleted)
        await asyncio.sleep(1)  # the host reads the catalog
        left = {group: quota for group, quota in quotas(12).items() if group != deleted[0]}
        for member in cluster.members.values():
            await member.membership.offer(left, 2)
        await asyncio.sleep(10)
        assert "outside of this cluster" not in caplog.text
        a.membership.fenced(*taken)
        await asyncio.sleep(10)
        assert f"a host outside of this cluster took group {taken[0]}" in caplog.text
        a.membership.fenced(taken[0], a.held.get(taken[0], 0))
    caplog.clear()
    await asyncio.sleep(10)
    assert caplog.text == "", "a host that has left says nothing more"


async def test_weights_and_orders_decide_the_shares(cluster: Cluster) -> None:
    tree = cluster.ensemble.tree()
    await tree.open(lambda state: None)
    await tree.create(PATHS.order("a"), records.encode(Order(weight=3.0)))
    await until(lambda: len(cluster.members["a"].held) >= 8, 10)
    await cluster.settled()
    node = await tree.read(PATHS.order("a"))
    assert node is not None
    await tree.write(PATHS.order("a"), records.encode(Order(drain=True)), node.version)
    await until(lambda: not cluster.members["a"].held, 10)
    await cluster.settled()
    await tree.delete(PATHS.order("a"))
    await until(lambda: len(cluster.members["a"].held) >= 5, 10)
    await tree.close()


async def test_what_is_said_of_a_host_survives_lost_answers(cluster: Cluster) -> None:
    losses = itertools.count()
    cluster.ensemble.loses_answer = lambda operation, path: next(losses) % 7 == 3
    async with cluster.member("c"):
        await asyncio.sleep(40)
        cluster.ensemble.loses_answer = lambda operation, path: False
        await cluster.settled()
        assert set(cluster.owners.values()) == {"a", "b", "c"}


async def test_no_hosts_no_groups_and_more_hosts_than_groups() -> None:
    cluster = Cluster()
    async with cluster.member("a", groups=0) as a:
        await asyncio.sleep(5)
        assert a.held == {}
        async with contextlib.AsyncExitStack() as stack:
            for name in "bcdef":
                await stack.enter_async_context(cluster.member(name, groups=2))
            await a.membership.offer(quotas(2), 2)
            await cluster.settled(2)
            assert len(set(cluster.owners.values())) == 2
        await cluster.settled(2)


async def test_a_host_says_what_it_is_still_draining_and_how_far_it_has_followed() -> None:
    async with cluster_of("a") as cluster:
        cluster.members["a"].drain_s = 3.0
        tree = cluster.ensemble.tree()
        await tree.open(lambda state: None)

        async def said() -> Running:
            node = await tree.read(PATHS.host("a"))
            assert node is not None
            return records.decode(node.data, Running, "a")

        async with cluster.member("b"):
            await asyncio.sleep(2)
            during, plan = await said(), await cluster.record()
            assert during.draining
            assert during.generation == plan.generation
            await asyncio.sleep(4)
            assert (await said()).draining == ()
        await tree.close()


def test_names_that_cannot_be_nodes_are_refused() -> None:
    for name in ("", "a/b", "_nobody", "ä", "x" * 201):
        with pytest.raises(errors.InvalidSettings, match="host name"):
            records.validate_host(name)


def test_a_list_too_large_for_one_node_is_cut_and_put_together_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "CHUNK_BYTES", 300)
    entries = {f"topic-{i % 7}/{i}": records.Entry(i * 7919 % 1000, "ring") for i in range(500)}
    chunks = records.encode_list(entries)
    assert len(chunks) > 5
    assert all(len(chunk) <= 300 for chunk in chunks)
    assert records.decode_list(chunks, "x") == entries
    assert records.decode_list(records.encode_list({}), "x") == {}
    with pytest.raises(errors.ForeignTree):
        records.decode_list([chunks[0][:-2]], "x")


async def test_a_bug_in_the_membership_is_counted_and_the_host_hears_of_later_plans() -> None:
    async with cluster_of("a") as cluster:
        a, bugs = cluster.members["a"], 2
        look = a.membership._look

        async def broken() -> None:
            nonlocal bugs
            bugs -= 1
            if bugs >= 0:
                raise RuntimeError("a bug")
            await look()

        a.membership._look = broken  # type: ignore[method-assign]
        await asyncio.sleep(4 * TIMEOUT_S)
        assert a.membership.guard.broken["membership"] == 2
        assert bugs < 0, "it looks at the plan again"
        assert a._task is not None
        assert not a._task.done()


async def test_a_plan_that_breaks_its_own_rules_is_not_published(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, generation = cluster.owners, (await cluster.record()).generation

    def broken(*_: object) -> plan.Plan:
        raise plan.BrokenPlan("two owners")

    with monkeypatch.context() as patched:
        patched.setattr(plan, "plan", broken)
        for member in cluster.members.values():
            await member.membership.offer(quotas(13), 2)
        await asyncio.sleep(10)
        assert (cluster.owners, (await cluster.record()).generation) == (before, generation)
    for member in cluster.members.values():
        await member.membership.offer(quotas(13), 3)
    await cluster.settled(13)


async def test_a_list_that_somebody_deleted_is_said_by_name_and_not_planned_over(cluster: Cluster) -> None:
    before, plan_before = cluster.owners, await cluster.record()
    tree = cluster.ensemble.tree()
    await tree.open(lambda state: None)
    await tree.delete(PATHS.list("a", plan_before.lists["a"].generation, 0))
    leader = next(m for m in cluster.members.values() if m.membership._leader.leading).membership._leader
    with pytest.raises(errors.ForeignTree, match=r"groups of host a .*; stop all hosts, delete /emq/online/serverlist"):
        await leader._read()
    assert cluster.owners == before
    await tree.close()


async def test_a_host_whose_node_somebody_deleted_becomes_a_member_again(cluster: Cluster) -> None:
    tree = cluster.ensemble.tree()
    await tree.open(lambda state: None)
    a = cluster.members["a"]
    await tree.delete(PATHS.host("a"))
    await until(lambda: a.era == 1, 20)
    await cluster.settled()
    assert set(cluster.owners.values()) == {"a", "b"}
    await tree.close()


async def test_a_host_has_let_go_of_everything_when_its_next_life_may_start_anything(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a = cluster.members["a"]
    assert a.held
    begin, held = a.membership._heartbeat.begin, []

    async def noted(incarnation: str) -> None:
        await begin(incarnation)
        held.append(dict(a.held))

    monkeypatch.setattr(a.membership._heartbeat, "begin", noted)
    cluster.ensemble.partition(a.tree)
    cluster.members.pop("a")
    await until(lambda: len(cluster.members["b"].held) == 12, 12)
    cluster.ensemble.heal(a.tree)
    await until(lambda: len(held) > 0, 20)
    assert held == [{}]
    cluster.members["a"] = a
    await cluster.settled()


async def test_a_stop_is_clean_also_where_the_tree_is_damaged() -> None:
    cluster = Cluster()
    tree = cluster.ensemble.tree()
    await tree.open(lambda state: None)
    async with cluster.member("a", groups=0) as a:
        await tree.create(PATHS.host("notes"), b"by hand")
        await a.membership.hand_over(5.0)
    await tree.close()


async def test_the_groups_of_a_unit_are_on_one_host() -> None:
    """Group numbers 0 to 5 belong to one topic, which is a unit; it moves as a whole when its host goes."""
    async with cluster_of("a", "b", "c") as cluster:
        unit = {f"tenant/{i}": 10.0 if i == 0 else 0.0 for i in range(6)}
        offered = {**quotas(14), **unit}
        for member in cluster.members.values():
            await member.membership.offer(offered, 2, Grounds({"tenant": "tenant"}))
        await cluster.settled(20)
        [host] = {cluster.owners[group] for group in unit}
        await cluster.members[host].end()
        await cluster.settled(20)
        assert len({cluster.owners[group] for group in unit}) == 1


async def test_groups_are_planned_though_the_offer_of_them_has_the_address_of_an_older_one() -> None:
    """Python gives the address of an object that is gone to the next one."""
    async with cluster_of("a") as cluster:
        leader = cluster.members["a"].membership._leader
        quotas_ = dict(leader._quotas or {})
        for name in ("x", "y"):
            # The same object with other groups: what the addresses of two offers tell.
            quotas_[f"{name}/0"] = 5.0
            leader.offer(quotas_, 1)
            await until(lambda name=name: f"{name}/0" in cluster.owners, 10)  # type: ignore[misc]


async def test_a_reader_that_broke_has_missed_nothing() -> None:
    async with cluster_of("a") as cluster:
        membership = cluster.members["a"].membership
        for _ in range(2):
            assignments = membership.assignments()
            async with asyncio.timeout(1):
                assert (await anext(assignments)).groups == cluster.members["a"].held
            await assignments.aclose()  # type: ignore[attr-defined]


async def test_a_leader_notices_a_change_of_which_no_watch_has_told(cluster: Cluster) -> None:
    leading = next(m for m in cluster.members.values() if m.membership._leader.leading)
    other = next(m for m in cluster.members.values() if m is not leading)
    leader, read = leading.membership._leader, leading.tree.read
    leading.tree.read = lambda path, on_change=None: read(path)  # type: ignore[method-assign]  # watches are lost
    other.database.began_s = cluster.clock.now()  # its trouble is announced: the last watch is used up
    await asyncio.sleep(2)
    before, other.membership._leaving = leader.plans, True
    other.membership._changed.set()
    await until(lambda: leader.plans > before, 60)


async def test_others_that_take_the_groups_of_a_host_whose_lease_has_ended_are_no_strangers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with cluster_of("a", "b") as cluster:
        a = cluster.members["a"]
        for again in (False, True):  # the ensemble answers again before the line would be logged, or does not
            group, epoch = next(iter(a.held.items()))
            cluster.ensemble.partition(a.tree, silent=True)
            await asyncio.sleep(TIMEOUT_S + 2)
            a.membership.fenced(group, epoch)  # the store refuses what the host did before its lease ended
            if again:
                cluster.ensemble.heal(a.tree)
            await asyncio.sleep(10)
            cluster.ensemble.heal(a.tree)
            await asyncio.sleep(20)
    assert "outside of this cluster" not in caplog.text
