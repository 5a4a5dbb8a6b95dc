"""Rows a second published through Spark on two cores, ledger included, against `publish` from one process.

The limit follows from the CPU of a message. A task takes 6.0 to 6.5 us to make a message, publish it, tell its outcome
apart and write that to the ledger; the server takes 1.2 us. `publish` of one message in batches takes 2.0 to 2.9 us
on one core, beside a server with a core of its own. So two cores publish at most 0.55 to 0.75 of that through Spark, if
nothing else runs on them.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from typing import TYPE_CHECKING, Any

import emq
from bench.engine import publish
from bench.support.backlog import PAYLOAD
from bench.support.figures import Benchmark, Figure
from bench.support.stage import UNLIMITED, Stage
from emq.runtime import plurals
from emq.topics.model import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS = 5
TENANTS = 8
SECONDS = 10.0
"""Seconds of the plan; the load publishes it as fast as possible."""


async def run(stage: Stage, *, messages: int, cores: int) -> dict[str, Any]:
    """Publish from one process and then through Spark, `RUNS` times each in turn; the medians count.

    Raises:
        EMQError: Spark or Java is missing; the text has the remedy.
    """
    from emq_spark import session

    session.require()
    spark = await asyncio.to_thread(session.local_session, "bench load", cores, "1g", **session.QUICK)
    try:
        with tempfile.TemporaryDirectory(prefix="emq-bench-load-") as directory:
            stage.say("starting Spark's workers")
            await asyncio.to_thread(_loaded, spark, stage, directory, messages // 100, 0)
            single, through = [], []
            async with stage.app() as app:
                for number in range(1, RUNS + 1):
                    stage.say(
                        f"run {number} of {RUNS}: {plurals.count(messages, 'message')} from one process, then through "
                        "Spark"
                    )
                    # Each run has an empty store: memory that the server must ask for costs about as much as a put.
                    single.append(await _batched(app, messages))
                    await _empty(app)
                    through.append(await asyncio.to_thread(_loaded, spark, stage, directory, messages, number))
                    await _empty(app)
    finally:
        await asyncio.to_thread(spark.stop)
    rows_per_s, publish_per_s = statistics.median(through), statistics.median(single)
    return {
        "rows_per_s": round(rows_per_s),
        "publish_per_s": round(publish_per_s),
        "ratio": rows_per_s / publish_per_s,
    }


async def _batched(app: emq.App, messages: int) -> float:
    await app.admin.create([Topic("bench", UNLIMITED * 10, group_qps=UNLIMITED)])
    return await publish.batched(app, "bench", messages)


def _loaded(spark: SparkSession, stage: Stage, directory: str, messages: int, number: int) -> float:
    """Return the messages a second, from the first publish in any task to the last segment of a ledger."""
    from emq_spark.load import generator
    from emq_spark.load.plan import Plan, Tenants, TopicPlan

    topic = TopicPlan(qps=UNLIMITED * 10, group_qps=UNLIMITED)
    tenants = Tenants("load-{n}", messages / SECONDS, TENANTS, payload_bytes=len(PAYLOAD), topic=topic)
    settings = emq.Settings(store=stage.url, database=stage.database)
    plan = Plan(SECONDS, "bench", number, (tenants,))
    report = generator.run(spark, generator.LoadOptions(plan, settings, directory, paced=False))
    assert report.published == report.asked
    return report.achieved_per_s


async def _empty(app: emq.App) -> None:
    for topic in await app.catalog.list():
        await app.admin.delete(topic.name, force=True)


BENCHMARK = Benchmark(
    run,
    options=(
        ("messages", 1_000_000, "messages in each run"),
        ("cores", 2, "cores that Spark may use, and tasks that publish at once"),
    ),
    figures=(Figure("ratio", ">=", 0.5),),
    stores=("redis", "postgres", "sqlite"),
)
