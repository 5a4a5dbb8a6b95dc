"""The load generator: it carries out a plan with Spark's partitions, and leaves a ledger of the publishes.

    plan = plan_file.read("plan.toml")
    report = run(local_session("load"), LoadOptions(plan, settings, "ledger", seed=7))

Each partition publishes the messages of its own tenants, at their times, through EMQ's own producer. Plan and seed
decide everything: topics, ids, payloads, and the order of each tenant's messages. A task that Spark tries again
publishes nothing twice (`emq_spark.load.task`). A load that was cut short and is started again under the same run id
publishes nothing twice either.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from emq.runtime import errors
from emq.runtime.settings import Settings
from emq_spark.load import ledger, replay, report, topics
from emq_spark.load import state as load_state
from emq_spark.load.ledger import Run
from emq_spark.load.plan import MAX_SEED, Plan
from emq_spark.load.report import Report
from emq_spark.load.synthetic import STEP_S
from emq_spark.load.task import Done, Job
from emq_spark.load.task import run as run_task
from emq_spark.source.connection import connected_app
from emq_spark.source.options import check_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_S = 0.25
"""Seconds between two looks at the progress."""

SPECULATION = "spark.speculation"

_RAISED = re.compile(r"^  .*\n([A-Za-z_][\w.]*(?:: .*)?)$", re.MULTILINE)
"""The raised error in a traceback: the line after the indented ones."""


@dataclass(frozen=True)
class LoadOptions:
    """The options of a load.

    Attributes:
        plan: the plan, see `emq_spark.load.plan`.
        settings: settings of store and database, which every executor must reach.
        directory: directory of the ledgers, which every executor must see.
        seed: seed of the run; None for the plan's seed, or a random one if the plan has none.
        run: id of the run; None for the plan's name and the seed. A run that was cut short is continued.
        duration_s: seconds of the load; None for the plan's duration.
        partitions: number of tasks that publish at once; None for as many as Spark has cores.
        paced: publish at the plan's times; if False, as fast as possible.
        create: create topics that are missing.
    """

    plan: Plan
    settings: Settings
    directory: Path | str
    seed: int | None = None
    run: str | None = None
    duration_s: float | None = None
    partitions: int | None = None
    paced: bool = True
    create: bool = True


class Progress(NamedTuple):
    """The progress of a load.

    Attributes:
        rows: messages that have an outcome so far.
        failed: messages among `rows` that were refused or have an unknown outcome.
        late_s: seconds by which the slowest partition is late.
        total: messages of the plan.
    """

    rows: int
    failed: int
    late_s: float
    total: int


def run(
    spark: SparkSession, options: LoadOptions, on_progress: Callable[[Progress], object] = lambda _: None
) -> Report:
    """Carry out a load; return when every message is published. Ctrl-C ends the load in order, a second one at once.

    Raises:
        InvalidSettings: an option does not fit; the text names the option and a value that would fit.
        InvalidTopic, UnknownTopic: see `emq_spark.load.topics.prepare`.
        EMQError: a task failed too often. Call again with the same run id to continue where the load ended.
    """
    job = _job(spark, options)
    place = ledger.directory_of(job.directory, job.run)
    intent = _begin(job, place)
    # On a thread of its own, because in a notebook this thread runs an event loop already.
    with connected_app(job.settings, create=True) as (connection, app):
        connection.run(topics.prepare(app, topics.needed(job.plan, job.survey), create=options.create))
    summary = Run(job.run, job.seed, intent.plan, intent.started_us)
    ledger.write_run(job.directory, summary)
    total = sum(job.source(partition).rows for partition in range(job.partitions))
    try:
        done = _publish(spark, job, place, lambda: on_progress(_progress(job, place, total)))
    finally:
        ended = msgspec.structs.replace(summary, ended_us=time.time_ns() // 1000)
        ledger.write_run(job.directory, ended)
    complete = msgspec.structs.replace(ended, complete=True, parts=tuple(part.part for part in done))
    ledger.write_run(job.directory, complete)
    on_progress(_progress(job, place, total))
    return report.of(complete, str(place), done, _planned_s(job))


def check(options: LoadOptions, cores: int, *, local: bool = True) -> Plan:
    """Check the options that need no Spark, so that a mistake is reported before Java starts.

    Args:
        cores: tasks that Spark runs at once.
        local: Spark runs on this machine alone.

    Returns:
        The plan of the load, with the duration of the options.

    Raises:
        InvalidSettings: an option does not fit; the text names the option and a value that would fit.
    """
    plan = options.plan
    if options.duration_s is not None:
        if not 0 < options.duration_s < 1e9:
            raise errors.InvalidSettings(f"duration {options.duration_s} must be seconds above 0")
        plan = msgspec.structs.replace(plan, duration_s=options.duration_s)
    check_place(options.settings)
    partitions = cores if options.partitions is None else options.partitions
    if partitions < 1:
        raise errors.InvalidSettings(f"partitions {partitions} must be 1 or more")
    if local and options.paced and partitions > cores:
        raise errors.InvalidSettings(
            f"partitions {partitions} must run at once, and there are {cores} cores; give as many, or load unpaced"
        )
    if options.seed is not None and not 0 <= options.seed <= MAX_SEED:
        raise errors.InvalidSettings(f"seed {options.seed} must be from 0 to {MAX_SEED}")
    if options.run is not None:
        ledger.directory_of(options.directory, options.run)
    return plan


def _job(spark: SparkSession, options: LoadOptions) -> Job:
    """Check the options and make the job that they describe."""
    cores = spark.sparkContext.defaultParallelism
    plan = check(options, cores, local=str(spark.sparkContext.master).startswith("local"))
    if spark.conf.get(SPECULATION, "false") == "true":
        raise errors.InvalidSettings(f"{SPECULATION} is on, which runs tasks twice at once; turn it off for a load")
    partitions = cores if options.partitions is None else options.partitions
    seed = options.seed if options.seed is not None else plan.seed
    if seed is None:
        seed = secrets.randbelow(1 << 31)
    if not 0 <= seed <= MAX_SEED:
        raise errors.InvalidSettings(f"seed {seed} must be from 0 to {MAX_SEED}")
    run_id = options.run or f"{plan.name or 'load'}-{seed}"
    survey = replay.survey(plan.replay, plan.duration_s) if plan.replay else replay.Survey()
    directory = str(Path(options.directory).absolute())
    return Job(plan, options.settings, directory, run_id, seed, partitions, options.paced, survey)


def _begin(job: Job, place: Path) -> load_state.Intent:
    """Write the run's intent down; if the run was cut short before, check that its intent was the same."""
    text = msgspec.json.encode(msgspec.structs.replace(job.plan, seed=job.seed)).decode()
    file, now_us = job.survey.checksum, time.time_ns() // 1000
    intent = load_state.Intent(text, job.seed, job.partitions, job.paced, file, now_us)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise errors.InvalidSettings(
            f"ledger {job.directory!r} cannot be written to ({exc.strerror}); name a directory that can"
        ) from exc
    there = load_state.intent_of(place)
    if there is None:
        if any(place.iterdir()):
            raise errors.InvalidSettings(f"{str(place)!r} holds something else; choose another run id or ledger")
        load_state.save_intent(place, intent)
        return intent
    if _is_complete(place):
        raise errors.InvalidSettings(
            f"run {job.run!r} is in this ledger already, and complete; choose another seed, run id or ledger"
        )
    if msgspec.structs.replace(intent, started_us=there.started_us) != there:
        raise errors.InvalidSettings(
            f"run {job.run!r} was begun with another plan or file, with {there.partitions} partitions and seed "
            f"{there.seed}; go on with the same, or choose another run id"
        )
    load_state.clear_stop(place)
    return there


