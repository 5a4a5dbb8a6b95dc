"""Source, load and audit on a cluster of two workers, while an executor is killed and another one stands still.

Each part must do all of its work exactly once: read every message, publish every row, deal with every message of the
plan, and find nothing in the evidence of a clean run.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import emq_servers as servers
from bench.spark import synthetic
from bench.spark.standalone import Standalone, one_task_left, tasks_done, troubled
from bench.support.figures import Benchmark, Figure
from bench.support.stage import Stage
from emq import App, Settings
from emq.runtime import errors
from emq.topics.model import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STILL_S = 6.0
"""Seconds for which an executor still stands still when its task is the last one: Spark starts the task again then."""

PARTS = ("read", "stream", "write", "audit", "load")

SPECULATIVE = {
    "spark_speculation": "true",
    "spark_speculation_interval": "100ms",
    "spark_speculation_multiplier": "1.5",
    "spark_speculation_quantile": "0.3",
    "spark_speculation_minTaskRuntime": "1s",
}


class Wrong(errors.EMQError):
    """A part lost, repeated or found something."""


class Parts:
    """The parts, on one store and one cluster.

    Args:
        messages: size of each part.
    """

    def __init__(self, cluster: Standalone, settings: Settings, directory: Path, messages: int) -> None:
        self._cluster = cluster
        self._settings = settings
        self._directory = directory
        self._messages = messages
        self._options = {"store": settings.store, "database": settings.database}

    def with_speculation(self, names: Collection[str]) -> dict[str, Any]:
        """Carry out parts; return the seconds of each, and how many tasks Spark has started twice at a time."""
        events = self._directory / "events"
        events.mkdir()
        logged = {
            "spark_eventLog_enabled": "true",
            "spark_eventLog_compress": "false",
            "spark_eventLog_dir": f"file://{events}",
        }
        session = self._cluster.session("emq cluster", **SPECULATIVE, **logged)
        found: dict[str, Any] = {}
        try:
            session.range(100, numPartitions=4).count()
            if "load" in names:
                found["load_refuses_speculation"] = self._refused(session)
            parts = {"read": self._read, "stream": self._stream, "write": self._write, "audit": self._audit}
            found |= {f"{name}_s": round(part(session), 1) for name, part in parts.items() if name in names}
        finally:
            session.stop()
        logs = (file.read_text() for file in events.rglob("*") if file.is_file() and file.name[0] != ".")
        return {**found, "speculative_tasks": sum(started_twice(log) for log in logs)}

    def without_speculation(self) -> dict[str, Any]:
        off = {"spark_speculation": "false", "spark_eventLog_enabled": "false"}
        session = self._cluster.session("emq cluster load", spark_task_maxFailures="8", **off)
        try:
            return self._load(session)
        finally:
            session.stop()

    def _read(self, session: SparkSession) -> float:
        asyncio.run(self._fill("read", self._messages))
        part = max(1, self._messages // 40)
        frame = session.read.format("emq").options(**self._options, topics="read", messages_per_partition=part).load()
        began = time.monotonic()
        with troubled(self._cluster, tasks_done(session, 3), one_task_left(session), STILL_S):
            rows = frame.select("group", "priority", "offset", "payload").collect()
        self._check("read", Counter(int(row.payload) for row in rows), self._messages)
        return time.monotonic() - began

    def _stream(self, session: SparkSession) -> float:
        files = str(self._directory / "files")
        options: dict[str, Any] = {**self._options, "topics": "read"}
        options["messages_per_partition"] = max(1, self._messages // 40)
        stream = session.readStream.format("emq").options(**options, columns="payload").load()
        began = time.monotonic()
        with troubled(self._cluster, tasks_done(session, 3), one_task_left(session), STILL_S):
            writer = stream.writeStream.format("parquet").option("path", files)
            query = writer.option("checkpointLocation", f"{files}-checkpoint").trigger(availableNow=True).start()
            query.awaitTermination()
        took_s = time.monotonic() - began
        rows = session.read.parquet(files).collect()
        self._check("stream", Counter(int(row.payload) for row in rows), self._messages)
        return took_s

    def _write(self, session: SparkSession) -> float:
        count = self._messages // 4
        asyncio.run(self._fill("written", 0))
        frame = session.range(0, count, 1, 8).selectExpr("cast(id as string) payload")
        options: dict[str, Any] = {**self._options, "topic": "written", "per_second": max(1.0, count / 8 / 3)}
        began = time.monotonic()
        with troubled(self._cluster, tasks_done(session, 1), one_task_left(session), STILL_S):
            frame.write.format("emq").mode("append").options(**options).save()
        took_s = time.monotonic() - began
        found = session.read.format("emq").options(**self._options, topics="written").load().select("payload")
        self._check("write", Counter(int(row.payload) for row in found.collect()), count)
        return took_s

    def _audit(self, session: SparkSession) -> float:
        from emq_spark.audit.offset_audit import AuditOptions, audit

        shape = synthetic.Shape.of(self._messages, 40)
        ledgers, trail = synthetic.write(self._directory / "clean", shape)
        options = AuditOptions([trail], [ledgers], topics=shape.catalog())
        began = time.monotonic()
        with troubled(self._cluster, tasks_done(session, 1), one_task_left(session), STILL_S):
            result = audit(session, options)
        if not result.ok:
            raise Wrong(f"audit: a clean run was found broken: {result.kinds[:3] or result.flaws[:3]}")
        return time.monotonic() - began

    def _refused(self, session: SparkSession) -> bool:
        from emq_spark.load.generator import run

        try:
            run(session, self._load_options())
        except errors.InvalidSettings as exc:
            return "speculation" in str(exc)
        return False

    def _load(self, session: SparkSession) -> dict[str, Any]:
        from emq_spark.audit.offset_audit import AuditOptions, audit
        from emq_spark.load.generator import Progress, run

        rows = [0]

        def note(progress: Progress) -> None:
            rows[0] = progress.rows

        options = self._load_options()
        began = time.monotonic()
        with troubled(self._cluster, lambda: rows[0] > 0):
            report = run(session, options, note)
        took_s = time.monotonic() - began
        if report.published != report.asked:
            raise Wrong(f"load: {report.published} of {report.asked} messages published: {report.errors}")
        found = session.read.format("emq").options(**self._options, topics="load-*").load().select("id")
        ids = Counter(row.id for row in found.collect())
        if len(ids) != report.asked or max(ids.values()) > 1:
            raise Wrong(f"load: {len(ids)} of {report.asked} messages, one up to {max(ids.values())} times")
        trail = self._directory / "no-trail"
        trail.mkdir()
        result = audit(session, AuditOptions([trail], [Path(options.directory)]))
        if result.counts["published"] != report.asked:
            raise Wrong(f"load: the ledger has {result.counts} for {report.asked} messages")
        return {"load_s": round(took_s, 1), "loaded": report.asked}

    def _load_options(self) -> Any:
        from emq_spark.load.generator import LoadOptions
        from emq_spark.load.plan import Plan, Tenants, TopicPlan

        seconds = 12.0
        tenants = Tenants("load-{n}", self._messages / seconds, 8, topic=TopicPlan(qps=100_000, group_qps=100))
        plan = Plan(seconds, "cluster", 5, (tenants,))
        return LoadOptions(plan, self._settings, self._directory / "ledger", partitions=2)

    async def _fill(self, topic: str, messages: int) -> None:
        async with App(options=self._settings) as app:
            await app.admin.create([Topic(topic, 400.0, group_qps=100.0)])
            for at in range(0, messages, 5_000):
                await app.publish_many(topic, [b"%d" % n for n in range(at, min(at + 5_000, messages))])

    def _check(self, part: str, found: Counter[int], wanted: int) -> None:
        lost = [n for n in range(wanted) if n not in found]
        twice = [n for n, times in found.items() if times > 1]
        if lost or twice or len(found) != wanted:
            raise Wrong(f"{part}: of {wanted} messages {len(lost)} lost ({lost[:5]}), {len(twice)} twice ({twice[:5]})")


def started_twice(log: str) -> int:
    """Return the number of speculative tasks in an event log of Spark."""
    return sum('"SparkListenerTaskStart"' in line and '"Speculative":true' in line for line in log.splitlines())


def measure(messages: int, names: Collection[str]) -> dict[str, Any]:
    """Carry out parts; raise `Wrong` if one did not do its work exactly once."""
    with tempfile.TemporaryDirectory(prefix="emq-cluster-") as temporary, servers.start_redis() as server:
        directory = Path(temporary)
        settings = Settings(store=server.url, database=f"sqlite:///{directory}/emq.db")
        with Standalone(directory / "spark") as cluster:
            parts = Parts(cluster, settings, directory, messages)
            found = parts.with_speculation(names)
            return {**found, **parts.without_speculation()} if "load" in names else found


async def run(stage: Stage, *, messages: int, parts: str) -> dict[str, Any]:
    names = parts.split(",")
    if unknown := set(names) - set(PARTS):
        raise Wrong(f"there is no part {min(unknown)!r}; the parts are {', '.join(PARTS)}")
    stage.say(f"starting a master and two workers; then {parts} with {messages} messages each")
    return await asyncio.to_thread(measure, messages, names)


BENCHMARK = Benchmark(
    run,
    options=(
        ("messages", 40_000, "size of each part"),
        ("parts", ",".join(PARTS), "parts to carry out, with commas"),
    ),
    figures=(Figure("speculative_tasks", ">=", 1),),
    stores=("memory",),
)
