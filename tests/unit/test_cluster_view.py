"""A cluster seen from outside: what is read of it is of one plan, and orders are never lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest

from emq.allocation import records
from emq.allocation.plan.drafting import NOBODY
from emq.allocation.records import EVERYBODY, Entry, Former, Paths, Pointer, Record, Running
from emq.runtime import errors
from emq_trace import cluster_view
from emq_trace.cluster_view import Holding, Owned, View
from support.ensemble import MemoryEnsemble, MemoryTree
from support.members import Cluster, Follower
from support.virtual import LoopClock, virtual

pytestmark = virtual

PATHS = Paths("online")
QUOTAS = {f"t/{i}": 10.0 for i in range(12)}


@contextlib.asynccontextmanager
async def looking(ensemble: MemoryEnsemble | None = None) -> AsyncIterator[MemoryTree]:
    tree = (ensemble or MemoryEnsemble(LoopClock())).tree()
    async with cluster_view.opened(tree, "memory"):
        yield tree


def running(incarnation: str = "i", generation: int = 5, draining: tuple[str, ...] = (), **more: object) -> Running:
    return msgspec.structs.replace(
        Running(incarnation, "m", 1, 1.0, 0.0, generation=generation, draining=draining), **more
    )


def seen(members: dict[str, Running], groups: dict[str, Owned], generation: int = 5) -> View:
    lists = {host: Pointer("i", generation, 1) for host in {*members, *(o.host for o in groups.values())}}
    record = Record("online", generation, 1, "a", 0.0, lists)
    return View("online", record, members, {}, groups, "a")


async def write_plan(tree: MemoryTree, generation: int, groups: dict[str, int], *, drop: bool = False) -> None:
    """A plan that gives these groups to host a."""
    if not drop:
        entries = {group: Entry(epoch, "ring") for group, epoch in groups.items()}
        for n, chunk in enumerate(records.encode_list(entries)):
            await tree.create(PATHS.list("a", generation, n), chunk)
    data = records.encode(Record("online", generation, 1, "a", 0.0, {"a": Pointer("i", generation, 1)}))
    if await tree.read(PATHS.serverlist) is None:
        await tree.create(PATHS.serverlist)
    await tree.write(PATHS.serverlist, data, -1)


async def test_a_cluster_is_seen_as_it_is() -> None:
    meeting = Cluster(QUOTAS)
    async with Follower(meeting, "a"), Follower(meeting, "b", weight=2.0), looking(meeting.ensemble) as tree:
        await asyncio.sleep(8)
        found = await cluster_view.read(tree, "online")
        assert found.leader == "a"
        assert found.hosts == ["a", "b"]
        assert found.weights == {"a": 1.0, "b": 2.0}
        assert found.groups.keys() == QUOTAS.keys()
        assert (len(found.of("a")), len(found.of("b"))) == (4, 8)
        assert {found.holding(group) for group in QUOTAS} == {Holding.HELD}
        assert all(found.has_let_go(host) and found.is_planned(host) for host in "ab")
        assert found.record is not None
        assert found.record.lists.keys() == {"a", "b"}


async def test_a_tree_in_which_nobody_ever_was_is_empty_and_stays_so() -> None:
    ensemble = MemoryEnsemble(LoopClock())
    async with looking(ensemble) as tree:
        found = await cluster_view.read(tree, "online")
        assert (found.record, found.hosts, found.groups, found.leader) == (None, [], {}, "")
        assert await tree.children("/") == []


async def test_who_looks_is_no_member_and_its_session_ends_with_it() -> None:
    ensemble = MemoryEnsemble(LoopClock())
    async with looking(ensemble) as tree:
        await cluster_view.read(tree, "online")
        assert len(ensemble.sessions) == 1
    await asyncio.sleep(0.1)
    assert not ensemble.sessions


async def test_a_group_waits_while_its_former_owner_drains() -> None:
    meeting = Cluster(QUOTAS)
    async with Follower(meeting, "a", drain_s=5.0), looking(meeting.ensemble) as tree:
        await asyncio.sleep(2)
        async with Follower(meeting, "b"):
            await asyncio.sleep(2)
            found = await cluster_view.read(tree, "online")
            moving = [*found.of("b")]
            assert moving
            assert {found.holding(group) for group in moving} == {Holding.WAITING}
            assert {(*found.awaited(group),) for group in moving} == {("a",)}
            assert {*found.members["a"].draining} == {*moving}
            assert not found.has_let_go("a")
            await asyncio.sleep(6)
            found = await cluster_view.read(tree, "online")
            assert {found.holding(group) for group in moving} == {Holding.HELD}


@pytest.mark.parametrize(
    ("members", "entry", "host", "holding", "awaited"),
    [
        ({"a": running()}, Entry(5, ""), "a", Holding.HELD, []),
        ({"a": running(generation=4)}, Entry(5, ""), "a", Holding.UNSEEN, []),
        ({"a": running(generation=4)}, Entry(3, ""), "a", Holding.HELD, []),
        ({"a": running(fenced={"t/0": 5})}, Entry(5, ""), "a", Holding.FENCED, []),
        ({"a": running("another")}, Entry(5, ""), "a", Holding.ORPHANED, []),
        ({"b": running()}, Entry(5, ""), "a", Holding.ORPHANED, []),
        ({"a": running()}, Entry(5, ""), NOBODY, Holding.NOBODYS, []),
        ({"a": running(), "b": running(generation=4)}, Entry(5, "", (Former("b", "i", 5),)), "a", "waiting", ["b"]),
        ({"a": running(), "b": running()}, Entry(5, "", (Former("b", "i", 5),)), "a", Holding.HELD, []),
        ({"a": running(), "b": running("new", 0)}, Entry(5, "", (Former("b", "i", 5),)), "a", Holding.HELD, []),
        ({"a": running()}, Entry(5, "", (Former("b", "i", 5),)), "a", Holding.HELD, []),
        (
            {"a": running(), "b": running(draining=("t/0",))},
            Entry(5, "", (Former("b", "i", 5),)),
            "a",
            "waiting",
            ["b"],
        ),
        ({"a": running(), "b": running(draining=("t/1",))}, Entry(5, "", (Former("b", "i", 5),)), "a", "held", []),
        (
            {"a": running(), "b": running(generation=4), "c": running(draining=("t/0",)), "d": running()},
            Entry(5, "", (Former(EVERYBODY, "", 5),)),
            "a",
            Holding.WAITING,
            ["b", "c"],
        ),
        (
            {"a": running(), "b": running(draining=("t/0",))},
            Entry(5, "", (Former(EVERYBODY, "", 5),)),
            "a",
            Holding.WAITING,
            ["b"],
        ),
        ({"a": running(generation=4)}, Entry(5, "", (Former(EVERYBODY, "", 5),)), "a", Holding.UNSEEN, []),
    ],
)
def test_how_far_a_group_is_follows_from_what_its_hosts_say(
    members: dict[str, Running], entry: Entry, host: str, holding: str, awaited: list[str]
) -> None:
    found = seen(members, {"t/0": Owned(host, entry)})
    assert found.holding("t/0") == holding
    assert found.awaited("t/0") == awaited


async def test_a_plan_that_changes_while_it_is_read_is_read_again() -> None:
    async with looking() as tree:
        await write_plan(tree, 1, {"t/0": 1})
        read, changed = tree.read, False

        async def reading(path: str, *watch: object) -> object:
            nonlocal changed
            node = await read(path)
            if path == PATHS.serverlist and not changed:
                changed = True
                await write_plan(tree, 2, {"t/1": 2})
                await tree.delete(PATHS.list("a", 1, 0))
            return node

        tree.read = reading  # type: ignore[method-assign, assignment]
        found = await cluster_view.read(tree, "online")
        assert found.generation == 2
        assert found.owners == {"t/1": "a"}


async def test_a_plan_that_never_stands_still_is_given_up() -> None:
    ensemble = MemoryEnsemble(LoopClock())
    async with looking(ensemble) as tree, looking(ensemble) as leader:
        await write_plan(tree, 1, {"t/0": 1})
        read, generation = tree.read, 1

        async def reading(path: str, *watch: object) -> object:
            nonlocal generation
            if path == PATHS.serverlist:
                generation += 1
                await write_plan(leader, generation, {"t/0": generation})
            return await read(path)

        tree.read = reading  # type: ignore[method-assign, assignment]
        with pytest.raises(errors.ClusterUnavailable, match="changed each time"):
            await cluster_view.read(tree, "online")


async def test_a_list_that_is_gone_and_a_node_of_others_are_named() -> None:
    async with looking() as tree:
        await write_plan(tree, 1, {}, drop=True)
        with pytest.raises(errors.ForeignTree, match="/emq/online/serverlist/a"):
            await cluster_view.read(tree, "online")
    async with looking() as tree:
        await tree.create(PATHS.host("x"), b"not ours")
        with pytest.raises(errors.ForeignTree, match="/emq/online/running/x"):
            await cluster_view.read(tree, "online")
    async with looking() as tree:
        data = records.encode(Record("sandbox", 1, 1, "a", 0.0, {}))
        await tree.create(PATHS.serverlist, data)
        with pytest.raises(errors.ForeignTree, match="'sandbox', not 'online'"):
            await cluster_view.read(tree, "online")


async def test_who_looks_does_not_wait_for_ever() -> None:
    ensemble = MemoryEnsemble(LoopClock())
    ensemble.quorum = False
    began = asyncio.get_running_loop().time()
    with pytest.raises(errors.ClusterUnavailable, match="no ZooKeeper server of zoo:1 answered within 10 s"):
        async with cluster_view.opened(ensemble.tree(), "no ZooKeeper server of zoo:1"):
            pass
    assert asyncio.get_running_loop().time() - began == pytest.approx(cluster_view.OPEN_S)
