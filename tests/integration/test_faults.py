"""Real processes, really killed: nothing lost, and repeated only what could not have been known to be finished."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import emq
import emq_servers as servers
from emq import errors
from emq.offsets.checkpoints import Checkpoint
from support import processes
from support.processes import Receipts

QPS = 200.0
CHECKPOINT_S = 0.3
MESSAGES = 500


class Place(NamedTuple):
    store: str
    database: str
    receipts: Receipts


@pytest.fixture(params=["sqlite", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    receipts = Receipts(tmp_path / "receipts")
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/emq.db"
        yield Place(url, url, receipts)
        return
    request.getfixturevalue("redis_server")  # skips or fails where there is none
    with servers.start_redis(appendonly=True) as server:
        yield Place(server.url, f"sqlite:///{tmp_path}/catalog.db", receipts)


async def prepared(place: Place, messages: int = MESSAGES) -> list[str]:
    async with emq.App(place.store, database=place.database) as app:
        await app.create_topic("orders", QPS)
        payloads = [b"flaky" if i % 10 == 0 else b"x" for i in range(messages)]
        high = await app.publish_many("orders", payloads[: messages // 2], priority="high")
        return high + await app.publish_many("orders", payloads[messages // 2 :])


async def checkpoints(place: Place) -> tuple[dict[str, Checkpoint], tuple[str, ...]]:
    async with emq.App(place.store, database=place.database) as app:
        topic = await app.catalog.get("orders")
        return await app.checkpoints.load_all(), topic.priorities


async def left(place: Place) -> int:
    async with emq.App(place.store, database=place.database) as app:
        topic = await app.catalog.get("orders")
        [slots] = await app.admin.slot_lag([topic])
        return sum(lag.unfinished for lag in await app.admin.lag([topic])) + slots.delayed + slots.claimed + slots.dead


def test_a_killed_host_loses_nothing_and_repeats_only_what_was_unfinished_or_not_checkpointed(place: Place) -> None:
    sent = asyncio.run(prepared(place, 900))
    receipts = place.receipts
    at_risk: set[str] = set()
    for done in (450, 600, 900):  # the first kill comes in the third second of work
        repeated_before = set(receipts.repeated())
        with processes.host(*place, checkpoint_s=CHECKPOINT_S) as host:
            processes.wait_for(lambda n=done: len(receipts.done()) >= n, host)  # type: ignore[misc]
            if done == 900:
                assert host.terminate() == 0
            else:
                host.kill()
        assert {id_ for id_, _ in set(receipts.repeated()) - repeated_before} <= at_risk
        starts = receipts.starts()
        at_risk = processes.not_covered(starts, *asyncio.run(checkpoints(place)))
        # A second more than the interval, for a checkpoint may be a little late when the machine is busy.
        since_us = starts[-1].started_us - 1_000_000 * (CHECKPOINT_S + 1)
        assert at_risk <= {r.id for r in starts if r.started_us > since_us or r.offset < 0}
    assert receipts.done() == set(sent)
    assert asyncio.run(left(place)) == 0
    per_second = Counter(r.started_us // 1_000_000 for r in receipts.starts())
    assert max(per_second.values()) <= QPS


def test_sigterm_in_the_middle_of_work_repeats_nothing(place: Place) -> None:
    sent = asyncio.run(prepared(place))
    receipts = place.receipts
    for done in (150, MESSAGES):
        with processes.host(*place) as host:
            processes.wait_for(lambda n=done: len(receipts.done()) >= n, host)  # type: ignore[misc]
            assert host.terminate() == 0
        assert (len(receipts.done()) == MESSAGES) is (done == MESSAGES)
    assert receipts.done() == set(sent)
    assert receipts.repeated() == {}
    assert asyncio.run(left(place)) == 0


def test_a_second_host_on_an_sqlite_file_is_refused_in_one_line(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/emq.db"
    place = Place(url, url, Receipts(tmp_path / "receipts"))
    asyncio.run(prepared(place, 40))
    with processes.host(*place) as first:
        processes.wait_for(lambda: len(place.receipts.done()) > 0, first)
        with processes.host(*place) as second:
            status, text = second.wait()
        assert status == 1
        assert text.count("\n") == 1
        assert str(tmp_path / "emq.db") in text
        assert "stop" in text
        processes.wait_for(lambda: len(place.receipts.done()) == 40, first)
        asyncio.run(prepared_more(place))  # publishing from another process is fine
        processes.wait_for(lambda: len(place.receipts.done()) == 41, first)
        first.kill()
    with processes.host(*place) as third:  # the lock died with its holder
        asyncio.run(prepared_more(place))
        processes.wait_for(lambda: len(place.receipts.done()) == 42, third)
        assert third.terminate() == 0


async def prepared_more(place: Place) -> None:
    async with emq.App(place.store, database=place.database) as app:
        await app.publish("orders", b"more")


class Local:
    """A host in this process on a server of its own, and what it handled."""

    def __init__(self, url: str, tmp_path: Path) -> None:
        self.app = emq.App(url, database=f"sqlite:///{tmp_path}/catalog.db", options=emq.Settings(checkpoint_s=0.2))
        self.handled: list[bytes] = []
        self.flaky = False
        self.app.handler("*")(self.handle)

    async def handle(self, m: emq.Message) -> None:
        if self.flaky and m.attempt == 1:
            raise emq.Retry("flaky", after_s=0.1)
        self.handled.append(m.payload)

    async def until(self, count: int, timeout_s: float = 20.0) -> None:
        async with asyncio.timeout(timeout_s):
            while len(set(self.handled)) < count:
                await asyncio.sleep(0.01)


async def test_a_server_killed_under_load_and_started_again_loses_nothing_that_was_published(
    redis_server: servers.RedisServer, tmp_path: Path
) -> None:
    with servers.start_redis(appendonly=True) as server:
        local = Local(server.url, tmp_path)
        known: set[bytes] = set()
        unknown: set[bytes] = set()
        refused: set[bytes] = set()
        stop = asyncio.Event()

        async def publish(name: str) -> None:
            for i in range(100_000):
                if stop.is_set():
                    return
                payload = f"{name} {i}".encode()
                try:
                    await local.app.publish("orders", payload)
                    known.add(payload)
                except errors.OutcomeUnknown:
                    unknown.add(payload)
                except errors.StoreUnavailable:
                    refused.add(payload)
                await asyncio.sleep(0.01)

        async with local.app:
            await local.app.create_topic("orders", 2_000)
            local.flaky = True
            run = asyncio.create_task(local.app.run())
            publishers = [asyncio.create_task(publish(f"p{i}")) for i in range(4)]
            await local.until(150)
            server.kill()
            await asyncio.sleep(0.7)
            await asyncio.to_thread(server.restart)
            before = len(known)
            while len(known) < before + 150:
                await asyncio.sleep(0.01)
            stop.set()
            await asyncio.gather(*publishers)
            async with asyncio.timeout(20):
                while not known <= set(local.handled):
                    await asyncio.sleep(0.02)
            local.app.stop()
            await run
    assert unknown | refused  # something was published while it was down
    handled = set(local.handled)
    assert known <= handled <= known | unknown
    assert not handled & refused
    repeated = len(local.handled) - len(handled)
    assert repeated <= 150  # settled verdicts whose reply was lost


async def fill(app: emq.App) -> int:
    """Publish until the server takes no more; answers how many messages it took."""
    for n in range(1_000):
        try:
            await app.publish_many("orders", [b"%d.%d." % (n, i) + b"x" * 2_000 for i in range(100)])
        except errors.StoreFull:
            return 100 * n
    raise AssertionError("the server was never full")


async def test_a_full_server_refuses_publishing_and_goes_on_being_drained(
    redis_server: servers.RedisServer, tmp_path: Path
) -> None:
    with servers.start_redis(extra_args=("--maxmemory", "8mb", "--maxmemory-policy", "noeviction")) as server:
        local = Local(server.url, tmp_path)
        async with local.app:
            await local.app.create_topic("orders", 20_000, group_qps=150)
            published = await fill(local.app)
            assert published > 500
            local.flaky = True  # each fails once, and the retries need room where there is none
            run = asyncio.create_task(local.app.run())
            await local.until(published)
            async with asyncio.timeout(15):  # its room is freed behind the checkpoints
                while True:
                    try:
                        await local.app.publish("orders", b"again")
                        break
                    except errors.StoreFull:
                        await asyncio.sleep(0.1)
            await local.until(published + 1)
            local.app.stop()
            await run
    assert len(local.handled) == len(set(local.handled))


async def test_wake_ups_still_arrive_after_the_subscription_was_cut(
    redis_server: servers.RedisServer, tmp_path: Path
) -> None:
    import redis.asyncio

    with servers.start_redis() as server:
        local = Local(server.url, tmp_path)
        scissors = redis.asyncio.Redis.from_url(server.url)
        async with local.app:
            await local.app.create_topic("orders", 100)
            run = asyncio.create_task(local.app.run())
            await local.app.publish("orders", b"first")
            await local.until(1)
            for i in range(3):
                assert await scissors.client_kill_filter(_type="pubsub") >= 1
                await local.app.publish("orders", b"%d" % i)
                await local.until(2 + i, 5)
                await asyncio.sleep(0.6)  # subscribed again
            local.app.stop()
            await run
        await scissors.aclose()


async def test_a_second_signal_ends_a_stop_that_hangs(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/emq.db"
    place = Place(url, url, Receipts(tmp_path / "receipts"))
    await prepared(place, 4)
    with processes.host(*place, handler_ms=60_000) as host:
        await asyncio.to_thread(processes.wait_for, lambda: len(place.receipts.starts()) == 4, host)
        host.signal()
        await asyncio.sleep(0.3)
        assert host.running
        host.signal()
        status, text = await asyncio.to_thread(host.wait, 5)
    assert status == 0
    assert text == ""
