"""Messages that lie in their queues and were never started: what is started in their place tells of P and K, too."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from emq.trail import events
from emq.trail.owners import Ownership
from spark.audit import local_rows, offsets

_OWNERS: Final = "topic string, `group` int, source string, epoch long, owned_us long, ended_us long"


def of(placed: DataFrame, unclosed: Collection[str]) -> DataFrame:
    """Open messages with their places that are in their queues for certain.

    Where the store was not asked, nobody knows what a host has begun whose trail was cut short.
    """
    there = (offsets.QUEUED,) if unclosed else (offsets.QUEUED, offsets.UNKNOWN)
    begun = (F.col("started") > 0) | F.col("is_life") | F.col("in_lane")
    return placed.where(F.col("place").isin(*there) & ~begun)


def with_key(waiting: DataFrame) -> DataFrame:
    """Those that have a key."""
    return waiting.where(F.col("key_low") != _no_key())


def as_starts(waiting: DataFrame, groups: Collection[Sequence[Ownership]]) -> DataFrame:
    """Those without a key as started rows, as if their last owner had started them right after all others.

    Args:
        groups: ownerships of each group in order of their epochs.
    """
    spark = waiting.sparkSession
    lasts = [[o for o in found if o.last_us is not None][-1:] for found in groups]
    rows = [(o.topic, o.group, o.source, o.epoch, o.owned_us, o.last_us) for found in lasts for o in found]
    owners = F.broadcast(local_rows.frame(spark, rows, _OWNERS))
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
