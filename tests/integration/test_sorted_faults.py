"""Faults of real servers and processes under sorted topics of all kinds: nothing lost, nothing settled twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import emq
import emq_servers as servers
from emq.runtime import errors
from emq.storage.opening import open_store
from emq.storage.slot_store import Keep, Slot, SlotAdd, SlotKind
from emq.topics.model import Topic
from support.loops import on_both_loops
from support.proxies import ReplyCutter
from support.sorted_load import Load

PROCESS = Path(__file__).parents[1] / "support" / "sorted_host_process.py"


# ------------------------------------------------------------------------------------------------- faults of the server


@on_both_loops
async def test_a_server_killed_under_load_and_started_again_loses_nothing_and_settles_nothing_twice(
    redis_server: servers.RedisServer, tmp_path: Path
) -> None:
    with servers.start_redis(appendonly=True, extra_args=("--appendfsync", "always")) as server:
        load = Load(server.url, tmp_path)
        async with load.running():
            for kills in range(1, 11):  # a kill may come while no call is under way
                await load.more(30)
                server.kill()
                await asyncio.sleep(0.1)
                await asyncio.to_thread(server.restart)
                if kills >= 2 and load.broken["claim"] + load.broken["settle"] >= 2:
                    break
            await load.more(30)
    assert load.unknown | load.refused
    assert load.broken["claim"] + load.broken["settle"] >= 2


@pytest.mark.parametrize(
    "scripts",
    [("slot_claim", "slot_recover"), ("slot_ack", "slot_settle"), ("slot_add", "slot_merge")],
    ids=["claim", "settle", "add"],
)
@on_both_loops
async def test_what_the_server_did_unheard_is_found_again_and_not_done_twice(
    redis_server: servers.RedisServer, tmp_path: Path, scripts: tuple[str, str]
) -> None:
    with servers.start_redis() as server:
        async with ReplyCutter(server.port) as proxy:
            load = Load(proxy.url, tmp_path)
            async with load.running():
                await load.more(20)
                for script in scripts:
                    # Only what took something: a claim that found nothing may well be lost.
                    proxy.lose(script, 2, b"prio-" if script == "slot_claim" else b"")
                await load.until(lambda: proxy.finished)
                await load.more(20)
    assert proxy.cuts == dict.fromkeys(scripts, 2)
    if "slot_claim" in scripts:  # what came in the lost answer came back, one retry poorer
        again = {(t, name) for t, name, attempt in load.starts if attempt > 1} - {
            (t, name) for t, name, attempt in load.starts if attempt == 1
        }
        assert again
    if "slot_add" in scripts:
        assert load.unknown.total() >= 4
        assert any(sent in load.done for sent in load.unknown)  # it was done
    else:
        assert not load.unknown
        assert load.broken.total() >= 2  # a call may lose the answers of both scripts


async def test_of_adds_sent_together_each_learns_what_became_of_itself(redis_server: servers.RedisServer) -> None:
    bare, apart = Slot("bare/0", SlotKind.PRIORITY), Slot("apart/0", SlotKind.PRIORITY, apart=True)
    with servers.start_redis() as server:
        async with ReplyCutter(server.port) as proxy:
            store = await open_store(proxy.url, emq.Environment.ONLINE)
            adds = [SlotAdd(apart, b"x", 20, Keep.LAST, b"body"), SlotAdd(bare, b"y", 20, Keep.LAST)]
            assert await store.sorted.add(adds) == [True, True]  # now the server knows the scripts
            proxy.lose("slot_merge", 1)
            broken, merged = await store.sorted.add(adds)
            assert isinstance(broken, errors.OutcomeUnknown)
            assert merged is False
            proxy.lose("slot_merge", 1)
            proxy.lose("slot_add", 1)
            with pytest.raises(errors.OutcomeUnknown):
                await store.sorted.add(adds)
            await store.close()


# --------------------------------------------------------------------------------------------------- killed processes


class Receipt(NamedTuple):
    what: str
    topic: str
    id: str
    attempt: int
    payload: str
    merged: int


class Life:
    """One catalog and one file of receipts over the lives of host processes, each of which dies where it is told to."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.database = f"sqlite:///{directory}/catalog.db"
        self.path = directory / "receipts"
        self.path.touch()

    def receipts(self) -> list[Receipt]:
        return [Receipt(*json.loads(line)) for line in self.path.read_text().split("\n")[:-1]]

    @contextlib.contextmanager
    def host(self, point: str, count: int) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, str(PROCESS), self.url, self.database, str(self.path), point, str(count)]
        with subprocess.Popen(command) as process:
            try:
                yield process
            finally:
                process.kill()

    async def publish(self) -> set[tuple[str, str]]:
        """Publish to all kinds; answers topic and name of each, a name being the payload without what was folded."""
        async with emq.App(self.url, database=self.database) as app:
            await app.create_topic("range", 300, kind="range_merge", slots=2, time_range_ms=1)
            await app.create_topic("prio", 300, kind="priority", slots=2, ordering="none")
            await app.create_topic("fixed", 300, kind="fixed_time", slots=2, precision="millisecond", ordering="none")
            await app.create_topic("count", 300, kind="priority", slots=2, merge="key", fold="count")
            names = [f"{i}{' flaky' if i % 10 == 3 else ''}" for i in range(30)]
            await app.publish_many("range", names)
            await app.publish_many("prio", names, priority=40)
            await app.publish_many("fixed", names, delay_ms=1)
            for _ in range(3):
                await asyncio.gather(*(app.publish("count", name, merge_key=name, priority=40) for name in names))
            return {(topic, name) for topic in ("range", "prio", "fixed", "count") for name in names}

    async def left(self) -> tuple[int, int, int]:
        """(waiting, claimed, dead) over all topics."""
        async with emq.App(self.url, database=self.database) as app:
            topics: list[Topic] = list(await app.catalog.list())
            lags = await app.admin.slot_lag(topics)
            return sum(g.ready + g.delayed for g in lags), sum(g.claimed for g in lags), sum(g.dead for g in lags)


