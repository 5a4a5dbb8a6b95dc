"""A cluster of real host processes over real servers, under load, and what it must have kept when all is over."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import redis
import sqlalchemy as sa

import emq
import emq_servers as servers
from emq.allocation.heartbeat import LEASE_SHARE
from support import cluster_load, cluster_receipts
from support.cluster_load import Load, LoadTopic
from support.cluster_process import HostProcess
from support.cluster_receipts import Crash, Receipt

SESSION_TIMEOUT_S = 3.0
LEASE_US = SESSION_TIMEOUT_S * LEASE_SHARE * 1e6
CHECKPOINT_S = 0.5
REDIS_DATABASE = 7
PATIENCE_S = 60.0
WATCH_S = 0.2
CLOCKS_US = 5_000_000
"""Most microseconds by which the time of an environment differs from the machine's."""

EXPIRED = re.compile(r"^(\d+)\.\d+ .*the session of host .* has expired", re.MULTILINE)
"""Line in the log of a host that has learned that it is no longer a member."""

NEWER_OWNER = re.compile("has a newer owner than epoch")
"""Text in the log of a host that a store has refused."""


Note = Callable[[str, object], None]
"""Takes what was measured, by name: the fixture `record_property`."""


class Place(NamedTuple):
    """The URLs of the servers; that of ZooKeeper has a chroot."""

    store: str
    database: str
    zookeeper: str


@contextlib.contextmanager
def _empty(url: str) -> Iterator[None]:
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        yield
        client.flushdb()