def _is_complete(place: Path) -> bool:
    try:
        return msgspec.json.decode((place / ledger.SUMMARY).read_bytes(), type=Run).complete
    except FileNotFoundError:
        return False
    except msgspec.DecodeError as exc:
        raise errors.InvalidSettings(f"{place / ledger.SUMMARY} is damaged ({exc}); choose another run id") from exc


def _planned_s(job: Job) -> float | None:
    if not job.paced:
        return None
    # A file may end before the plan's duration ends.
    return job.plan.duration_s if job.plan.replay is None else max(job.survey.span_s, STEP_S)


def _progress(job: Job, place: Path, total: int) -> Progress:
    states = load_state.states(place, job.partitions)
    late_s = max((state.late_s for state in states if not state.ended), default=0.0)
    return Progress(sum(state.rows for state in states), sum(state.failed for state in states), late_s, total)


# ------------------------------------------------------------------------------------------------------------- in Spark


def _publish(spark: SparkSession, job: Job, place: Path, tell: Callable[[], object]) -> list[Done]:
    """Run all partitions as one job of Spark."""
    group = f"emq load {job.run} {secrets.token_hex(4)}"

    def collect() -> list[Any]:
        spark.sparkContext.setJobGroup(group, f"emq load {job.run}", interruptOnCancel=True)
        numbers = spark.range(0, job.partitions, 1, numPartitions=job.partitions)
        return numbers.mapInArrow(_tasks(job), "done string").collect()

    with ThreadPoolExecutor(1, "emq-load") as pool, _on_interrupt(spark, place, group):
        answer = pool.submit(collect)
        while not answer.done():
            # A failed look at the progress must not fail the load.
            with contextlib.suppress(errors.EMQError):
                tell()
            with contextlib.suppress(TimeoutError):
                answer.exception(POLL_S)
        try:
            rows = answer.result()
        except Exception as exc:
            raise errors.EMQError(_reason(exc, job.run)) from exc
    return sorted((msgspec.json.decode(row[0], type=Done) for row in rows), key=lambda done: done.part.partition)


def _tasks(job: Job) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def publish(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa  # type: ignore[import-untyped]

        partitions = [number for batch in batches for number in batch.column(0).to_pylist()]
        done = [msgspec.json.encode(run_task(job, partition)).decode() for partition in partitions]
        yield pa.RecordBatch.from_pydict({"done": pa.array(done, pa.string())})

    return publish


@contextlib.contextmanager
def _on_interrupt(spark: SparkSession, place: Path, group: str) -> Iterator[None]:
    """While this lasts, Ctrl-C asks the tasks to end, and a second one cancels them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupted(_number: int, _frame: object) -> None:
        if load_state.is_stopping(place):
            spark.sparkContext.cancelJobGroup(group)
        load_state.ask_to_stop(place)

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _reason(exc: Exception, run_id: str) -> str:
    """Return in one line the reason for a failed job of Spark: the last line of a worker's traceback, if any."""
    text = str(exc).strip()
    raised = _RAISED.findall(text)
    reason = raised[-1] if raised else text.partition("\n")[0] or type(exc).__name__
    text = f"the load failed: {reason.removeprefix('emq.runtime.errors.')}"
    return text if text.endswith(load_state.REMEDY) else f"{text}; repeat it with the run id {run_id!r} to go on"
