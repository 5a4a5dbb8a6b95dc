"""Messages a second that 1 and 2 host processes drain from one Redis server with unlimited quota, and their limit.

The hosts share the queues as members of one cluster, like the hosts of `emq host --processes`. Only the time counts in
which all hosts were at work.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import emq
from bench.cluster import series
from bench.cluster.crew import Crew, HostProcess, InvalidRun
from bench.cluster.machine import busy_s, cores
from bench.cluster.series import Sample
from bench.support.backlog import fill
from bench.support.figures import Benchmark
from bench.support.stage import Stage, unlimited_topics
from emq.runtime import plurals
from emq.topics.model import Topic

CREWS = {"one": 1, "two": 2}
PATIENCE_S = 120.0
LEAST_S = 1.0
FULL = 0.9
"""Share of a core, or of all cores, from which on the core or the machine counts as the limit."""


class Run(NamedTuple):
    """The rate and the used cores of one run.

    Attributes:
        started_per_s: messages a second.
        hosts: cores that each host used, on average over the run.
        server: cores that the server used.
        machine: cores that all programs of the machine used.
    """

    started_per_s: float
    hosts: tuple[float, ...]
    server: float
    machine: float


def limit(run: Run, cores: int) -> str:
    """Return the limit of a run in a sentence."""
    hosts, rest = sum(run.hosts), max(0.0, run.machine - sum(run.hosts) - run.server)
    shares = f"hosts {hosts:.2f}, server {run.server:.2f}, all else {rest:.2f} of {cores} cores"
    if run.machine >= FULL * cores:
        return f"The machine limits, all its cores are busy: {shares}."
    if run.server >= FULL:
        return f"The server limits, which uses one core and has no more to give: {shares}."
    if min(run.hosts) >= FULL:
        return f"The hosts limit, each of them uses one core and can use no more: {shares}."
    return f"No core limits, something is waited for: {shares}."


class Meter:
    """Samples the server and the machine; the hosts sample themselves."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.server: list[Sample] = []
        self.machine: list[Sample] = []

    def sample(self) -> None:
        self.server.append(series.sampled(0, self._stage.server_cpu_s()))
        self.machine.append(series.sampled(0, busy_s()))


async def measure(stage: Stage, members: int, total: int) -> Run:
    """Start the hosts on a backlog of `total` messages, and stop them when it is drained."""
    meter = Meter(stage)
    with tempfile.TemporaryDirectory(prefix="emq-scale-") as name:
        paths = [Path(name) / f"{member}.samples" for member in range(members)]
        with Crew("bench.cluster.draining_host", Path(name)) as crew:
            for member, path in enumerate(paths):
                options = {"store": stage.url, "database": stage.database, "samples": str(path)}
                crew.start({**options, "member": member})
            await _drained(paths, crew.hosts, total, meter)
            await crew.stop()
        return judged([series.read(path) for path in paths], meter.server, meter.machine)


async def _drained(paths: Sequence[Path], hosts: Sequence[HostProcess], total: int, meter: Meter) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while sum(samples[-1].started for path in paths if (samples := series.read(path))) < total:
        meter.sample()
        for host in hosts:
            host.check()
        if time.monotonic() > deadline:
            raise InvalidRun(
                f"{plurals.count(total, 'message')} {plurals.were(total)} not drained in {PATIENCE_S:g} s; give fewer "
                "--messages"
            )
        await asyncio.sleep(series.SAMPLE_S)
    meter.sample()


def judged(hosts: Sequence[Sequence[Sample]], server: Sequence[Sample], machine: Sequence[Sample]) -> Run:
    """Judge the samples of the time in which all hosts were at work.

    Raises:
        InvalidRun: all hosts were at work for too short a time; give more messages.
    """
    begin_s, end_s = series.common(hosts)
    if end_s - begin_s < LEAST_S:
        raise InvalidRun(
            f"all hosts were at work for {max(0.0, end_s - begin_s):.1f} s only; give more --messages, so that it is "
            f"{LEAST_S:g} s at least"
        )
    rates = [series.between(samples, begin_s, end_s) for samples in hosts]
    server_cores, machine_cores = (series.between(samples, begin_s, end_s)[1] for samples in (server, machine))
    return Run(sum(rate for rate, _ in rates), tuple(used for _, used in rates), server_cores, machine_cores)


def median(runs: Sequence[Run]) -> Run:
    """Return the run with the median rate; if two are in the middle, the slower one."""
    middle = statistics.median_low(run.started_per_s for run in runs)
    return next(run for run in runs if run.started_per_s == middle)


async def run(stage: Stage, *, queues: int, messages: int, rounds: int) -> dict[str, Any]:
    per_queue = max(1, messages // queues)
    runs: dict[str, list[Run]] = {name: [] for name in CREWS}
    async with stage.app() as app:
        topics = await app.admin.create(unlimited_topics(queues))
        for i in range(rounds):
            for name, members in CREWS.items():
                stage.say(f"round {i + 1} of {rounds}: {name} host{'s' if members > 1 else ''}")
                total = await stage.elsewhere(fill, stage.url, topics, per_queue)
                runs[name].append(await measure(stage, members, total))
                await _check(app, topics)
    values: dict[str, Any] = {}
    for name in CREWS:
        middle = median(runs[name])
        rates = [one.started_per_s for one in runs[name]]
        values |= {
            f"{name}_started_per_s": round(middle.started_per_s),
            f"{name}_spread_per_s": round(max(rates) - min(rates)),
            f"{name}_host_cores": sum(middle.hosts),
            f"{name}_server_cores": middle.server,
            f"{name}_machine_cores": middle.machine,
            f"{name}_limit": limit(middle, cores()),
        }
    values["two_over_one"] = values["two_started_per_s"] / values["one_started_per_s"]
    return {**values, "cores": cores(), "load_average": os.getloadavg()[0]}


async def _check(app: emq.App, topics: list[Topic]) -> None:
    unfinished = sum(lag.unfinished for lag in await app.admin.lag(topics))
    if unfinished:
        raise InvalidRun(
            f"{plurals.count(unfinished, 'message')} {plurals.were(unfinished)} not checkpointed at the hosts' stop; "
            "that is a bug, report it"
        )


BENCHMARK = Benchmark(
    run,
    options=(
        ("queues", 3_000, "physical queues"),
        ("messages", 3_000_000, "backlog in all, for each run"),
        ("rounds", 3, "runs with each number of hosts; the figures are those of the middle run"),
    ),
    stores=("redis",),
)
