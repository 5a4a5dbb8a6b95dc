"""Messages that lie in their queues and were never started; a start in their place may break P or K."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from emq.trail import events
from emq_spark.audit import offsets


def of(placed: DataFrame, unclosed: Collection[str]) -> DataFrame:
    """Return the open messages that are in their queues for certain.

    If nobody asked the store, a host whose trail was cut short may have started any message; then the function returns
    no message of unknown place.
    """
    there = (offsets.QUEUED,) if unclosed else (offsets.QUEUED, offsets.UNKNOWN)
    begun = (F.col("started") > 0) | F.col("is_life") | F.col("in_lane")
    return placed.where(F.col("place").isin(*there) & ~begun)


def with_key(waiting: DataFrame) -> DataFrame:
    """Return the waiting messages that have a key."""
    return waiting.where(F.col("key_low") != _no_key())


def as_starts(waiting: DataFrame, owned: DataFrame) -> DataFrame:
    """Return the messages without a key as started rows, as if their last owner had started them after all others.

    Args:
        owned: see `emq_spark.audit.owners.beside`.
    """
    active = owned.where(F.col("last_us").isNotNull()).groupBy("topic", "group")
    last = active.agg(F.min_by(F.struct("source", "epoch", F.col("last_us").alias("ended_us")), "age").alias("last"))
    owners = last.select("topic", "group", "last.*")
    mine = waiting.where(F.col("key_low") == _no_key()).drop("source", "epoch")
    return mine.join(owners, ["topic", "group"]).select(
        F.lit(events.STARTED).alias("event"),
        (F.col("ended_us") + 1).alias("time_us"),
        *("source", "topic", "group", "epoch", "offset", "id"),
        F.col("priority").cast("byte").alias("priority"),
        F.lit(None).cast("string").alias("key"),
        F.lit(1).alias("attempt"),
        F.col("last_begun_us").alias("published_us"),
        F.col("ended_us").alias("ready_us"),
    )


def _no_key() -> Column:
    return F.hash(F.lit(None).cast("string"))
