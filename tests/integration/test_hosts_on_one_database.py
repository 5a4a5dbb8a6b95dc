"""Hosts without a cluster that share store and database find each other there, and share the groups."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from emq.allocation import fenced_groups
from emq.allocation.tree.database import sessions
from emq.host import neighbours
from emq.host.neighbours import Neighbours
from emq.runtime import errors
from emq.storage.lane_store import LaneAdd
from support import meeting
from support.meeting import Meeting
from support.waiting import until


async def test_a_second_lone_host_shares_with_the_first_which_takes_all_back_when_it_stops(shared: Meeting) -> None:
    starts, topics = shared.starts, shared.topics(6)
    async with shared.app("a") as a, shared.app("b") as b, a.running() as first:
        for topic in topics:
            await a.create_topic(topic, 100)
        await until(lambda: len(first.ownership.groups) == 12)
        sent = []

        async def publish(each: int) -> None:
            for topic in topics:
                sent.extend(await a.publish_many(topic, [b"x"] * each))

        await publish(150)
        async with b.running() as second:
            await publish(150)
            await until(lambda: len(first.ownership.groups) == len(second.ownership.groups) == 6)
            await publish(20)  # the first host may have started all the others by now
            await until(lambda: len(starts.ids) >= len(sent))
        await until(lambda: len(first.ownership.groups) == 12)
        await publish(20)
        await until(lambda: len(starts.ids) >= len(sent))
    assert sorted(starts.ids) == sorted(sent)
    assert starts.hosts["b"] > 0
    assert starts.most_in_a_second <= 100


async def test_one_receive_elsewhere_leaves_a_host_its_share_and_gives_back_what_it_had(shared: Meeting) -> None:
    [topic] = shared.topics(1)
    async with shared.app("a") as a, a.running() as first:
        await a.create_topic(topic, 100, group_qps=10)
        await until(lambda: len(first.ownership.groups) == 10)
        async with shared.app("b", "") as b:
            sent, received = [], []
            async with asyncio.timeout(60):
                while not received:  # the first host may start all of them before it has let go of its groups
                    sent += await a.publish_many(topic, [b"x"] * 300)
                    received = await b.receive(topic, timeout_s=5)
            assert b.host is not None
            assert len(b.host.ownership.groups) == len(first.ownership.groups) == 5
            for delivery in received:
                assert delivery.ack()
        await until(lambda: len(first.ownership.groups) == 10)
        await until(lambda: len(shared.starts.ids) >= len(sent) - len(received))
    assert sorted([*shared.starts.ids, *(d.message.id for d in received)]) == sorted(sent)


async def test_who_receives_from_one_topic_takes_no_groups_of_those_it_does_not_serve(shared: Meeting) -> None:
    mine, theirs = shared.topics(2)
    async with shared.app("a", mine) as a, a.running() as first:
        for topic in (mine, theirs):
            await a.create_topic(topic, 100, group_qps=10)
        await until(lambda: len(first.ownership.groups) == 20)  # nobody else is there
        async with shared.app("b", "") as b:
            sent = await a.publish_many(theirs, [b"x"] * 50)
            received = []
            async with asyncio.timeout(20):
                while len(received) < 50:
                    received += await b.receive(theirs, timeout_s=5)
            for delivery in received:
                assert delivery.ack()
            assert sorted(d.message.id for d in received) == sorted(sent)
            assert b.host is not None
            assert set(b.host.ownership.owned) == {theirs}
            own = await a.publish_many(mine, [b"x"] * 50)
            await until(lambda: sorted(shared.starts.ids) == sorted(own))
            await asyncio.sleep(0.1)
        await until(lambda: len(first.ownership.groups) == 20)


def different(shared: Meeting, tmp_path: Path) -> Meeting:
    """Hosts on the same store with a database of their own."""
    return Meeting(shared.store, f"sqlite:///{tmp_path}/other.db")


async def test_a_host_with_another_database_says_so_and_does_not_start(shared: Meeting, tmp_path: Path) -> None:
    stranger, [topic] = different(shared, tmp_path), shared.topics(1)
    async with shared.app("a", host_name="first") as a, stranger.app("b", "") as b, a.running() as first:
        for app in (a, b):
            await app.create_topic(topic, 100)
        await until(lambda: len(first.ownership.groups) == 2)
        with pytest.raises(
            errors.HostConflict, match=r"host first on this store has the database .* the same `database`"
        ):
            await b.receive(topic, timeout_s=1)
        with pytest.raises(errors.HostConflict, match="host first"):
            await b.run()
        sent = await a.publish_many(topic, [b"x"] * 50)
        await until(lambda: sorted(shared.starts.ids) == sorted(sent))
        assert len(first.ownership.groups) == 2
    async with asyncio.timeout(5), stranger.app("b") as again, again.running():
        pass  # a host that was stopped cleanly leaves no sign


async def test_the_sign_of_a_host_that_crashed_holds_another_database_up_for_seconds_only(
    shared: Meeting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "GONE_S", 1.0)
    monkeypatch.setattr(neighbours, "LOOK_S", 0.2)
    stranger = different(shared, tmp_path)
    async with stranger.app("crashed") as crashed:
        left = neighbours.Neighbours(crashed.store.lanes, crashed.database, "online", "crashed")
        await left.arrive()
    async with shared.app("a") as a:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with a.running():
            assert loop.time() - began_s > 0.9
        monkeypatch.setattr(neighbours, "GONE_S", 60.0)
        async with asyncio.timeout(30), a.running():
            pass


async def test_hosts_of_one_database_keep_one_sign_together_and_leave_none(shared: Meeting) -> None:
    async with shared.app("a") as a, shared.app("b") as b:
        async with a.running(), b.running():
            await asyncio.sleep(0.1)
            mine = await a.store.lanes.waiting(neighbours.LANE)
            assert 1 <= len(mine) <= 2
        assert not await a.store.lanes.waiting(neighbours.LANE)


async def test_the_sign_of_a_process_that_is_gone_holds_nobody_up(shared: Meeting, tmp_path: Path) -> None:
    gone = f"{sessions.this_process().rpartition('/')[0].rpartition('/')[0]}/4194305/1"
    body = msgspec.msgpack.encode(neighbours.Sign(1, "sqlite:///gone.db", "gone", gone))
    async with shared.app("a") as a:
        await a.store.lanes.add(
            [LaneAdd(neighbours.LANE, "1~gone", body, 0), LaneAdd(neighbours.LANE, "garbage", b"\xff", 0)]
        )
        async with asyncio.timeout(4), a.running():
            left = await a.store.lanes.waiting(neighbours.LANE)
        assert {entry.id for entry in left}.isdisjoint({"1~gone", "garbage"})


async def _at_the_same_moment(_self: neighbours.Neighbours) -> None:
    """Two that start at once do not see each other yet."""


async def test_hosts_with_different_databases_on_one_store_are_told_and_get_their_groups_back(
    redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fenced_groups, "FENCED_S", 0.5)
    monkeypatch.setattr(Neighbours, "arrive", _at_the_same_moment)
    shared = meeting.on_redis(redis_url, tmp_path)
    stranger = Meeting(shared.store, f"sqlite:///{tmp_path}/other.db")
    [topic] = shared.topics(1)
    async with shared.app("a") as a, stranger.app("b", topic) as b, a.running() as first:
        for app in (a, b):
            await app.create_topic(topic, 100)
        await until(lambda: len(first.ownership.groups) == 2)
        # Epochs are at least the time in seconds, and a few plans later somewhat more: the stranger's is a higher one.
        await asyncio.sleep(3.1)
        # A host that has nothing to do learns of a stranger within two minutes.
        await a.publish_many(topic, [b"x"] * 500)
        async with b.running():
            await until(lambda: "must have the same `database`" in caplog.text)
        await until(lambda: len(first.ownership.groups) == 2, 40)
        sent = await a.publish_many(topic, [b"y"] * 20)
        await until(lambda: set(sent) <= set(shared.starts.ids), 40)


async def test_a_lone_host_starts_and_stops_without_waiting_for_anybody(
    shared: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    for waits in ("LOOK_S", "GONE_S", "ANSWER_S"):
        monkeypatch.setattr(neighbours, waits, 60.0)
    async with shared.app("a") as a:
        await a.create_topic(shared.topics(1)[0], 100)
        for _ in range(2):
            async with asyncio.timeout(30), a.running() as host:
                await until(lambda host=host: len(host.ownership.groups) == 2)