class Cluster:
    """Hosts over one store, database and ensemble; an asynchronous context manager that ends hosts that still run.

    Attributes:
        app: a client of the same cluster in this process; no host.
        hosts: all host processes that were started, in order.
        crashes: the crashes, which may cause repeats.

    Args:
        note: takes what was measured under load.
    """

    def __init__(
        self,
        place: Place,
        directory: Path,
        *,
        environment: str = "online",
        note: Note = lambda name, value: None,
        **settings: object,
    ) -> None:
        self.place = place
        self.directory = directory
        self.hosts: list[HostProcess] = []
        self.crashes: list[Crash] = []
        self.environment = environment
        self._note = note
        self._settings = {"session_timeout_s": SESSION_TIMEOUT_S, "checkpoint_s": CHECKPOINT_S, **settings}
        self._stack = contextlib.AsyncExitStack()
        self._names = (f"{environment[0]}{n}" for n in itertools.count(1))
        options = emq.Settings(cluster=place.zookeeper)
        self.app = emq.App(place.store, database=place.database, environment=environment, options=options)

    async def __aenter__(self) -> Cluster:
        await self._stack.enter_async_context(self.app)
        self._stack.callback(self._kill_all)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    def _kill_all(self) -> None:
        for host in self.hosts:
            host.kill()

    # ------------------------------------------------------------------------------------------------------- hosts

    def start(
        self,
        name: str = "",
        *,
        handler_ms: float = 20.0,
        ahead_s: float = 0.0,
        loop: str = "asyncio",
        **settings: object,
    ) -> HostProcess:
        """Start a host process, and do not wait for it."""
        name = name or next(self._names)
        values = {
            "store": self.place.store,
            "database": self.place.database,
            "cluster": self.place.zookeeper,
            "environment": self.environment,
            "host_name": name,
            **self._settings,
            **settings,
        }
        environ = {k: v for k, v in os.environ.items() if not k.startswith("EMQ_")}
        environ |= {f"EMQ_{key.upper()}": str(value) for key, value in values.items()} | {"HOST_LOOP": loop}
        lives = sum(host.name.partition("+")[0] == name for host in self.hosts)
        host = HostProcess(name if not lives else f"{name}+{lives}", self.directory, environ, handler_ms, ahead_s)
        self.hosts.append(host)
        return host

    async def started(self, count: int, **options: Any) -> list[HostProcess]:
        """Start `count` hosts; return when each of them handles messages."""
        hosts = [self.start(**options) for _ in range(count)]
        await self.until_working(*hosts)
        return hosts

    async def until_spread(self, *hosts: HostProcess) -> None:
        """Return when these hosts alone have shared the groups evenly for a while."""

        def spread() -> bool:
            counts = [len(self.groups_of(host, 1.5)) for host in hosts]
            everybody = sum(len(self.groups_of(host, 1.5)) for host in self.hosts)
            return everybody == sum(counts) and min(counts) > 0 and max(counts) <= 1.1 * sum(counts) / len(counts) + 1

        await self.until(spread)

    async def until_working(self, *hosts: HostProcess, since_us: int = 0) -> None:
        """Return when each of these hosts has started a message after that time."""
        await self.until(lambda: all(any(r.started_us > since_us for r in h.receipts.all()[-50:]) for h in hosts))

    def kill(self, host: HostProcess) -> None:
        self.crashed(host)
        host.kill()

    def pause(self, host: HostProcess) -> None:
        self.crashed(host)
        host.pause()

    def crashed(self, host: HostProcess) -> None:
        """Note a crash: from now on, deliveries that the host had not checkpointed may be repeated."""
        self.crashes.append(Crash(host.name, now_us()))

    # ---------------------------------------------------------------------------------------------------- watching

    def receipts(self) -> list[Receipt]:
        return [r for host in self.hosts for r in host.receipts.all()]

    def groups_of(self, host: HostProcess, last_s: float = 2.0) -> set[str]:
        """Return the groups of which the host has started messages lately."""
        since_us = now_us() - last_s * 1e6
        # In the order in which they were noted, and never started long after that: earlier ones need not be looked at.
        late = itertools.takewhile(lambda r: r.noted_us > since_us - CLOCKS_US, reversed(host.receipts.all()))
        return {r.group for r in late if r.what == "start" and r.started_us > since_us}

    async def until(self, holds: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            for host in self.hosts:
                assert host.running or not host.expected, f"host {host.name} has ended:\n{host.logged[-3000:]}"
            assert time.monotonic() < deadline, f"did not come true within {timeout_s:g} s\n{self.tails()}"
            await asyncio.sleep(0.05)

    def tails(self) -> str:
        """Return the ends of the logs."""
        return "\n".join(f"--- {host.name} (runs: {host.running})\n{host.logged[-1500:]}" for host in self.hosts)

    # ---------------------------------------------------------------------------------------------------- promises

    @contextlib.asynccontextmanager
    async def load(
        self,
        topics: Sequence[LoadTopic] = cluster_load.TOPICS,
        *,
        backlog_s: float = 1.0,
        quota: Callable[[Receipt], float] | None = None,
        **expected: bool,
    ) -> AsyncIterator[Load]:
        """Publish for the length of the block; at its end all promises must have been kept.

        Args:
            quota: most starts of a delivery's topic in a second; None for the topic's qps.
            expected: see `check`.
        """
        back = asyncio.create_task(self._checkpoints_going_back())
        try:
            async with cluster_load.under_load(self.app, topics, backlog_s=backlog_s) as load:
                yield load
            await self._all_handled(load)
        finally:
            back.cancel()
            went_back = (await asyncio.gather(back, return_exceptions=True))[0]
        assert isinstance(went_back, asyncio.CancelledError), went_back
        caps = {topic.name: topic.qps for topic in topics}
        self.check(quota or (lambda r: caps[r.topic]), **expected)
        self.note_measured(len(load.sent))

    def check(self, quota: Callable[[Receipt], float], *, clean: bool = False) -> None:
        """Fail with the broken promises among these: no repetition without a cause, the cap, one owner.

        Args:
            clean: there must be no repetition at all.
        """
        receipts = self.receipts()
        crashes = () if clean else [*self.crashes, *self._expiries()]
        checkpoint_s = float(str(self._settings["checkpoint_s"]))
        found = {
            "repeated": cluster_receipts.unexcused(receipts, crashes, checkpoint_s),
            "over the cap": cluster_receipts.over_cap(receipts, quota),
            "two owners": cluster_receipts.two_owners(receipts),
        }
        broken = {name: (len(cases), cases[:5]) for name, cases in found.items() if cases}
        assert not broken, f"{broken}\n{self.tails()}"

    def note_measured(self, messages: int) -> None:
        receipts = self.receipts()
        self._note("messages", messages)
        self._note("repeats", len(cluster_receipts.repeated(receipts)))
        self._note("pause_s", round(cluster_receipts.longest_pause_s(receipts), 1))

    def _expiries(self) -> list[Crash]:
        """Return the sessions that ended, on purpose or because the machine was too busy."""
        return [
            Crash(host.name, int(second) * cluster_receipts.SECOND_US)
            for host in self.hosts
            for second in EXPIRED.findall(host.logged)
        ]

    async def _all_handled(self, load: Load) -> None:
        try:
            await self.until(lambda: load.sent <= cluster_receipts.done(self.receipts()))
        except AssertionError as exc:
            lost = load.sent - cluster_receipts.done(self.receipts())
            raise AssertionError(
                f"{len(lost)} of {len(load.sent)} were not handled: {sorted(lost)[:5]}; {exc}"
            ) from exc

    async def _checkpoints_going_back(self) -> None:
        """Run until a checkpoint goes back, and fail then."""
        before: dict[str, int] = {}
        while True:
            saved = {q: c.watermark for q, c in (await self.app.checkpoints.load_all()).items()}
            lower = {q: (before[q], w) for q, w in saved.items() if w < before.get(q, 0)}
            assert not lower, f"checkpoints went back: {lower}"
            before = saved
            await asyncio.sleep(WATCH_S)


def now_us() -> int:
    return time.time_ns() // 1000


@contextlib.contextmanager
def place_on(
    zookeeper: servers.Ensemble | servers.ZooKeeperServer, redis_url: str, directory: Path, *, postgres_url: str = ""
) -> Iterator[Place]:
    """Yield a separate place on servers that others use as well; the database is a file unless PostgreSQL is given."""
    name = f"c{uuid.uuid4().hex[:8]}"
    store = f"{redis_url.rpartition('/')[0]}/{REDIS_DATABASE}"
    database = f"{postgres_url.rpartition('/')[0]}/{name}" if postgres_url else f"sqlite:///{directory}/catalog.db"
    if postgres_url:
        engine = sa.create_engine(postgres_url.replace("://", "+psycopg://", 1), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sa.text(f"CREATE DATABASE {name}"))
        engine.dispose()
    with _empty(store):
        yield Place(store, database, f"{zookeeper.url}/{name}")
