"""What the tree does when real ZooKeeper servers fail, forget a session, or refuse whom they do not know."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient

import emq_servers as servers
from emq.allocation.tree.protocol import SessionState
from emq.runtime import errors
from support.tree_watcher import TreeWatcher

_numbers = itertools.count()
CONNECTED, SUSPENDED, LOST = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST


@pytest.fixture
def chroot() -> str:
    return f"/faults-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def server(zookeeper_server: servers.ZooKeeperServer) -> Iterator[servers.ZooKeeperServer]:
    yield zookeeper_server
    if not zookeeper_server.running:
        zookeeper_server.restart()


@pytest.fixture
def ensemble(zookeeper_ensemble: servers.Ensemble) -> Iterator[servers.Ensemble]:
    yield zookeeper_ensemble
    zookeeper_ensemble.restart(*(n for n, member in enumerate(zookeeper_ensemble.servers) if not member.running))


# ------------------------------------------------------------------------------------------------ servers that fail


async def test_a_server_that_comes_back_finds_the_same_session_and_tells_of_what_was_missed(
    watch: Callable[..., TreeWatcher], server: servers.ZooKeeperServer, chroot: str
) -> None:
    watcher = watch(server.url + chroot, 30.0)
    one = await watcher.open()
    session = one.session
    await one.create("/e", ephemeral=True)
    changed = asyncio.Event()
    await one.read("/e", changed.set)
    await one.children("/", changed.set)
    await asyncio.to_thread(server.kill)
    await watcher.sees(SUSPENDED)
    assert not changed.is_set()
    begun = time.monotonic()
    with pytest.raises(errors.ClusterUnavailable, match="try again later"):
        await one.create("/f")
    assert time.monotonic() - begun < 5
    await asyncio.to_thread(server.restart)
    await watcher.sees(SUSPENDED, CONNECTED)
    assert changed.is_set()
    assert one.session == session
    node = await one.read("/e")
    assert node is not None
    assert node.session == session


async def test_a_call_under_way_when_the_server_dies_is_of_unknown_outcome(
    watch: Callable[..., TreeWatcher], server: servers.ZooKeeperServer, chroot: str
) -> None:
    watcher = watch(server.url + chroot, 30.0)
    one = await watcher.open()
    server.pause()
    writing = asyncio.create_task(one.create("/a"))
    await asyncio.sleep(0.2)
    await asyncio.to_thread(server.kill)
    with pytest.raises(errors.ClusterUnavailable, match="may have happened"):
        await writing
    await asyncio.to_thread(server.restart)
    await watcher.sees(SUSPENDED, CONNECTED)
    assert await one.children("/") in ([], ["a"])


async def test_a_server_that_falls_silent_is_given_up_though_requests_keep_being_sent(
    watch: Callable[..., TreeWatcher], server: servers.ZooKeeperServer, chroot: str
) -> None:
    """kazoo looks for answers to its pings only while it has nothing to send."""
    watcher = watch(server.url + chroot, 3.0)
    one = await watcher.open()

    async def ask() -> None:
        while True:
            asking = [asyncio.ensure_future(one.read("/")) for _ in range(2)]
            await asyncio.wait(asking, timeout=0.1)
            for task in asking:
                task.cancel()

    server.pause()
    begun = time.monotonic()
    asking = asyncio.create_task(ask())
    try:
        await watcher.sees(SUSPENDED)
        assert time.monotonic() - begun < 3.0
    finally:
        server.resume()
        asking.cancel()


async def test_the_death_of_one_member_costs_no_session(
    watch: Callable[..., TreeWatcher], ensemble: servers.Ensemble, chroot: str
) -> None:
    watcher = watch(ensemble.url + chroot, 10.0)
    one = await watcher.open()
    session = one.session
    await one.create("/e", ephemeral=True)
    for member in range(3):
        await asyncio.to_thread(ensemble.kill, member)
        await asyncio.to_thread(ensemble.restart, member)
    async with asyncio.timeout(20):
        while True:
            try:
                assert await one.children("/") == ["e"]
                break
            except errors.ClusterUnavailable:
                await asyncio.sleep(0.05)
    assert one.session == session
    assert LOST not in watcher.states
    assert SUSPENDED in watcher.states


async def test_without_a_quorum_nobody_is_connected_and_no_session_is_lost(
    watch: Callable[..., TreeWatcher], ensemble: servers.Ensemble, chroot: str, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = watch(ensemble.url + chroot, 4.0)
    one = await watcher.open()
    session = one.session
    await one.create("/e", ephemeral=True)
    await asyncio.to_thread(ensemble.kill, 0, 1)
    await watcher.comes_to(SUSPENDED)
    await asyncio.sleep(1)  # the last member may serve until it notices that it is alone
    await watcher.comes_to(SUSPENDED)
    seen = len(watcher.states)
    await asyncio.sleep(5)  # longer than the session's time-out
    assert len(watcher.states) == seen
    complaints = [record.getMessage() for record in caplog.records if record.name.startswith("emq.allocation")]
    assert complaints
    assert len(complaints) <= 2, "it is said at first, and then each 30 s"
    assert all(f"127.0.0.1:{member.port}: " in complaints[0] for member in ensemble.servers)
    await asyncio.to_thread(ensemble.restart, 0, 1)
    await watcher.comes_to(CONNECTED)
    assert LOST not in watcher.states
    assert one.session == session
    assert await one.children("/") == ["e"]


# ----------------------------------------------------------------------------------------------- sessions that end


async def test_a_session_that_is_ended_elsewhere_is_lost_and_another_begins(
    watch: Callable[..., TreeWatcher], server: servers.ZooKeeperServer, chroot: str
) -> None:
    watcher = watch(server.url + chroot)
    one = await watcher.open()
    lost = one.session
    await one.create("/e", ephemeral=True)
    changed = asyncio.Event()
    await one.read("/e", changed.set)
    await asyncio.to_thread(end_session, server, one._session._client.kazoo.client_id)
    await watcher.sees(SUSPENDED, LOST, CONNECTED)
    assert watcher.sessions == [lost, lost, 0, one.session]
    assert one.session not in (0, lost)
    assert changed.is_set()
    assert await one.read("/e") is None
    assert await one.create("/e", ephemeral=True) == "/e"


def end_session(server: servers.ZooKeeperServer, client_id: tuple[int, bytes]) -> None:
    """Close a session under its own id, as its client would."""
    thief = KazooClient(hosts=f"127.0.0.1:{server.port}", client_id=client_id)
    thief.start()
    thief.stop()
    thief.close()


async def test_a_client_that_hangs_longer_than_its_session_finds_it_lost(
    watch: Callable[..., TreeWatcher], server: servers.ZooKeeperServer, chroot: str
) -> None:
    watcher, other = watch(server.url + chroot, 2.0), watch(server.url + chroot, 10.0)
    one, two = await watcher.open(), await other.open()
    await one.create("/e", ephemeral=True)
    gone = asyncio.Event()
    await two.read("/e", gone.set)
    one._session._client._handler.closing = True  # it finds no server, like one that is cut off
    one._session._client.drop()
    async with asyncio.timeout(20):
        await gone.wait()
    assert watcher.states[1:] == [SUSPENDED]
    one._session._client._handler.closing = False
    await watcher.sees(SUSPENDED, LOST, CONNECTED)
    assert await two.children("/") == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_client_library_that_breaks_down_is_replaced(
    watch: Callable[..., TreeWatcher], server: servers.ZooKeeperServer, chroot: str
) -> None:
    watcher = watch(server.url + chroot)
    one = await watcher.open()
    lost = one.session
    kazoo = one._session._client.kazoo
    kazoo._queue.append((object(), None))  # nothing that could be sent
    kazoo._connection._write_sock.send(b"\0")
    await watcher.sees(LOST, CONNECTED)
    assert one.session not in (0, lost)
    assert await one.children("/") == []


async def test_watching_again_and_again_leaves_one_watcher_in_the_library(
    watch: Callable[..., TreeWatcher], server: servers.ZooKeeperServer, chroot: str
) -> None:
    one = await watch(server.url + chroot).open()
    await one.create("/a")
    for _ in range(50):
        await one.read("/a", lambda: None)
        await one.children("/a", lambda: None)
        await one.read("/none", lambda: None)
    kazoo = one._session._client.kazoo
    assert {path.rpartition("/")[2]: len(w) for path, w in kazoo._data_watchers.items()} == {"a": 1, "none": 1}
    assert [len(watchers) for watchers in kazoo._child_watchers.values()] == [1]


# ------------------------------------------------------------------------------------------------ open, and close


async def test_an_ensemble_that_is_not_there_is_waited_for_and_the_log_says_which_servers_and_why(
    watch: Callable[..., TreeWatcher], zookeeper_server: object, chroot: str, caplog: pytest.LogCaptureFixture
) -> None:
    port = servers.free_port()
    watcher = watch(f"zookeeper://me:secret@127.0.0.1:{port},no-such-host.invalid{chroot}")
    opening = asyncio.create_task(watcher.open())
    caplog.set_level(logging.DEBUG)
    async with asyncio.timeout(20):
        while not (complaints := [r.getMessage() for r in caplog.records if "no ZooKeeper server" in r.getMessage()]):
            await asyncio.sleep(0.05)
    assert f"127.0.0.1:{port}: [Errno 111] Connection refused; no-such-host.invalid:2181: " in complaints[0]
    with servers.start_zookeeper(port=port):
        await opening
        await watcher.tree.close()
    assert watcher.states == [CONNECTED]
    assert "secret" not in caplog.text


async def test_opening_can_be_given_up(watch: Callable[..., TreeWatcher]) -> None:
    watcher = watch(f"zookeeper://127.0.0.1:{servers.free_port()}")
    opening = asyncio.create_task(watcher.open())
    await asyncio.sleep(0.2)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening


async def test_close_ends_soon_though_the_server_is_silent(
    watch: Callable[..., TreeWatcher], server: servers.ZooKeeperServer, chroot: str
) -> None:
    one = await watch(server.url + chroot, 6.0).open()
    server.pause()
    try:
        begun = time.monotonic()
        await one.close()
        assert time.monotonic() - begun < 6
    finally:
        server.resume()


async def test_a_node_too_large_for_a_request_leaves_the_session_alone(
    watch: Callable[..., TreeWatcher], server: servers.ZooKeeperServer, chroot: str
) -> None:
    watcher = watch(server.url + chroot)
    one = await watcher.open()
    with pytest.raises(errors.EMQError, match="store them in chunks"):
        await one.create("/a", bytes(2_000_000))
    await one.create("/a", bytes(1_000_000))
    assert watcher.states == [CONNECTED]
