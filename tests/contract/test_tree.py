"""What the coordination tree promises, over ZooKeeper, databases and its twin in memory."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from emq.allocation import zookeeper
from emq.allocation.tree import protocol
from emq.allocation.tree.database import DatabaseTree
from emq.allocation.tree.protocol import SessionState
from emq.runtime import clock, errors, settings
from support import ensemble

_numbers = itertools.count()
MakeTree = Callable[[], protocol.Tree]


class Changes:
    """A callback that counts its calls, and waits for them."""

    def __init__(self) -> None:
        self.count = 0
        self._called = asyncio.Event()

    def __call__(self) -> None:
        self.count += 1
        self._called.set()

    async def called(self) -> None:
        async with asyncio.timeout(10):
            await self._called.wait()
        self._called.clear()


async def data_of(client: protocol.Tree, path: str) -> bytes:
    node = await client.read(path)
    assert node is not None
    return node.data


SESSION_S = 40.0
"""Seconds until a session ends; a call is given up after a third of it, which is much even for 200 calls at once."""


@pytest.fixture(params=["memory", "sqlite", "postgresql", "zookeeper"])
def make_tree(request: pytest.FixtureRequest, tmp_path: Path) -> MakeTree:
    """Makes clients, not open yet, of one tree that is empty at first."""
    if request.param == "memory":
        made = ensemble.MemoryEnsemble(clock.SystemClock())
        return lambda: made.tree(SESSION_S)
    if request.param == "sqlite":
        return lambda: DatabaseTree(f"sqlite:///{tmp_path}/tree.db", SESSION_S)
    if request.param == "postgresql":
        url = request.getfixturevalue("fresh_postgres")
        return lambda: DatabaseTree(url, SESSION_S)
    url = request.getfixturevalue("zookeeper_server").url
    chroot = f"/contract-{os.getpid()}-{next(_numbers)}"
    return lambda: zookeeper.tree_of(settings.Settings(cluster=url + chroot, session_timeout_s=SESSION_S))


@pytest.fixture
async def open_tree(make_tree: MakeTree) -> AsyncIterator[Callable[[], Awaitable[protocol.Tree]]]:
    opened: list[protocol.Tree] = []

    async def open_one() -> protocol.Tree:
        client = make_tree()
        opened.append(client)
        await client.open(lambda state: None)
        return client

    yield open_one
    for client in opened:
        await client.close()


@pytest.fixture
async def one(open_tree: Callable) -> protocol.Tree:
    return await open_tree()


@pytest.fixture
async def other(open_tree: Callable) -> protocol.Tree:
    return await open_tree()


async def test_a_session_has_an_id_and_a_time_out_and_says_that_it_is_connected(make_tree: MakeTree) -> None:
    client, states = make_tree(), []
    assert client.session == 0
    await client.open(states.append)
    assert states == [SessionState.CONNECTED]
    assert client.session != 0
    assert client.timeout_s == pytest.approx(SESSION_S)
    await client.close()
    await client.close()
    with pytest.raises(errors.ClusterUnavailable):
        await client.read("/a")


async def test_what_one_creates_the_other_reads(one: protocol.Tree, other: protocol.Tree) -> None:
    before = time.time()
    assert await one.create("/a", b"x") == "/a"
    node = await other.read("/a")
    assert node is not None
    assert (node.data, node.version, node.session) == (b"x", 0, 0)
    assert before - 1 <= node.written_s <= time.time() + 1


async def test_parents_that_are_missing_are_created_empty_and_to_last(one: protocol.Tree) -> None:
    assert await one.create("/a/b/c", b"x", ephemeral=True) == "/a/b/c"
    parent = await one.read("/a/b")
    assert parent is not None
    assert (parent.data, parent.version, parent.session) == (b"", 0, 0)


async def test_creating_what_is_there_is_refused_and_changes_nothing(one: protocol.Tree) -> None:
    await one.create("/a", b"first")
    with pytest.raises(protocol.NodeExists, match="node /a "):
        await one.create("/a", b"second")
    assert await data_of(one, "/a") == b"first"


async def test_numbers_of_a_sequence_grow_and_have_ten_digits(one: protocol.Tree, other: protocol.Tree) -> None:
    paths = [await client.create("/q/n-", sequence=True) for client in (one, other, one)]
    assert paths == sorted(paths)
    assert len(set(paths)) == 3
    assert all(path.startswith("/q/n-") and len(path) == len("/q/n-") + 10 for path in paths)


async def test_what_is_missing_reads_as_none_and_has_no_children(one: protocol.Tree) -> None:
    assert await one.read("/none") is None
    assert await one.children("/none") == []


async def test_children_are_sorted_names(one: protocol.Tree) -> None:
    for name in ("b", "c", "a"):
        await one.create(f"/p/{name}/below")
    assert await one.children("/p") == ["a", "b", "c"]
    assert await one.children("/p/a/below") == []


async def test_a_write_needs_the_version_that_was_read(one: protocol.Tree, other: protocol.Tree) -> None:
    await one.create("/a", b"0")
    assert await one.write("/a", b"1", 0) == 1
    with pytest.raises(protocol.Conflict, match="/a"):
        await other.write("/a", b"2", 0)
    assert await data_of(other, "/a") == b"1"
    assert await other.write("/a", b"3", -1) == 2
    with pytest.raises(protocol.NodeMissing, match="/b"):
        await one.write("/b", b"", -1)


async def test_delete_takes_all_below_along_and_may_be_repeated(one: protocol.Tree) -> None:
    for path in ("/a/b/c", "/a/d", "/ab"):
        await one.create(path)
    await one.delete("/a")
    await one.delete("/a")
    assert await one.read("/a") is None
    assert await one.read("/ab") is not None


async def test_an_ephemeral_node_names_its_session_and_goes_when_that_is_closed(
    one: protocol.Tree, other: protocol.Tree
) -> None:
    await one.create("/e", ephemeral=True)
    gone = Changes()
    node = await other.read("/e", gone)
    assert node is not None
    assert node.session == one.session != other.session
    await one.close()
    await gone.called()
    assert await other.read("/e") is None


async def test_a_node_holds_1_mb_and_more_is_refused_without_harm(one: protocol.Tree) -> None:
    await one.create("/a", bytes(1_000_000))
    with pytest.raises(ValueError, match=r"1000001 bytes for node /a .*chunks"):
        await one.write("/a", bytes(1_000_001), -1)
    with pytest.raises(ValueError, match="1000001 bytes for node /b"):
        await one.create("/b", bytes(1_000_001))
    assert len(await data_of(one, "/a")) == 1_000_000


@pytest.mark.parametrize("change", ["write", "delete"])
async def test_a_watched_node_tells_of_its_next_change_once(
    one: protocol.Tree, other: protocol.Tree, change: str
) -> None:
    await one.create("/a")
    changes = Changes()
    await one.read("/a", changes)
    await other.create("/a/b")
    await (other.write("/a", b"1", -1) if change == "write" else other.delete("/a"))
    await changes.called()
    await other.delete("/a")
    await other.create("/a")
    await one.read("/a")
    assert changes.count == 1


async def test_a_missing_node_can_be_watched(one: protocol.Tree, other: protocol.Tree) -> None:
    changes = Changes()
    assert await one.read("/a/b", changes) is None
    await other.create("/a/b", b"x")
    await changes.called()
    assert await data_of(one, "/a/b") == b"x"


@pytest.mark.parametrize("change", ["create", "delete"])
async def test_watched_children_tell_of_one_that_comes_or_goes(
    one: protocol.Tree, other: protocol.Tree, change: str
) -> None:
    await one.create("/a/b")
    changes = Changes()
    await one.children("/a", changes)
    await other.write("/a/b", b"not a change of children", -1)
    await one.read("/a")
    assert changes.count == 0
    await (other.create("/a/c") if change == "create" else other.delete("/a/b"))
    await changes.called()
    assert changes.count == 1


async def test_children_of_a_missing_node_can_be_watched(one: protocol.Tree, other: protocol.Tree) -> None:
    changes = Changes()
    assert await one.children("/a/b", changes) == []
    await other.create("/a/b/c")
    await changes.called()
    while not await one.children("/a/b", changes):
        await changes.called()
    assert await one.children("/a/b") == ["c"]


async def test_one_function_handed_in_often_is_called_once(one: protocol.Tree, other: protocol.Tree) -> None:
    await one.create("/a")
    changes, another = Changes(), Changes()
    for _ in range(3):
        await one.read("/a", changes)
    await one.read("/a", another)
    await other.write("/a", b"1", -1)
    await changes.called()
    await another.called()
    await one.read("/a")
    assert (changes.count, another.count) == (1, 1)


async def test_no_change_is_missed_between_a_read_and_the_next(one: protocol.Tree, other: protocol.Tree) -> None:
    await one.create("/a", b"0")
    changes, last = Changes(), 50

    async def write() -> None:
        for number in range(1, last + 1):
            await other.write("/a", b"%d" % number, -1)

    writing = asyncio.create_task(write())
    while (await one.read("/a", changes) or protocol.Node(b"0", 0, 0, 0)).data != b"%d" % last:
        await changes.called()
    await writing


async def test_who_watches_what_it_changes_itself_reads_the_change_at_once(one: protocol.Tree) -> None:
    changes = Changes()

    async def looked() -> tuple[bytes | None, list[str]]:
        node = await one.read("/a/b", changes)
        return node and node.data, await one.children("/a", changes)

    assert await looked() == (None, [])
    await one.create("/a/b", b"x")
    assert await looked() == (b"x", ["b"])
    await one.write("/a/b", b"y", 0)
    assert await looked() == (b"y", ["b"])
    await one.create("/a/c")
    assert await looked() == (b"y", ["b", "c"])
    await one.delete("/a/b")
    assert await looked() == (None, ["c"])


async def test_a_proof_of_life_is_no_change(one: protocol.Tree, other: protocol.Tree) -> None:
    await one.create("/life", ephemeral=True)
    node, changes = await other.read("/life"), Changes()
    await other.children("/", changes)
    for _ in range(3):
        await one.prove("/life")
    await asyncio.sleep(0.8)
    assert changes.count == 0
    assert node is not None
    assert node.session == one.session


async def test_a_cancelled_call_harms_no_other(one: protocol.Tree) -> None:
    await one.create("/a", b"x")
    reads = [asyncio.create_task(one.read("/a")) for _ in range(10)]
    await asyncio.sleep(0)
    for task in reads[::2]:
        task.cancel()
    answers = await asyncio.gather(*reads, return_exceptions=True)
    assert all(isinstance(answer, asyncio.CancelledError) for answer in answers[::2])
    assert [answer.data for answer in answers[1::2]] == [b"x"] * 5


async def test_many_calls_at_once_are_all_answered(one: protocol.Tree) -> None:
    await asyncio.gather(*(one.create(f"/many/{number:03d}", b"%d" % number) for number in range(200)))
    nodes = await asyncio.gather(*(one.read(f"/many/{name}") for name in await one.children("/many")))
    assert [int(node.data) for node in nodes if node] == list(range(200))
