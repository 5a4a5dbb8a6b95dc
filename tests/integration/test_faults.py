"""Real processes, really killed: nothing lost, and repeated only what could not have been known to be finished."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import emq
import emq_servers as servers
from emq.offsets.checkpoints import Checkpoint
from emq.runtime import errors
from support import cluster_receipts
from support.cluster import Cluster, Note, Place
from support.cluster_process import HostProcess
from support.ledger import Ledger
from support.loops import on_both_loops
from support.waiting import until

QPS = 200.0
CHECKPOINT_S = 0.3
MESSAGES = 500


@pytest.fixture
async def on_sqlite(tmp_path: Path) -> AsyncIterator[Cluster]:
    url = f"sqlite:///{tmp_path}/emq.db"
    async with Cluster(Place(url, url, ""), tmp_path, checkpoint_s=CHECKPOINT_S) as made:
        yield made


@pytest.fixture(params=["sqlite", "redis"])
async def hosts(request: pytest.FixtureRequest, tmp_path: Path, record_property: Note) -> AsyncIterator[Cluster]:
    url = f"sqlite:///{tmp_path}/emq.db"
    with contextlib.ExitStack() as stack:
        store = url
        if request.param == "redis":
            request.getfixturevalue("redis_server")  # skips or fails where there is none
            store = stack.enter_context(servers.start_redis(appendonly=True)).url
        async with Cluster(Place(store, url, ""), tmp_path, checkpoint_s=CHECKPOINT_S, note=record_property) as made:
            yield made


async def prepared(app: emq.App, messages: int = MESSAGES) -> list[str]:
    await app.create_topic("orders", QPS)
    payloads = [b"flaky" if i % 10 == 0 else b"x" for i in range(messages)]
    high = await app.publish_many("orders", payloads[: messages // 2], priority="high")
    return high + await app.publish_many("orders", payloads[messages // 2 :])


async def left(app: emq.App) -> int:
    topic = await app.catalog.get("orders")
    [slots] = await app.admin.slot_lag([topic])
    return sum(lag.unfinished for lag in await app.admin.lag([topic])) + slots.delayed + slots.claimed + slots.dead


def done(hosts: Cluster) -> set[str]:
    return cluster_receipts.done(hosts.receipts())


def repeated(hosts: Cluster) -> set[tuple[str, int]]:
    """Return the deliveries, by message and attempt, that there were twice."""
    return {(again.id, again.attempt) for _, again in cluster_receipts.repeated(hosts.receipts())}


async def not_covered(hosts: Cluster) -> set[str]:
    """Return the ids of messages that were started and are not finished by their queue's checkpoint."""
    topic = await hosts.app.catalog.get("orders")
    checkpoints = await hosts.app.checkpoints.load_all()
    found = set()
    for r in cluster_receipts.starts(hosts.receipts()):
        checkpoint = checkpoints.get(f"{r.group}/{topic.priorities[r.priority]}", Checkpoint("", 0, 0))
        finished = r.offset < checkpoint.watermark or any(s <= r.offset < e for s, e in checkpoint.finished)
        if r.offset < 0 or not finished:
            found.add(r.id)
    return found


def complaints(host: HostProcess) -> list[str]:
    """Return what the host said beyond its news."""
    return [line for line in host.logged.splitlines() if " INFO " not in line]


async def test_a_killed_host_loses_nothing_and_repeats_only_what_was_unfinished_or_not_checkpointed(
    hosts: Cluster,
) -> None:
    sent = await prepared(hosts.app, 900)
    at_risk: set[str] = set()
    for count in (450, 600, 900):  # the first kill comes in the third second of work
        repeated_before = repeated(hosts)
        host = hosts.start("a")
        await hosts.until(lambda n=count: len(done(hosts)) >= n)  # type: ignore[misc]
        if count == 900:
            assert await host.stop() == 0
        else:
            host.kill()
        assert {id_ for id_, _ in repeated(hosts) - repeated_before} <= at_risk
        starts = cluster_receipts.starts(hosts.receipts())
        at_risk = await not_covered(hosts)
        # A second more than the interval, for a checkpoint may be a little late when the machine is busy.
        since_us = starts[-1].started_us - 1_000_000 * (CHECKPOINT_S + 1)
        assert at_risk <= {r.id for r in starts if r.started_us > since_us or r.offset < 0}
    assert done(hosts) == set(sent)
    assert await left(hosts.app) == 0
    assert cluster_receipts.over_cap(hosts.receipts(), lambda _: QPS) == []
    hosts.note_measured(len(sent))


async def test_sigterm_in_the_middle_of_work_repeats_nothing(hosts: Cluster) -> None:
    sent = await prepared(hosts.app)
    for count in (150, MESSAGES):
        host = hosts.start("a")
        await hosts.until(lambda n=count: len(done(hosts)) >= n)  # type: ignore[misc]
        assert await host.stop() == 0
        assert (len(done(hosts)) == MESSAGES) is (count == MESSAGES)
    assert done(hosts) == set(sent)
    assert repeated(hosts) == set()
    assert await left(hosts.app) == 0


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
        await until(lambda: len(set(self.handled)) >= count, timeout_s)


@pytest.fixture(params=["redis", "postgresql"])
def own_server(request: pytest.FixtureRequest) -> Iterator[servers.Server]:
    request.getfixturevalue("redis_server" if request.param == "redis" else "postgres_server")  # skips or fails
    # With `everysec`, Valkey postpones a write to its file while the last one is still on its way to a slow disk, and
    # acknowledges it before that.
    always = ("--appendfsync", "always")
    with (
        servers.start_redis(appendonly=True, extra_args=always)
        if request.param == "redis"
        else servers.start_postgres() as server
    ):
        yield server


@on_both_loops
async def test_a_server_killed_under_load_and_started_again_loses_nothing_that_was_published(
    own_server: servers.Server, tmp_path: Path, record_property: Note
) -> None:
    # PostgreSQL keeps what was only accepted in its memory for a moment.
    durability = "accepted" if isinstance(own_server, servers.RedisServer) else "fsynced"
    ledger = Ledger(own_server.url, f"sqlite:///{tmp_path}/catalog.db", record_property, durability=durability)
    async with ledger.host():
        await ledger.more(300)
        own_server.kill()
        await asyncio.sleep(0.7)
        await asyncio.to_thread(own_server.restart)
        await ledger.more(300)
    assert ledger.unknown | ledger.refused  # something was published while it was down
    ledger.judge()
    assert ledger.repeats <= 150  # settled verdicts whose reply was lost


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


async def test_a_second_signal_ends_a_stop_that_hangs(on_sqlite: Cluster) -> None:
    await prepared(on_sqlite.app, 4)
    host = on_sqlite.start(handler_ms=60_000)
    await on_sqlite.until(lambda: len(cluster_receipts.starts(on_sqlite.receipts())) == 4)
    host.signal(signal.SIGTERM)
    await asyncio.sleep(0.3)
    assert host.running
    host.signal(signal.SIGTERM)
    assert await host.wait(5) == 0
    assert complaints(host) == []
