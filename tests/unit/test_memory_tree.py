"""The ensemble in memory: sessions, watches and faults as those of ZooKeeper, in virtual time."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest

from emq.allocation.tree.protocol import Conflict, NodeExists, NodeMissing, SessionState
from emq.runtime import errors
from support.ensemble import MemoryEnsemble, MemoryTree
from support.virtual import LoopClock, virtual

pytestmark = virtual

CONNECTED, SUSPENDED, LOST = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST
TIMEOUT_S = 6.0


class Client:
    """A tree, and what its session went through: (seconds since the loop began, state)."""

    def __init__(self, ensemble: MemoryEnsemble) -> None:
        self.tree: MemoryTree = ensemble.tree(TIMEOUT_S)
        self.history: list[tuple[float, SessionState]] = []
        self.changes: list[float] = []

    async def open(self) -> Client:
        await self.tree.open(lambda state: self.history.append((now_s(), state)))
        return self

    @property
    def states(self) -> list[SessionState]:
        return [state for _, state in self.history]

    def at(self, state: SessionState) -> float:
        return next(at for at, found in reversed(self.history) if found is state)

    def on_change(self) -> None:
        self.changes.append(now_s())


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def test_a_node_is_written_only_by_who_knows_its_version() -> None:
    ensemble = MemoryEnsemble(clock := LoopClock())
    tree = (await Client(ensemble).open()).tree
    assert await tree.create("/emq/online/a", b"1") == "/emq/online/a"
    with pytest.raises(NodeExists):
        await tree.create("/emq/online/a")
    await asyncio.sleep(3)
    assert await tree.write("/emq/online/a", b"2", 0) == 1
    with pytest.raises(Conflict):
        await tree.write("/emq/online/a", b"3", 0)
    assert await tree.write("/emq/online/a", b"4", -1) == 2
    assert await tree.read("/emq/online/a") == (b"4", 2, 0, clock.now())
    with pytest.raises(NodeMissing):
        await tree.write("/emq/online/b", b"", -1)
    assert await tree.children("/") == ["emq"]
    await tree.delete("/emq")
    assert await tree.read("/emq/online/a") is None
    assert await tree.children("/emq/online") == []
    await tree.delete("/emq")


async def test_numbers_of_a_sequence_grow() -> None:
    tree = (await Client(MemoryEnsemble(LoopClock())).open()).tree
    made = [await tree.create("/leader/c-", sequence=True) for _ in range(3)]
    assert made == [f"/leader/c-{i:010d}" for i in range(3)]
    await tree.delete(made[2])
    assert await tree.create("/leader/c-", sequence=True) > made[2]


async def test_a_watch_tells_of_one_change_once() -> None:
    ensemble = MemoryEnsemble(LoopClock())
    a, b = await Client(ensemble).open(), await Client(ensemble).open()
    assert await b.tree.read("/x", b.on_change) is None
    assert await b.tree.read("/x", b.on_change) is None
    await a.tree.create("/x", b"1")
    await a.tree.write("/x", b"2", 0)
    await asyncio.sleep(0.1)
    assert len(b.changes) == 1
    assert await b.tree.children("/x", b.on_change) == []
    await a.tree.write("/x", b"3", -1)
    await asyncio.sleep(0.1)
    assert len(b.changes) == 1
    await a.tree.create("/x/y")
    await asyncio.sleep(0.1)
    assert len(b.changes) == 2


async def test_ephemerals_go_when_their_session_is_closed_and_live_on_while_it_pings() -> None:
    ensemble = MemoryEnsemble(LoopClock())
    a, b = await Client(ensemble).open(), await Client(ensemble).open()
    await a.tree.create("/running/a", ephemeral=True)
    await asyncio.sleep(20 * TIMEOUT_S)
    node = await b.tree.read("/running/a", b.on_change)
    assert node is not None
    assert node.session == a.tree.session != 0
    await a.tree.close()
    await a.tree.close()
    await asyncio.sleep(0.1)
    assert b.changes
    assert await b.tree.children("/running") == []
    with pytest.raises(errors.ClusterUnavailable):
        await a.tree.read("/running")


async def test_a_short_break_keeps_the_session_and_calls_what_watched() -> None:
    ensemble = MemoryEnsemble(LoopClock())
    client = await Client(ensemble).open()
    await client.tree.create("/me", ephemeral=True)
    await client.tree.read("/me", client.on_change)
    session = client.tree.session
    ensemble.partition(client.tree)
    with pytest.raises(errors.ClusterUnavailable):
        await client.tree.read("/me")
    await asyncio.sleep(TIMEOUT_S / 2)
    assert not client.changes
    ensemble.heal(client.tree)
    await asyncio.sleep(1)
    assert client.states == [CONNECTED, SUSPENDED, CONNECTED]
    assert client.tree.session == session
    assert client.changes
    assert await client.tree.read("/me") is not None


async def test_a_partition_ends_the_session_at_the_servers_and_the_client_hears_of_it_when_healed() -> None:
    ensemble = MemoryEnsemble(LoopClock())
    client, other = await Client(ensemble).open(), await Client(ensemble).open()
    await client.tree.create("/me", ephemeral=True)
    session, began_s = client.tree.session, now_s()
    ensemble.partition(client.tree)
    await other.tree.read("/me", other.on_change)
    await asyncio.sleep(3 * TIMEOUT_S)
    assert other.changes == [pytest.approx(began_s + TIMEOUT_S)]
    assert client.states == [CONNECTED, SUSPENDED]
    ensemble.heal(client.tree)
    await asyncio.sleep(1)
    assert client.states == [CONNECTED, SUSPENDED, LOST, CONNECTED]
    assert client.tree.session not in (0, session)


async def test_a_silent_partition_is_noticed_after_two_thirds_of_the_time_out() -> None:
    ensemble = MemoryEnsemble(LoopClock())
    client = await Client(ensemble).open()
    await asyncio.sleep(TIMEOUT_S * 1.4)  # between two pings
    await client.tree.read("/x")
    heard_s = now_s()
    ensemble.partition(client.tree, silent=True)
    with pytest.raises(errors.ClusterUnavailable):
        await client.tree.read("/x")
    assert client.at(SUSPENDED) == pytest.approx(heard_s + 2 * TIMEOUT_S / 3)


async def test_what_a_short_silence_held_up_arrives_after_it() -> None:
    ensemble = MemoryEnsemble(LoopClock())
    client = await Client(ensemble).open()
    ensemble.partition(client.tree, silent=True)
    creating = asyncio.create_task(client.tree.create("/x"))
    await asyncio.sleep(TIMEOUT_S / 3)
    assert ensemble.nodes.read("/x") is None
    ensemble.heal(client.tree)
    assert await creating == "/x"
    assert client.states == [CONNECTED]


async def test_without_a_quorum_nobody_is_connected_and_no_session_ends() -> None:
    ensemble = MemoryEnsemble(LoopClock())
    clients = [await Client(ensemble).open() for _ in range(3)]
    sessions = [client.tree.session for client in clients]
    ensemble.quorum = False
    late = asyncio.create_task(Client(ensemble).open())
    await asyncio.sleep(10 * TIMEOUT_S)
    assert all(client.states == [CONNECTED, SUSPENDED] for client in clients)
    assert not late.done()
    ensemble.partition(clients[0].tree)
    ensemble.quorum = True
    back_s = now_s()
    await asyncio.sleep(TIMEOUT_S - 0.1)
    assert sessions[0] in ensemble.sessions
    await asyncio.sleep(0.2)
    assert sessions[0] not in ensemble.sessions
    assert [client.tree.session for client in clients[1:]] == sessions[1:]
    assert clients[1].at(CONNECTED) - back_s < 1
    assert (await late).states == [CONNECTED]


async def test_a_frozen_client_hears_nothing_until_it_goes_on_and_then_that_its_session_was_lost() -> None:
    ensemble = MemoryEnsemble(LoopClock())
    client, other = await Client(ensemble).open(), await Client(ensemble).open()
    await client.tree.create("/me", ephemeral=True)
    await client.tree.read("/x", client.on_change)
    client.tree.freeze()
    asking = asyncio.create_task(client.tree.read("/me"))
    await other.tree.create("/x")
    await asyncio.sleep(2 * TIMEOUT_S)
    assert await other.tree.read("/me") is None
    assert client.states == [CONNECTED]
    assert not client.changes
    assert not asking.done()
    client.tree.thaw()
    with pytest.raises(errors.ClusterUnavailable):
        await asking
    await asyncio.sleep(1)
    assert client.states == [CONNECTED, SUSPENDED, LOST, CONNECTED]
    assert client.changes


async def test_a_client_that_was_frozen_for_a_moment_goes_on_as_if_nothing_had_happened() -> None:
    ensemble = MemoryEnsemble(LoopClock())
    client, other = await Client(ensemble).open(), await Client(ensemble).open()
    await client.tree.read("/x", client.on_change)
    client.tree.freeze()
    await other.tree.create("/x")
    await asyncio.sleep(TIMEOUT_S / 2)
    client.tree.thaw()
    assert client.changes == [now_s()]
    await asyncio.sleep(10 * TIMEOUT_S)
    assert client.states == [CONNECTED]


async def test_an_answer_that_is_lost_leaves_a_write_that_was_applied() -> None:
    ensemble = MemoryEnsemble(LoopClock())
    client = await Client(ensemble).open()
    ensemble.loses_answer = lambda operation, path: (operation, path) == ("create", "/x")
    with pytest.raises(errors.ClusterUnavailable):
        await client.tree.create("/x", b"1")
    await asyncio.sleep(1)
    assert client.states == [CONNECTED, SUSPENDED, CONNECTED]
    node = await client.tree.read("/x")
    assert node is not None
    assert node.data == b"1"


async def test_an_error_at_the_servers_that_nobody_expects_is_raised_to_who_asked() -> None:
    ensemble = MemoryEnsemble(LoopClock())
    client = await Client(ensemble).open()
    with (
        mock.patch.object(ensemble.nodes, "read", side_effect=RuntimeError("nobody expected this")),
        pytest.raises(RuntimeError, match="nobody expected"),
    ):
        await client.tree.read("/x")


async def test_messages_take_their_time_and_keep_their_order() -> None:
    ensemble = MemoryEnsemble(LoopClock())
    client = await Client(ensemble).open()
    await asyncio.sleep(0.1)
    delays = iter([0.5, 0.1, 0.2, 0.3, *[0.0] * 50])
    ensemble.delay = lambda: next(delays)
    began_s = now_s()
    first = asyncio.create_task(client.tree.create("/x", b"first"))
    second = asyncio.create_task(client.tree.write("/x", b"second", 0))
    await first
    assert now_s() - began_s == pytest.approx(0.7)
    assert await second == 1
    assert now_s() - began_s == pytest.approx(0.8)


async def test_a_delay_beyond_the_time_out_costs_the_session() -> None:
    ensemble = MemoryEnsemble(LoopClock())
    client = await Client(ensemble).open()
    session = client.tree.session
    ensemble.delay = lambda: 2 * TIMEOUT_S
    await asyncio.sleep(3 * TIMEOUT_S)
    assert session not in ensemble.sessions
    ensemble.delay = lambda: 0.0
    await asyncio.sleep(TIMEOUT_S)
    assert client.states == [CONNECTED, SUSPENDED, LOST, CONNECTED]
