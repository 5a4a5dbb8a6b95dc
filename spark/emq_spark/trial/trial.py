"""A trial: a load on a cluster of its own, one host killed, another host that joins, and an audit at the end.

    with session.borrowed("emq trial", 2, "1g") as spark:
        found = run(spark, TrialOptions(plan_file.read("plan.toml"), Path("here")))

The trial starts Valkey, ZooKeeper and, if installed, PostgreSQL on the loopback interface. It also starts hosts as
processes, which each keep a trail. All of them end with the trial; trails, ledger and logs stay in its directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.parquet as pq  # type: ignore[import-untyped]

import emq_servers as servers
from emq import App
from emq.allocation.tree.protocol import Tree
from emq.runtime import errors, plurals
from emq.runtime.settings import Settings
from emq.trail import events
from emq.trail.sink import NullTrail
from emq_spark.audit import offset_audit
from emq_spark.audit import store as audit_store
from emq_spark.audit.options import AuditOptions
from emq_spark.audit.result import Audit
from emq_spark.load import generator
from emq_spark.load.generator import LoadOptions, Progress
from emq_spark.load.plan import Plan
from emq_spark.load.report import Report
from emq_spark.trial.hosts import TrialHost, TrialHosts, hosts_of
from emq_trace import cluster_view
from emq_trace.cluster_view import Holding

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_S = 120.0
"""Seconds to wait for each expected event, such as the end of the backlog after the load."""

LOOK_S = 0.1

KILL_AT = 0.4
"""The share of the load's messages after which a host is killed."""

SESSION_TIMEOUT_S = 4.0


@dataclass(frozen=True)
class TrialOptions:
    """The options of a trial.

    Attributes:
        plan: plan of the load.
        directory: an empty or new directory for trails, ledger and logs.
        duration_s: seconds of the load; None for the plan's duration.
        seed: seed of the load; None for the plan's seed, or a random one.
        hosts: number of hosts at the beginning, 2 or more; the trial kills one of them.
    """

    plan: Plan
    directory: Path
    duration_s: float | None = None
    seed: int | None = None
    hosts: int = 2

    def __post_init__(self) -> None:
        if self.hosts < 2:
            raise errors.InvalidSettings(f"hosts={self.hosts}: one is killed, so a trial needs at least 2")


class Crash(NamedTuple):
    """A host that was killed.

    Attributes:
        killed, joined: names of the killed host and of the host that joined.
        moved: number of groups that the killed host had.
        back_s: seconds from the kill until every group had an owner again.
    """

    killed: str
    joined: str
    moved: int
    back_s: float


@dataclass(frozen=True)
class Trial:
    """The result of a trial.

    Attributes:
        database: "postgresql", or "sqlite" if PostgreSQL is not installed.
        crash: the crash in the middle of the load.
        load, audit: the report of the load, and the audit.
    """

    database: str
    crash: Crash
    load: Report
    audit: Audit

    @property
    def exit_status(self) -> int:
        """0 if every promise was kept through the kill, 1 if one was broken, 3 if the proof is void."""
        return self.audit.exit_status or (0 if self.load.ok else 1)


def run(spark: SparkSession, options: TrialOptions, say: Callable[[str], object] = lambda _: None) -> Trial:
    """Run a trial; this takes the load's duration plus about half a minute.

    Args:
        say: called with one line for each event.

    Raises:
        InvalidSettings: the directory is not empty, or cannot be written.
        ServerMissing: Valkey (or Redis) or Java is not installed; the text has the remedy.
        EMQError: a host ended by itself, or an expected event did not come; the text names the event.
    """
    claim(options.directory)
    with contextlib.ExitStack() as stack:
        say("starting Valkey, ZooKeeper and a database")
        settings = _place(stack, options.directory)
        hosts = stack.enter_context(hosts_of(settings, options.directory))
        return asyncio.run(_try(spark, options, settings, hosts, say))


async def _try(
    spark: SparkSession,
    options: TrialOptions,
    settings: Settings,
    hosts: TrialHosts,
    say: Callable[[str], object],
) -> Trial:
    ledger = options.directory / "ledger"
    load = LoadOptions(options.plan, settings, ledger, seed=options.seed, duration_s=options.duration_s)
    for _ in range(options.hosts):
        hosts.start()
    async with contextlib.AsyncExitStack() as stack:
        app = await stack.enter_async_context(App(options=settings, trail=NullTrail()))
        tree = await stack.enter_async_context(cluster_view.opened(app.coordination(), settings.cluster, PATIENCE_S))
        due, tell = _reached(KILL_AT)
        publishing = asyncio.create_task(asyncio.to_thread(generator.run, spark, load, tell))
        stack.callback(spark.sparkContext.cancelAllJobs)
        say("publishing")
        crash = await _crash(_Cluster(tree, settings, hosts), hosts, publishing, due, say)
        report = await publishing
        merged = f", of which {report.merged:,} went into waiting ones" if report.merged else ""
        published = plurals.count(report.published + report.merged, "message")
        say(f"published {published}{merged}; waiting until all are worked off")
        await _until_finished(app, hosts)
        await hosts.stop()
        topics, store = await audit_store.look(app)
    say("auditing")
    trails, crashed = [options.directory / "trail"], frozenset({crash.killed})
    asked = AuditOptions(trails, [ledger], topics=topics, store=store, crashed=crashed)
    audit = await asyncio.to_thread(offset_audit.audit, spark, asked)
    return Trial(settings.database_url.partition(":")[0], crash, report, audit)


