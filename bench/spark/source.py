"""Rows a second that Spark reads from queues through `format("emq")`, against the bare client on the same data."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from bench.engine.floor import read_floor
from bench.support.backlog import fill
from bench.support.figures import Benchmark
from bench.support.stage import Stage, unlimited_topics
from emq.runtime import plurals
from emq.topics.model import split

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS = 3

PLACES = "topic,group,priority,offset"
"""Columns that need no decoded body."""


def read_per_s(session: SparkSession, stage: Stage, messages: int, columns: str) -> float:
    """Return the rows a second into a sink that drops them; the median of several reads."""
    found = []
    for _ in range(RUNS):
        frame = session.read.format("emq").options(store=stage.url, database=stage.database, columns=columns).load()
        started = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        found.append(messages / (time.perf_counter() - started))
    return sorted(found)[RUNS // 2]


def spark_figures(stage: Stage, messages: int, cores: int, memory: str) -> dict[str, float]:
    from emq_spark.session import local_session

    stage.say("starting Spark")
    session = local_session("emq-bench-source", cores, memory)
    try:
        frame = session.read.format("emq").options(store=stage.url, database=stage.database, topics="bench-0").load()
        stored = frame.count()  # and Spark's workers are warm
        stage.say(f"{plurals.count(stored, 'message')} in the first topic; reading all, {RUNS} times each")
        return {
            "rows_per_s": read_per_s(session, stage, messages, f"{PLACES},id,key,payload,published"),
            "places_per_s": read_per_s(session, stage, messages, PLACES),
        }
    finally:
        session.stop()


async def run(stage: Stage, *, queues: int, messages: int, cores: int, memory: str) -> dict[str, Any]:
    topics = [split(topic) for topic in unlimited_topics(queues)]
    per_queue = max(1, messages // queues)
    stage.say(f"filling {plurals.count(queues, 'queue')} with {plurals.count(per_queue, 'message')} each")
    await stage.elsewhere(fill, stage.url, topics, per_queue)
    async with stage.app() as app:
        await app.catalog.create_many(topics)
    floor = sorted([await read_floor(stage.url, topics, per_queue) for _ in range(RUNS)])[RUNS // 2]
    figures = await asyncio.to_thread(spark_figures, stage, per_queue * queues, cores, memory)
    return {
        **{name: round(value) for name, value in figures.items()},
        "floor_per_s": round(floor),
        "ratio": figures["rows_per_s"] / floor,
    }


BENCHMARK = Benchmark(
    run,
    options=(
        ("queues", 3_000, "physical queues"),
        ("messages", 1_500_000, "backlog in all"),
        ("cores", 2, "Spark tasks that run side by side"),
        ("memory", "2g", "memory of Spark's Java process"),
    ),
    stores=("redis",),
)
