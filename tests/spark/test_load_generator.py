"""Loads carried out by Spark: what is asked is published, once, also when a worker is killed or the load cut short."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from emq_data import Data

from emq.runtime import errors
from emq.runtime.settings import Settings
from emq_spark.cli import load_view

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow.parquet as pq

from emq_spark import session
from emq_spark.load import generator, ledger, ledger_reading, plan_file, task
from emq_spark.load import replay as load_replay
from emq_spark.load import report as load_report
from emq_spark.load import state as load_state
from emq_spark.load.generator import LoadOptions
from emq_spark.load.plan import Plan, Replay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAN = """
name = "spark"
duration_s = {duration}
[[tenants]]
name = "load-{{n}}"
count = 4
qps = {qps}
priorities = {{ high = 0.3, low = 0.7 }}
"""


def options(data: Data, tmp_path: Path, *, duration: float = 2, qps: float = 400.0, **more: Any) -> LoadOptions:
    plan = plan_file.parse(PLAN.format(duration=duration, qps=qps))
    return LoadOptions(plan, Settings(**data.options), tmp_path / "ledger", **{"seed": 7} | more)


def rows(place: Path) -> list[dict[str, Any]]:
    return [
        row for file in sorted(place.glob("*.parquet")) for row in pq.read_table(file, partitioning=None).to_pylist()
    ]


def stored(data: Data) -> Counter[str]:
    return Counter(m.uid for n in range(1, 5) for m in data.messages(f"load-{n}"))


def test_a_load_publishes_what_the_plan_asks_and_leaves_a_complete_ledger(
    spark: SparkSession, data: Data, tmp_path: Path
) -> None:
    told: list[generator.Progress] = []
    chosen = options(data, tmp_path, duration=1, qps=800.0, partitions=2)
    report = generator.run(spark, chosen, told.append)
    assert (report.asked, report.published, report.refused, report.unknown, report.left) == (800, 800, 0, 0, 0)
    assert report.ok
    assert report.asked_per_s == 800
    assert (report.run, report.partitions, report.topics) == ("spark-7", 2, 4)
    assert told[-1][:2] == (800, 0)
    place = tmp_path / "ledger" / "run=spark-7"
    published = {row["id"] for row in rows(place)}
    assert stored(data) == Counter(published)
    found = ledger_reading.find(tmp_path / "ledger")
    assert found.flaws == ()
    assert [part.partition for part in found.runs["spark-7"].parts] == [0, 1]
    assert "asked 800 messages, published 800" in str(load_view._first_line(report))
    with pytest.raises(errors.InvalidSettings, match="'spark-7' is in this ledger already, and complete"):
        generator.run(spark, chosen)


def test_a_worker_that_is_killed_is_replaced_and_nothing_is_published_twice(
    spark: SparkSession, data: Data, tmp_path: Path
) -> None:
    place = tmp_path / "ledger" / "run=spark-7"
    killed: list[int] = []

    def kill(_: generator.Progress) -> None:
        for state in load_state.states(place, 2):
            if not killed and state.partition == 1 and state.begun >= 5:
                os.kill(state.pid, signal.SIGKILL)
                killed.append(state.attempt)

    report = generator.run(spark, options(data, tmp_path, duration=2, qps=800.0, partitions=2), kill)
    assert killed == [0]
    assert (report.asked, report.left, report.refused) == (1600, 0, 0)
    assert report.published + report.unknown == 1600
    told = rows(place)
    assert len({row["seq"] for row in told}) == len(told) == 1600
    there = stored(data)
    assert set(there.values()) == {1}
    assert {row["id"] for row in told if row["outcome"] == ledger.PUBLISHED} == set(there)
    assert ledger_reading.find(tmp_path / "ledger").flaws == ()
    parts = ledger_reading.find(tmp_path / "ledger").runs["spark-7"].parts
    assert [part.attempt for part in parts] == [0, 1]


def test_a_load_that_is_asked_to_stop_ends_in_order(spark: SparkSession, data: Data, tmp_path: Path) -> None:
    place = tmp_path / "ledger" / "run=spark-7"

    def stop(progress: generator.Progress) -> None:
        if progress.rows > 100:
            load_state.ask_to_stop(place)

    started = time.monotonic()
    report = generator.run(spark, options(data, tmp_path, duration=3600, partitions=1), stop)
    assert time.monotonic() - started < 60
    assert report.stopped
    assert report.published == sum(stored(data).values()) > 100
    assert report.left == report.asked - report.published
    assert ledger_reading.find(tmp_path / "ledger").flaws == ()


def test_a_load_that_was_cut_short_is_gone_on_with(
    spark: SparkSession, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = options(data, tmp_path, partitions=2, paced=False)
    place = tmp_path / "ledger" / "run=spark-7"
    with monkeypatch.context() as patch:
        patch.setattr(generator, "_publish", lambda *_: (_ for _ in ()).throw(errors.EMQError("cut short")))
        with pytest.raises(errors.EMQError, match="cut short"):
            generator.run(spark, chosen)
    assert "not complete" in " ".join(ledger_reading.find(tmp_path / "ledger").flaws)
    other = options(data, tmp_path, partitions=1, paced=False)
    with pytest.raises(errors.InvalidSettings, match="with 2 partitions and seed 7"):
        generator.run(spark, other)
    assert generator.run(spark, chosen).published == 800
    assert ledger_reading.find(tmp_path / "ledger").flaws == ()
    assert len(rows(place)) == 800


@pytest.mark.parametrize("memory", ["2x", "100m"])
def test_memory_that_spark_cannot_start_with_is_named(memory: str) -> None:
    with pytest.raises(errors.EMQError, match=f"memory '{memory}' must be 512m or more"):
        session.local_session("emq-tests", memory=memory)


def test_a_ledger_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    job = task.Job(Plan(1.0), Settings(), str(tmp_path / "file"), "r", 1, 1)
    with pytest.raises(errors.InvalidSettings, match=r"/file' cannot be written to \(Not a directory\)"):
        generator._begin(job, ledger.directory_of(job.directory, job.run))


RAISED = """Job aborted due to stage failure: Lost task 1.0: org.apache.spark.api.python.PythonException: Traceback
  File "worker.py", line 9, in main
    process()
{raised}
and more of it

