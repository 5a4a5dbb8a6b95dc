"""One pass over all events: it measures the waits of messages, and finds the later steps that have work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from emq.trail import events
from emq_spark.audit.events import RANGES, SENT, count, is_slot_id
from emq_spark.audit.owners import OWNERS_ONLY

STEPS: Final = 4
"""Buckets of waits for each doubling of the wait."""


@dataclass(frozen=True)
class Overview:
    """Attributes:
    waits: rows of priority, source, bucket, n and behind_us, about the wait from publish to first start.
    lowest: the number of the lowest priority with a start; 0 if there is at most one.
    comes_back: there are events of ids that may come back (ids of sorted topics, which can be published again).
    is_due: a message was published with a due time under an id that may come back.
    ranges: some offsets were dropped, skipped or lost.
    needs_owner: there are events that need an owner and no start, see `emq_spark.audit.owners.by_strangers`.

    `n` counts messages that came through a queue, because a message with a due time waits for that time and not for
    other messages. Bucket b holds waits from 2 ** (b / STEPS) microseconds up to the next bucket. The host's clock is
    behind a publisher's by at least `behind_us` microseconds; 0 or less means no difference.
    """

    waits: Sequence[Row]
    lowest: int
    comes_back: bool
    is_due: bool
    ranges: bool
    needs_owner: bool


def of(new: DataFrame, carried: DataFrame) -> Overview:
    """Look at all events once.

    Args:
        new: events of the new segments; only they count for the waits.
        carried: events that an earlier audit handed on.
    """
    started = F.col("event") == events.STARTED
    first = F.col("is_new") & started & (F.col("attempt") == 1) & (F.col("published_us") > 0)
    wait_us = F.col("time_us") - F.col("published_us")
    bucket = F.floor(F.log2(F.greatest(wait_us, F.lit(1))) * STEPS).cast("int")
    rows = new.withColumn("is_new", F.lit(True)).unionByName(carried.withColumn("is_new", F.lit(False)))
    is_due = F.col("event").isin(SENT, events.PUBLISHED) & F.col("due_ms").isNotNull()
    told = rows.select(
        "priority",
        F.when(first, F.col("source")).alias("source"),
        F.when(first, bucket).alias("bucket"),
        F.when(first, -wait_us).alias("behind_us"),
        (first & (F.col("offset") >= 0)).alias("queued"),
        started.alias("started"),
        is_slot_id().alias("comes_back"),
        (is_due & is_slot_id()).alias("is_due"),
        F.col("event").isin(*RANGES).alias("ranges"),
        F.col("event").isin(*OWNERS_ONLY).alias("needs_owner"),
    )
    marks = ("started", "comes_back", "is_due", "ranges", "needs_owner")
    summed = told.groupBy("priority", "source", "bucket").agg(
        count(F.col("queued")).alias("n"),
        F.max("behind_us").alias("behind_us"),
        *(F.max(name).alias(name) for name in marks),
    )
    found = summed.collect()
    lowest = max((row["priority"] for row in found if row["started"] and row["priority"] is not None), default=0)
    waits = [row for row in found if row["bucket"] is not None]
    return Overview(waits, lowest, *(any(row[name] for row in found) for name in marks[1:]))
