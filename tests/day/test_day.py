"""A realistic day on every store: 300 topics of every kind, failures, a kill, a restart; and no promise is broken.

`make all-tests` runs a short day on each store. `make day` runs a minute on each,
`make day STORE=postgresql SECONDS=300` a longer one on one of them; the length is `EMQ_DAY_S`, the seed `EMQ_DAY_SEED`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from day_host import TRAIL
from day_judge import dropped, judged, unfinished
from day_load import Load
from day_plan import TOPICS, names, tenants
from day_record import Death, Evidence, Journal, Runs, late_moments
from day_stage import Place, Stage
from day_trail import trail_violations

import emq
import emq_servers as servers
from emq.observe import dead_letters
from emq.runtime.clock import SystemClock
from emq.trail.writer import Trail
from emq_servers.redis import RedisServer
from emq_stores.memory import forget
from support.redis_servers.cluster import RedisCluster

log = logging.getLogger("day")

SECONDS = float(os.environ.get("EMQ_DAY_S", "8"))

SEED = int(os.environ.get("EMQ_DAY_SEED", "0")) or random.randrange(1, 1_000_000)

STORES = ("valkey", "redis", "redis_cluster", "postgresql", "sqlite", "memory")

DRAINED_S = 60.0
"""How long after the load everything may take to end."""


@pytest.fixture
def zookeeper(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    server: servers.ZooKeeperServer = request.getfixturevalue("zookeeper_server")
    return f"{server.url}/{tmp_path.name}"


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    catalog = f"sqlite:///{tmp_path}/catalog.db"
    match request.param:
        case "memory":
            yield Place("memory://day", catalog, in_process=True)
            forget("day")
        case "sqlite":
            yield Place(f"sqlite:///{tmp_path}/emq.db", "")
        case "postgresql":
            request.getfixturevalue("postgres_server")  # skips or fails where there is none
            with servers.start_postgres() as server:
                yield Place(server.url, "", request.getfixturevalue("zookeeper"), 2)
        case "redis_cluster":
            cluster: RedisCluster = request.getfixturevalue("redis_cluster")
            yield Place(cluster.url, catalog, request.getfixturevalue("zookeeper"), 2)
        case "valkey":
            request.getfixturevalue("redis_server")
            with servers.start_redis() as server:
                yield Place(server.url, catalog, request.getfixturevalue("zookeeper"), 2)
        case _:
            options = ("--save", "", "--appendonly", "no")
            with RedisServer(_redis_7_0(), None, None, options).started() as server:
                yield Place(server.url, catalog, request.getfixturevalue("zookeeper"), 2)


def _redis_7_0() -> str:
    """The oldest server that is supported. It cannot be installed from PyPI, so its want is a reason to skip."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server 7.0 on the PATH; Debian 12's package redis-server is one")
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    if "v=7.0." not in told:
        pytest.skip(f"{program} is not Redis 7.0 but {told.strip()}")
    return program


async def test_a_realistic_day_breaks_no_promise(place: Place, tmp_path: Path) -> None:
    evidence = Evidence(SEED)
    stage = Stage(place, tmp_path, evidence)
    async with stage.closing():
        await _day(stage, SECONDS)
    found = stage.troubles() + judged(evidence) + trail_violations(tmp_path / "trail", evidence)
    text = "\n".join(line[:1500] for line in found[:40])
    assert not found, (
        f"{len(found)} violations (EMQ_DAY_SEED={SEED} EMQ_DAY_S={SECONDS:g}, files in {tmp_path}):\n{text}"
    )
    # A day on which nothing happened proves nothing.
    assert len(evidence.killed) == (0 if place.in_process else 1)
    outcomes = {run.outcome for run in evidence.runs}
    assert {"done", "failed", "cancelled"} <= outcomes
    assert evidence.deaths
    assert evidence.recalled
    assert len(evidence.sent) > 20 * SECONDS
    # A server on a busy machine that misses its deadline leaves all publishes unknown that are under way, one a topic.
    assert len(evidence.unknown) <= TOPICS + len(evidence.sent) / 1000, "publishing failed on servers that are well"
    if SECONDS >= 30:
        assert len(evidence.forced) == 4
        assert dropped(evidence), "nothing was dropped"


