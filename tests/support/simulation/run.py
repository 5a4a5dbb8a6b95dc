"""One seed, from schedule to verdict."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import types
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

from emq.runtime.pace import GRID_S
from support.simulation import brood, endless, families, faults, promises, trial
from support.simulation.breaking import is_unforeseen
from support.simulation.cluster import Cluster
from support.simulation.evidence import Evidence
from support.simulation.keepers import LEFT_OUT, MEMORY, Keep
from support.simulation.lockstep import in_lockstep
from support.simulation.member import ReferenceDatabase
from support.simulation.process import SimulatedLoop
from support.simulation.schedule import END_S, Schedule, schedule
from support.simulation.violation import Violation

LONGEST_S = 600.0

FINE_GRID_S = 0.001

STATISTICS_S = 5.0
"""Seconds between two snapshots of a host; more snapshots would only cost time."""


class Outcome(NamedTuple):
    """Attributes:
    happened: what kinds of events happened, and what came of them: redeliveries, moves, refusals, dead letters.
    store: its name.
    """

    schedule: Schedule
    violations: list[Violation]
    happened: Counter[str]
    evidence: Evidence
    store: str


def simulate(seed: int, keep: Keep = MEMORY) -> Outcome:
    """Run the schedule of a seed, and judge the run."""
    return carry_out(schedule(seed), keep)


def carry_out(plan: Schedule, keep: Keep = MEMORY) -> Outcome:
    """Run a schedule without what cannot happen to the store, and judge it. One that never ends is a finding, too."""
    plan = plan._replace(events=tuple(event for event in plan.events if event.what not in LEFT_OUT[keep.store]))
    evidence, runner = Evidence(), asyncio.Runner(loop_factory=SimulatedLoop)
    with _determined(plan.seed), contextlib.ExitStack() as end:
        loop = runner.get_loop()
        assert isinstance(loop, SimulatedLoop)
        end.callback(runner.close)
        try:
            with endless.bounded(loop, endless.CPU_S, endless.LOOK_S):
                return runner.run(_simulate(plan, keep, evidence))
        except endless.Endless as found:
            text = str(found)
        except TimeoutError:  # processes that are stopped then would not even end by cancellation
            text = f"no end after {LONGEST_S:g} s of its own time"
        end.pop_all()
        evidence.closed = True
        endless.drop(loop)
        return Outcome(plan, [Violation("run", "", text)], Counter(evidence.happened), evidence, keep.store)


async def _simulate(plan: Schedule, keep: Keep, evidence: Evidence) -> Outcome:
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: evidence.complained(str(context)))
    db = await ReferenceDatabase.open("sqlite://")
    cluster = Cluster(plan, db, evidence, keep)
    with _complaints(evidence):
        async with asyncio.timeout(LONGEST_S):
            await cluster.open()
            await asyncio.gather(*(_at(cluster, event) for event in plan.events))
            await asyncio.sleep(max(0.0, END_S - evidence.now))
            evidence.note("", "--- everything is healed")
            cluster.heal()
            await asyncio.sleep(3.0)
            if cluster.timetable is not None:
                await cluster.timetable.settle()
            if not await cluster.quiet():
                left = await cluster.left()
                evidence.violated("L", left[0].partition(" ")[2].partition(":")[0] if left else "", f"left: {left}")
            else:
                await trial.run(cluster)
            await cluster.stop()
            dead = await cluster.dead()
        evidence.closed = True
    violations = promises.judge(evidence, cluster.rules(), dead)
    happened = _happened(evidence, dead)
    logging.disable(logging.CRITICAL)
    try:
        await cluster.bury()
        cluster.keeper.close()
        await db.close()
    finally:
        logging.disable(logging.NOTSET)
    return Outcome(plan, violations, happened, evidence, keep.store)


async def _at(cluster: Cluster, event: Any) -> None:
    await asyncio.sleep(max(0.0, event.at - cluster.evidence.now))
    await faults.happen(cluster, event)


def _happened(evidence: Evidence, dead: list[str]) -> Counter[str]:
    happened = Counter(evidence.happened)
    happened["refused"] = sum(evidence.refusals.values())
    happened["refused checkpoint"] = evidence.refusals["checkpoint"]
    happened["refused settle"] = sum(evidence.refusals[call] for call in ("lanes.add", "lanes.settle", "sorted.settle"))
    happened["dead"] = len(dead)
    happened["starts"] = len(evidence.starts)
    attempts = Counter((start.work.name, start.attempt) for start in evidence.starts)
    happened["redelivered"] = sum(n - 1 for n in attempts.values())
    epochs = {(acquired.group, acquired.epoch) for acquired in evidence.owned}
    happened["moves"] = len(epochs) - len({group for group, _ in epochs})
    return happened


@contextlib.contextmanager
def _complaints(evidence: Evidence) -> Iterator[None]:
    """Report each error in the log: it is a bug, whether the promises hold or not."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if record.exc_info:
                text += f" ({record.exc_info[1]!r})"
            if record.levelno >= logging.ERROR and not (record.exc_info and is_unforeseen(record.exc_info[1])):
                evidence.complained(text)
            else:
                evidence.note("", f"    log: {text}")

    handler, logger = Handler(), logging.getLogger("emq")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        logger.propagate = True


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    """Let hosts log, whatever the caller has turned off: a log line may start a timer, and so change a run."""
    before = logging.root.manager.disable
    logging.disable(logging.NOTSET)
    try:
        yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _determined(seed: int) -> Iterator[None]:
    """Make everything that is drawn or read from outside the same each time."""
    count = itertools.count(1)
    made = random.Random(f"{seed} everything else")

    def token(nbytes: int = 8) -> str:
        return f"{next(count):0{2 * nbytes}x}"

    virtual = types.SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time())
    fixed = types.SimpleNamespace(Random=lambda: random.Random(made.random()))
    with (
        _logging(),
        in_lockstep(),
        mock.patch("secrets.token_hex", token),
        mock.patch("secrets.token_urlsafe", token),
        mock.patch("emq.producer.router._now_s", virtual.monotonic),
        mock.patch("emq.host.assignments.time", virtual),
        mock.patch("emq.host.recorder.INTERVAL_S", STATISTICS_S),
        # Hosts of different processes do not rest until the same points of time.
        mock.patch("emq.runtime.pace.GRID_S", GRID_S if seed % 2 else FINE_GRID_S),
        mock.patch("emq.dispatch.settler.random", fixed),
        mock.patch("emq.host.sleeping.PASS_S", families.PASS_S),
        mock.patch("emq.topics.rules.MIN_IDLE_S", brood.IDLE_S),
    ):
        yield
