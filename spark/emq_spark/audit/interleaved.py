"""Find, by offsets alone, two owners of a group at one time (O), by the rule of `emq_proof.interleaved`."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from emq_proof import interleaved
from emq_spark.audit import offsets
from emq_spark.audit.findings import found_in

_QUEUE: Final = ("topic", "group", "priority")
_TOLD: Final = ("source", "epoch", "low", "high", "first_us", "last_us")


def spans(starts: DataFrame) -> DataFrame:
    """For each queue and owner, return the range of offsets and times of first starts of messages without a key."""
    return (
        _first(starts)
        .groupBy(*_QUEUE, "source", "epoch")
        .agg(
            F.min("offset").alias("low"),
            F.max("offset").alias("high"),
            F.min("time_us").alias("first_us"),
            F.max("time_us").alias("last_us"),
        )
    )


def suspects(spans: DataFrame, owners: DataFrame, forgotten: DataFrame, slack_us: int) -> DataFrame:
    """Find the pairs of owners of a queue whose later owner began below the last start of the former one.

    Args:
        spans: see `spans`.
        owners: see `emq_spark.audit.owners.beside`.
        forgotten: rows about queues that a store forgot; owners from before and after cannot be compared by offsets.
        slack_us: microseconds by which the clocks of two hosts may differ.
    """
    released = owners.where(F.col("released_us").isNotNull())
    formers = spans.join(released, ["topic", "group", "source", "epoch"], "left_semi")
    formers = formers.select(*_QUEUE, *(F.col(name).alias(f"former_{name}") for name in _TOLD))
    overlaps = (
        (F.col("epoch") > F.col("former_epoch"))
        & (F.col("source") != F.col("former_source"))
        & (F.col("low") < F.col("former_high"))
        & (F.col("first_us") < F.col("former_last_us") + (interleaved.NEW_TOPIC_US - slack_us))
    )
    found = spans.join(formers, list(_QUEUE)).where(overlaps)
    between = F.col("lost_us").between(F.col("former_first_us"), F.col("last_us"))
    found = found.join(F.broadcast(offsets.spans(forgotten)), offsets.of_queue() & between, "left_anti")
    return found.select(*_QUEUE, "source", "epoch", "former_source", "former_epoch", "former_high")


def faults(starts: DataFrame, suspects: DataFrame) -> DataFrame:
    """Report queues from which a later owner started offsets that a former owner had passed over.

    The former owner had released the group in order.

    Args:
        starts: started rows.
        suspects: see `suspects`; few.
    """
    mine = _first(starts).select(*_QUEUE, "source", "epoch", "offset", "time_us")
    taken = mine.join(F.broadcast(suspects), [*_QUEUE, "source", "epoch"]).where(F.col("offset") < F.col("former_high"))
    theirs = mine.select(
        *_QUEUE, F.col("source").alias("former_source"), F.col("epoch").alias("former_epoch"), "offset"
    )
    theirs = theirs.join(
        F.broadcast(suspects.select(*_QUEUE, "former_source", "former_epoch").distinct()),
        [*_QUEUE, "former_source", "former_epoch"],
        "left_semi",
    )
    passed = taken.join(theirs, [*_QUEUE, "former_source", "former_epoch", "offset"], "left_anti")
    pairs = passed.groupBy(*_QUEUE, "source", "former_source", "former_high").agg(
        F.count("*").alias("count"), F.min("offset").alias("offset"), F.min("time_us").alias("at_us")
    )
    text = F.format_string(
        "priority %d: %s had started offset %d before it let go of the group, and %s, which took it then, started %d "
        "below it, beginning with %d",
        *("priority", "former_source", "former_high", "source", "count", "offset"),
    )
    columns = (*_QUEUE, "offset", "source", "at_us")
    return found_in(pairs, "O", "two owners", *columns, other=F.col("former_source"), text=text)


def _first(starts: DataFrame) -> DataFrame:
    is_first = F.col("key").isNull() & (F.col("attempt") == 1) & (F.col("offset") >= 0)
    return starts.where(is_first & F.col("epoch").isNotNull())