async def _day(stage: Stage, seconds: float) -> None:
    place, evidence, directory = stage.place, stage.evidence, stage.directory
    planned = tenants(evidence.seed, seconds)
    evidence.strict = names(planned, *(t.trait for t in planned if t.of.strict)) | {"plain-brief0", "plain-brief1"}
    evidence.strict |= {"plain-forced"}
    evidence.moving = names(planned, "moving")
    evidence.dropping = names(planned, "dropping")
    evidence.keyed = names(planned, "keyed", "moment") | evidence.moving
    evidence.serial = names(planned, "range", "timed", "sums", "rankback")
    evidence.merging = names(planned, *(t.trait for t in planned if not t.of.unique))
    trail = Trail.open(directory / "trail", "publisher", SystemClock(), TRAIL)
    journal = Journal(directory / "publishes")
    runs = Runs(directory)
    try:
        async with emq.App(place.store, database=place.database or None, trail=trail) as app:
            load = Load(app, planned, evidence, journal)
            await load.create_topics()
            hosts = [f"host{i}" for i in range(place.hosts)]
            for host in hosts:
                stage.start(host)
            over = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                group.create_task(load.run(seconds, over))
                group.create_task(_events(stage, hosts, seconds, over))
            log.info("the load is over")
            await load.recall_far()
            await _ended(app, stage, runs, [t.name for t in planned])
            log.info("all has ended")
            await stage.stop_all()
            log.info("the hosts have stopped")
            evidence.runs = runs.read()
            evidence.late = late_moments(directory)
            evidence.deaths = await _deaths(app)
    finally:
        trail.close()
        journal.close()


async def _events(stage: Stage, hosts: list[str], seconds: float, over: asyncio.Event) -> None:
    """A kill -9 of the first host, which comes back; later a clean restart of the last. Sets `over` at the end."""
    await stage.at_work(*hosts)
    log.info("the hosts are at work")
    await asyncio.sleep(seconds * 0.4)
    if not stage.place.in_process:
        stage.kill(hosts[0])
        await asyncio.sleep(1.0)
        stage.start(hosts[0])
        await stage.at_work(hosts[0])
        log.info("the killed host is back")
    await asyncio.sleep(seconds * 0.4)
    stage.check()
    await stage.stop(hosts[-1])
    stage.start(hosts[-1])
    await asyncio.sleep(seconds * 0.2)
    over.set()


async def _ended(app: emq.App, stage: Stage, runs: Runs, topics: list[str]) -> None:
    """Wait until everything that was published has been handled or is dead; what is left then is judged as lost."""
    try:
        async with asyncio.timeout(DRAINED_S):
            while True:
                stage.check()
                stage.evidence.runs = runs.read()
                if len(unfinished(stage.evidence)) < 500:
                    stage.evidence.deaths = await _deaths(app)
                    if not unfinished(stage.evidence) and await _drained(app, topics):
                        return
                await asyncio.sleep(0.5)
    except TimeoutError:
        pass


async def _drained(app: emq.App, topics: list[str]) -> bool:
    """Nothing is left in the store: what merged by a sum or was still to be retried, for example."""
    found = [await app.catalog.get(name) for name in topics]
    left = sum(lag.unfinished for lag in await app.admin.lag(found))
    return left + sum(s.ready + s.delayed + s.claimed for s in await app.admin.slot_lag(found)) == 0


async def _deaths(app: emq.App) -> list[Death]:
    deaths = []
    for topic in await app.catalog.list():
        async for letter in dead_letters.find(app.store, topic):
            deaths.append(Death(topic.name, letter.payload.decode(), letter.reason))
    return deaths
