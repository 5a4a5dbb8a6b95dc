"""Pauses, caps, repeats and losses of groups that move between host processes, and of their neighbours.

Hosts of a real ZooKeeper ensemble consume groups that all have a backlog, at full quota. In each round a host joins,
one leaves cleanly, one is killed, and one joins in its place. In the first round and every other one, the oldest host
leaves, and the next oldest, which then leads the cluster, is killed. In the other rounds the newest host is chosen.
Before each further change the benchmark waits until all groups are consumed and none has moved for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import emq
import emq_servers as servers
from bench.cluster.crew import Crew, HostProcess, InvalidRun
from bench.cluster.machine import busy_s, cores
from bench.cluster.pauses import Phase
from bench.cluster.starts import Starts
from bench.cluster.verdict import figures_of
from bench.support.backlog import fill
from bench.support.figures import Benchmark, Figure
from bench.support.stage import Stage
from emq.runtime import plurals
from emq.topics.model import Topic, TopicOptions

GROUPS_OF_TOPIC = 10
CALM_S = 6.5
"""Seconds without a move before the next change; longer than `bench.cluster.pauses.USUAL_S`."""
FRESH_S = 2.5
"""Seconds within which a group with a backlog must have started a message to count as consumed."""
UNDISTURBED_S = 10.0
PATIENCE_S = 60.0
DRAIN_PATIENCE_S = 30.0
POLL_S = 0.25


class Options(NamedTuple):
    """The benchmark's options; see `BENCHMARK`."""

    groups: int
    qps: float
    pacing: Literal["window", "smooth"]
    hosts: int
    rounds: int
    ensemble: int
    session_timeout_s: float
    phase_s: float

    @property
    def per_group(self) -> int:
        """Messages of a group that last until the end of the last phase."""
        rounds_s = self.rounds * (4 * self.phase_s + self.session_timeout_s)
        return math.ceil(self.qps * (UNDISTURBED_S + 2 * self.phase_s + rounds_s))

    def topics(self) -> list[Topic]:
        if self.groups < GROUPS_OF_TOPIC or self.groups % GROUPS_OF_TOPIC:
            raise InvalidRun(
                f"{plurals.count(self.groups, 'group')} cannot be topics of {GROUPS_OF_TOPIC} each; give a multiple "
                "of it"
            )
        if self.pacing not in ("window", "smooth"):
            raise InvalidRun(f"pacing {self.pacing!r} is not known; choose window or smooth")
        options = TopicOptions(pacing=self.pacing)
        return [
            Topic(f"handoff-{i}", self.qps * GROUPS_OF_TOPIC, self.qps, ("only",), options=options)
            for i in range(self.groups // GROUPS_OF_TOPIC)
        ]


class Scenario:
    """Changes the hosts step by step, and waits after each change until all is calm again.

    Attributes:
        phases: the changes so far, each with its begin and end.
    """

    def __init__(self, crew: Crew, starts: Starts, directory: Path, settings: dict[str, Any]) -> None:
        self._crew = crew
        self._starts = starts
        self._directory = directory
        self._settings = settings
        self._random = random.Random(1)
        self.phases: list[Phase] = []

    def start(self) -> HostProcess:
        path = self._directory / f"host-{len(self._crew.hosts)}.starts"
        self._starts.add_file(path)
        return self._crew.start({**self._settings, "starts": str(path)})

    async def begin(self, hosts: int) -> None:
        begun = [self.start() for _ in range(hosts)]
        await self._calm("start", PATIENCE_S, lambda: all(self._owns(host) for host in begun))

    async def undisturbed(self) -> None:
        """Wait without any change, to see the groups' seconds without moves."""
        begin_us = _now_us()
        await asyncio.sleep(UNDISTURBED_S + self._random.random())
        self.phases.append(Phase("calm", begin_us, _now_us()))

    async def join(self) -> None:
        begin_us = _now_us()
        host = self.start()
        await self._ended("join", begin_us, PATIENCE_S, lambda: self._owns(host))

    async def leave(self, host: HostProcess) -> None:
        begin_us = _now_us()
        await host.stop()
        await self._ended("leave", begin_us, PATIENCE_S)

    async def kill(self, host: HostProcess) -> None:
        begin_us = _now_us()
        host.kill()
        await self._ended("kill", begin_us, PATIENCE_S + self._settings["session_timeout_s"])

    async def _ended(
        self, kind: str, begin_us: int, patience_s: float, holds: Callable[[], bool] = lambda: True
    ) -> None:
        await self._calm(kind, patience_s, holds)
        # Calm counts from the last move's first start, at the begin of a second. The random part lets the next change
        # come at any part of a second.
        await asyncio.sleep(self._random.random())
        self.phases.append(Phase(kind, begin_us, _now_us()))

    async def _calm(self, kind: str, patience_s: float, holds: Callable[[], bool]) -> None:
        """Return when running hosts consume all groups, no group has moved lately, and `holds` returns True."""
        deadline = time.monotonic() + patience_s
        starts = self._starts
        while True:
            starts.read()
            now_us = _now_us()
            running = {number for number, host in enumerate(self._crew.hosts) if host.running}
            stale = [
                group
                for group, newest in enumerate(starts.newest)
                if newest.us < now_us - FRESH_S * 1e6 or newest.host not in running
            ]
            if not stale and holds() and max(starts.moved_us) < now_us - CALM_S * 1e6:
                return
            if any(starts.count(group) >= starts.per_group for group in stale):
                raise InvalidRun(f"the backlog ran out in phase {kind!r}; give a larger --phase")
            for host in self._crew.hosts:
                if not host.killed and not host.stopped:
                    host.check()
            if time.monotonic() > deadline:
                calm_s = (now_us - max(starts.moved_us)) / 1e6
                raise InvalidRun(
                    f"{patience_s:g} s after {kind!r} {plurals.count(len(stale), 'group')} {plurals.are(len(stale))} "
                    "not consumed, the last one moved "
                    f"{calm_s:.1f} s ago, and each new host {'has' if holds() else 'does not yet have'} groups; "
                    "leave the machine alone, or see the hosts' logs (--keep DIRECTORY)"
                )
            await asyncio.sleep(POLL_S)

    def _owns(self, host: HostProcess) -> bool:
        return self._crew.hosts.index(host) in self._starts.owners()


async def play(scenario: Scenario, crew: Crew, options: Options, say: Callable[[str], None]) -> None:
    """Play the rounds."""
    say(f"starting {plurals.count(options.hosts, 'host')}")
    await scenario.begin(options.hosts)
    say(f"{UNDISTURBED_S:g} s without any move")
    await scenario.undisturbed()
    for i in range(options.rounds):
        chosen = -(i % 2)
        say(f"round {i + 1} of {options.rounds}: a host joins")
        await scenario.join()
        say("one leaves")
        await scenario.leave(crew.running[chosen])
        say("one is killed")
        await scenario.kill(crew.running[chosen])
        say("one joins in its place")
        await scenario.join()


async def drained(app: emq.App, topics: list[Topic]) -> None:
    """Return when every message is finished, or when no more messages get finished."""
    left, since = -1, time.monotonic()
    while left and time.monotonic() - since < DRAIN_PATIENCE_S:
        now = sum(lag.unfinished for lag in await app.admin.lag(topics))
        if now != left:
            left, since = now, time.monotonic()
        await asyncio.sleep(1.0)


def _start_ensemble(stack: contextlib.ExitStack, size: int) -> str:
    """Start ZooKeeper and return its URL; it ends with the stack."""
    if size == 1:
        return stack.enter_context(servers.start_zookeeper()).url
    return stack.enter_context(servers.start_ensemble(size)).url


def _now_us() -> int:
    return time.time_ns() // 1000


async def run(stage: Stage, *, keep: str, **values: Any) -> dict[str, Any]:
    options = Options(session_timeout_s=values.pop("session_timeout"), phase_s=values.pop("phase"), **values)
    asked = options.topics()
    with contextlib.ExitStack() as stack:
        directory = Path(keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="emq-handoff-")))
        os.makedirs(directory, exist_ok=True)
        database = stack.enter_context(servers.start_postgres())
        cluster = _start_ensemble(stack, options.ensemble)
        crew = stack.enter_context(Crew("bench.cluster.recording_host", directory))
        settings: dict[str, Any] = {"store": stage.url, "database": database.url, "cluster": cluster}
        settings |= {"session_timeout_s": options.session_timeout_s}
        starts = Starts(options.groups, options.per_group)
        scenario = Scenario(crew, starts, directory, settings)
        async with emq.App(stage.url, database=database.url) as app:
            topics = await app.admin.create(asked)
            stage.say(
                f"filling {plurals.count(options.groups, 'group')} with {plurals.count(options.per_group, 'message')} "
                "each"
            )
            await stage.elsewhere(fill, stage.url, topics, options.per_group, numbered=True)
            busy, begun = busy_s(), time.monotonic()
            await play(scenario, crew, options, stage.say)
            busy_percent = (busy_s() - busy) / (time.monotonic() - begun) / cores() * 100
            stage.say("draining")
            await drained(app, topics)
        await crew.stop()
        starts.read()
    stage.say("counting")
    killed = {number for number, host in enumerate(crew.hosts) if host.killed}
    found = figures_of(starts, scenario.phases, killed, topics, options.session_timeout_s)
    return {**found, "machine_busy_percent": busy_percent}


BENCHMARK = Benchmark(
    run,
    options=(
        ("groups", 2_000, "groups, all with a backlog; a multiple of 10"),
        ("qps", 5.0, "quota of each group"),
        ("pacing", "window", "window or smooth; with smooth the pause is the time of the handoff itself"),
        ("hosts", 4, "host processes at the beginning of each round"),
        ("rounds", 3, "rounds, in each of which a host joins, one leaves, one is killed and one joins"),
        ("ensemble", 3, "ZooKeeper servers"),
        ("session-timeout", 6.0, "seconds after which the session of a silent host ends"),
        ("phase", 15.0, "seconds of backlog for each change of hosts; a busy machine needs more"),
        ("keep", "", "directory for the hosts' logs and records of starts; empty: they are not kept"),
    ),
    figures=(
        Figure("clean_pause_p99_s", "<", 1.5),
        Figure("kill_pause_p99_beyond_timeout_s", "<", 2.0),
        Figure("unmoved_pause_s", "==", 0),
        Figure("cap_violations", "==", 0),
        Figure("clean_duplicates", "==", 0),
        Figure("lost", "==", 0),
    ),
    stores=("redis",),
)