async def _crash(
    cluster: _Cluster,
    hosts: TrialHosts,
    publishing: asyncio.Task[Report],
    due: asyncio.Future[None],
    say: Callable[[str], object],
) -> Crash:
    """Kill the first host when its time comes, let another join, and return when the new host has its share.

    The time is `KILL_AT`, or later on a slow machine: the death of a host that has begun no message would prove little.
    """
    await cluster.until_shared(publishing)
    either: set[asyncio.Future[Any]] = {publishing, due}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    first = hosts.running[0]
    await cluster.until_begun(first)
    moved = len(await cluster.held_by(first))
    if not moved:
        raise errors.EMQError(f"{first.name} had no groups when it was to be killed; give the plan more topics")
    hosts.kill(first)
    killed_s = time.monotonic()
    joined = hosts.start()
    say(f"{first.name} was killed with its {plurals.count(moved, 'group')}; {joined.name} joins")
    await cluster.until_owned(without=first)
    back_s = time.monotonic() - killed_s
    say(f"every group has an owner again after {back_s:.1f} s")
    await cluster.until_shared(publishing)
    return Crash(first.name, joined.name, moved, back_s)


def _reached(share: float) -> tuple[asyncio.Future[None], Callable[[Progress], None]]:
    """Return a future and a progress callback for another thread, which ends the future at this share of a load."""
    loop = asyncio.get_running_loop()
    reached: asyncio.Future[None] = loop.create_future()

    def tell(progress: Progress) -> None:
        if progress.rows >= share * progress.total:
            loop.call_soon_threadsafe(lambda: None if reached.done() else reached.set_result(None))

    return reached, tell


class _Cluster:
    """The hosts as the coordination tree shows them."""

    def __init__(self, tree: Tree, settings: Settings, hosts: TrialHosts) -> None:
        self._tree = tree
        self._environment = settings.environment
        self._trail = Path(settings.trail)
        self._hosts = hosts

    async def held_by(self, host: TrialHost) -> set[str]:
        """Return the groups that the host has."""
        seen = await self._look()
        return {group for group in seen.of(host.name) if seen.holding(group) is Holding.HELD}

    async def until_shared(self, publishing: asyncio.Task[Report]) -> None:
        """Return when every running host has some groups, and each group is where it belongs."""

        def shared(seen: cluster_view.View) -> bool:
            names = {host.name for host in self._hosts.running}
            return names <= {host for host in seen.hosts if seen.of(host)} and _all_held(seen)

        await self._until(shared, "a share of the groups for every host", publishing)

    async def until_owned(self, without: TrialHost) -> None:
        """Return when each group has an owner, and the host that was killed has none."""
        await self._until(lambda seen: not seen.of(without.name) and _all_held(seen), f"new owners of {without.name}'s")

    async def until_begun(self, host: TrialHost) -> None:
        """Return when the host has begun messages, as its trail shows (up to a second later)."""
        deadline = time.monotonic() + PATIENCE_S
        while not await asyncio.to_thread(_begun, self._trail, host.name):
            self._hosts.check()
            if time.monotonic() > deadline:
                raise errors.EMQError(
                    f"{host.name} began no message within {PATIENCE_S:g} s; give the plan more topics"
                )
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> cluster_view.View:
        return await cluster_view.read(self._tree, self._environment)

    async def _until(
        self, holds: Callable[[cluster_view.View], bool], what: str, publishing: asyncio.Task[Report] | None = None
    ) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds(await self._look()):
            self._hosts.check()
            if publishing is not None and publishing.done():
                publishing.result()  # if the load failed, raise its error as the reason
            if time.monotonic() > deadline:
                raise errors.EMQError(f"did not see {what} within {PATIENCE_S:g} s")
            await asyncio.sleep(LOOK_S)


def _begun(trail: Path, host: str) -> bool:
    """Return whether the trail of `host` has the start of a message."""
    segments = trail.glob(f"{host}-*.parquet")
    return any(events.STARTED in pq.read_table(path, columns=["event"])["event"].to_pylist() for path in segments)


def _all_held(seen: cluster_view.View) -> bool:
    return bool(seen.groups) and all(seen.holding(group) is Holding.HELD for group in seen.groups)


async def _until_finished(app: App, hosts: TrialHosts) -> None:
    """Return when no message waits and every message is checkpointed."""
    deadline = time.monotonic() + PATIENCE_S
    topics = await app.catalog.list()
    while True:
        hosts.check()
        left = sum(lag.unfinished for lag in await app.admin.lag(topics))
        left += sum(lag.ready + lag.delayed + lag.claimed for lag in await app.admin.slot_lag(topics))
        if not left:
            return
        if time.monotonic() > deadline:
            raise errors.EMQError(
                f"{plurals.count(left, 'message')} {plurals.are(left)} left "
                f"{PATIENCE_S:g} s after the load; see the hosts' logs"
            )
        await asyncio.sleep(LOOK_S)


def _place(stack: contextlib.ExitStack, directory: Path) -> Settings:
    """Start servers that live as long as `stack`; return the settings to reach them."""
    store = stack.enter_context(servers.start_redis())
    zookeeper = stack.enter_context(servers.start_zookeeper())
    try:
        database = stack.enter_context(servers.start_postgres()).url
    except servers.ServerMissing:
        database = f"sqlite:///{directory / 'catalog.db'}"
    return Settings(
        store=store.url,
        database=database,
        cluster=f"{zookeeper.url}/trial",
        trail=str(directory / "trail"),
        session_timeout_s=SESSION_TIMEOUT_S,
    )


def claim(directory: Path) -> None:
    """Make the directory of a trial. Raises `InvalidSettings` if it is not empty, or cannot be written."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        used = any(directory.iterdir())
    except OSError as exc:
        raise errors.InvalidSettings(f"directory {str(directory)!r} cannot be used: {exc.strerror}") from exc
    if used:
        raise errors.InvalidSettings(f"directory {str(directory)!r} is not empty; name a new one")
