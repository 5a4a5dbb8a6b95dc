"""How much happened in each second: what caps, ownerships and charts are made of, small beside the events."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from emq.topics.model import MICRO
from emq.trail import events
from spark.audit.events import SENT, count

SCHEMA: Final = (
    "event string, topic string, `group` int, source string, epoch long, second long, n long, first_us long, "
    "last_us long"
)

_COUNTED = (SENT, events.PUBLISHED, events.STARTED, events.SETTLED, events.RETRIED, events.DEAD, events.RECALLED)
STEPS: Final = 4
"""Buckets of waits for each doubling."""


def counted(rows: DataFrame) -> DataFrame:
    """Events by second; starts also by group, host and epoch."""
    started = F.col("event") == events.STARTED
    return (
        rows.where(F.col("event").isin(*_COUNTED))
        .groupBy(
            "event",
            "topic",
            F.when(started, F.col("group")).alias("group"),
            F.when(started, F.col("source")).alias("source"),
            F.when(started, F.col("epoch")).alias("epoch"),
            F.expr(f"time_us div {MICRO}").alias("second"),
        )
        .agg(F.count("*").alias("n"), F.min("time_us").alias("first_us"), F.max("time_us").alias("last_us"))
    )


def waits(rows: DataFrame) -> DataFrame:
    """Waits from publish to first start: topic, priority, source, bucket, n, and the longest start before its publish.

    `n` counts what came through a queue; what waited for a time of its own tells nothing of how long others wait.
    Bucket b holds waits of 2 ** (b / STEPS) microseconds and somewhat more. `behind_us` is how far the host's clock
    must be behind a publisher's, as far as this shows; 0 or less for not at all.
    """
    first = (F.col("event") == events.STARTED) & (F.col("attempt") == 1) & (F.col("published_us") > 0)
    wait_us = F.col("time_us") - F.col("published_us")
    bucket = F.floor(F.log2(F.greatest(wait_us, F.lit(1))) * STEPS).cast("int")
    queued = (F.col("offset") >= 0).alias("queued")
    chosen = rows.where(first).select(
        "topic", "priority", "source", queued, bucket.alias("bucket"), wait_us.alias("wait_us")
    )
    return chosen.groupBy("topic", "priority", "source", "bucket").agg(
        count(F.col("queued")).alias("n"), F.max(-F.col("wait_us")).alias("behind_us")
    )