@pytest.mark.parametrize(("point", "count"), [("claimed", 1), ("handling", 20), ("handled", 3), ("settled", 3)])
def test_a_consumer_killed_between_claim_handler_and_settle_is_followed_by_another_that_finishes_its_work(
    redis_server: servers.RedisServer, tmp_path: Path, point: str, count: int
) -> None:
    with servers.start_redis() as server:
        life = Life(server.url, tmp_path)
        sent = asyncio.run(life.publish())
        with life.host(point, count) as first:
            assert first.wait(15) == -signal.SIGKILL
        before = life.receipts()
        waiting, claimed, dead = asyncio.run(life.left())
        assert claimed > 0
        acknowledged = len(sent) - waiting - claimed
        assert dead == 0
        with life.host("never", 1) as second:
            deadline = time.monotonic() + 15
            while len({(r.topic, r.id) for r in life.receipts() if r.what == "e"}) < len(sent):
                assert second.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            second.send_signal(signal.SIGTERM)
            assert second.wait(15) == 0
        assert asyncio.run(life.left()) == (0, 0, 0)
    check_lives(life.receipts(), before, sent, point, acknowledged)


def check_lives(
    receipts: list[Receipt], before: list[Receipt], sent: set[tuple[str, str]], point: str, acknowledged: int
) -> None:
    starts = Counter((r.topic, r.id, r.attempt) for r in receipts if r.what == "s")
    ends = Counter((r.topic, r.id) for r in receipts if r.what == "e")
    assert max(starts.values()) == 1  # what had started came back as another attempt
    assert {(r.topic, r.payload) for r in receipts if r.topic != "count"} == {s for s in sent if s[0] != "count"}
    assert {(r.payload, r.merged) for r in receipts if r.topic == "count"} == {("3", 3)}
    assert len(ends) == len(sent)
    again = {(r.topic, r.id) for r in receipts[len(before) :] if r.attempt > 1}
    assert again
    repeated = {message for message, n in ends.items() if n > 1}
    ended_before = {(r.topic, r.id) for r in before if r.what == "e"}
    assert repeated == again & ended_before
    assert len(ended_before) - len(repeated) == acknowledged  # all that the store did not know of, and no more
    if point == "claimed":
        assert not before
    elif point in ("handling", "handled"):
        assert len(before) > 0
        assert (point == "handling") <= (before[-1].what == "s")
        assert repeated or point == "handling"
    else:
        assert acknowledged > 0