\tat org.apache.spark.api.python.BasePythonRunner.next(PythonRunner.scala:1)
Caused by: java.lang.Exception: else
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            RAISED.format(raised="emq.runtime.errors.UnknownTopic: no topic 't'"),
            "failed: UnknownTopic: no topic 't'; repeat",
        ),
        ("", "failed: RuntimeError; repeat"),
        (RAISED.format(raised="emq.runtime.errors.EMQError: who knows; load under another run id"), "another run id"),
    ],
)
def test_why_a_load_failed_is_told_in_a_line(text: str, said: str) -> None:
    reason = generator._reason(RuntimeError(text), "r")
    assert said in reason
    assert ("repeat it" in reason) is ("repeat" in said), "the remedy of an error is the only one"


def test_a_replay_goes_on_with_the_same_file_only(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    place = tmp_path / "run=r"

    def job() -> task.Job:
        replay = Replay(str(file), "t", "at")
        found = load_replay.survey(replay, None)
        return task.Job(Plan(replay=replay), Settings(), str(tmp_path), "r", 1, 1, survey=found)

    file.write_text('{"at": 1, "n": 1}\n')
    intent = generator._begin(job(), place)
    assert generator._begin(job(), place) == intent
    file.write_text('{"at": 1, "n": 2}\n')
    with pytest.raises(errors.InvalidSettings, match="another plan or file"):
        generator._begin(job(), place)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"partitions": 0}, "partitions 0 must be 1 or more"),
        ({"partitions": 50}, "partitions 50 must run at once"),
        ({"duration_s": 0.0}, "duration 0.0 must be seconds above 0"),
        ({"run": "a/b"}, "run id 'a/b'"),
        ({"seed": -1}, "seed -1 must be from 0"),
        ({"create": False}, "4 topics of the plan are missing, such as 'load-1'"),
        ({"settings": Settings(store="memory:")}, "cannot be seen by Spark's workers"),
    ],
)
def test_options_that_do_not_fit_are_named(
    spark: SparkSession, data: Data, tmp_path: Path, wrong: dict[str, Any], said: str
) -> None:
    chosen = options(data, tmp_path)
    with pytest.raises(errors.EMQError) as raised:
        generator.run(spark, LoadOptions(**{**vars(chosen), **wrong}))
    assert said in str(raised.value)


def test_a_topic_that_does_not_suit_the_plan_is_named(spark: SparkSession, data: Data, tmp_path: Path) -> None:
    data.create("load-2", priorities=("a", "b"))
    with pytest.raises(errors.InvalidTopic, match="'load-2' has no priority 'high', which the plan uses; it has a, b"):
        generator.run(spark, options(data, tmp_path))


def test_a_load_runs_in_any_thread(spark: SparkSession, data: Data, tmp_path: Path) -> None:
    reports: list[load_report.Report] = []
    chosen = options(data, tmp_path, partitions=1, paced=False)
    thread = threading.Thread(target=lambda: reports.append(generator.run(spark, chosen)))
    thread.start()
    thread.join()
    assert [report.published for report in reports] == [800]
