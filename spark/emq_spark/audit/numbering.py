"""Prove by sums in one pass that each offset of a queue (M) and each number of a ledger (E) comes once."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from emq.trail import events
from emq_spark.audit import unique
from emq_spark.audit.events import SENT
from emq_spark.audit.findings import EVIDENCE, found_in
from emq_spark.audit.offsets import spans, was_lost

_QUEUE: Final = ("topic", "group", "priority")
_RECORD: Final = ("event", *_QUEUE)
_NUMBER: Final = "number"
"""Value of the column `event` in rows about numbers of a ledger."""


def published(rows: DataFrame) -> DataFrame:
    """Return the publishes with an offset in a trail or ledger."""
    return rows.where(F.col("event").isin(SENT, events.PUBLISHED) & F.col("offset").isNotNull())


def numbers(sent: DataFrame) -> DataFrame:
    """Return the numbers of these ledger rows as if each part of a run were a queue and its numbers were offsets."""
    return sent.select(
        F.lit(_NUMBER).alias("event"),
        F.col("run").alias("topic"),
        F.col("partition").alias("group"),
        F.lit(0).cast("byte").alias("priority"),
        F.col("seq").alias("offset"),
        F.lit(None).cast("string").alias("id"),
    )


def offsets_of(published: DataFrame, numbers: DataFrame) -> DataFrame:
    """Return sums of `emq_spark.audit.unique` by queue and kind of record: over offsets, and over offset and id.

    Args:
        published: see `published`.
        numbers: see `numbers`; proved in the same pass.
    """
    rows = published.select("event", *_QUEUE, "offset", "id").unionByName(numbers)
    return unique.sums(rows, _RECORD, "offset", F.bit_xor(F.xxhash64("offset", "id")).alias("pairs"))


def doubtful(sums: DataFrame) -> DataFrame:
    """Return the queues whose sums do not prove that each offset comes once and that trail and ledger agree.

    Args:
        sums: see `offsets_of`.
    """
    told = ("n", "low", "high", "pairs")
    agree = (
        sums.where(F.col("event") != _NUMBER)
        .groupBy(*_QUEUE)
        .agg(*(F.count_distinct(name).alias(name) for name in told))
    )
    differ = agree.where(" or ".join(f"{name} > 1" for name in told))
    differ = differ.select(F.lit(events.PUBLISHED).alias("event"), *_QUEUE)
    return unique.doubtful(sums, _RECORD).select(*_RECORD).unionByName(differ)


def twice(sent: DataFrame, doubtful: DataFrame) -> DataFrame:
    """Report numbers that a ledger holds more than once (E).

    Args:
        sent: rows of ledgers.
        doubtful: see `doubtful`.
    """
    place = ("run", "partition")
    parts = doubtful.where(F.col("event") == _NUMBER)
    parts = parts.select(F.col("topic").alias("run"), F.col("group").alias("partition"))
    counted = unique.at(sent, parts, place).groupBy(*place, "seq")
    found = counted.agg(F.count("*").alias("n"), F.max("id").alias("id")).where(F.col("n") > 1)
    text = F.format_string("number %d of run %s is in the ledger %d times", "seq", "run", "n")
    return found_in(found, EVIDENCE, "a number twice", "id", text=text)


def one_offset(published: DataFrame, doubtful: DataFrame, losses: DataFrame, slack_us: int) -> DataFrame:
    """Report two messages that were published at one offset (M), unless a store lost or forgot one in between.

    Args:
        published: see `published`.
        doubtful: see `doubtful`.
        losses: rows about offsets that a store gave out again.
        slack_us: microseconds by which clocks may differ.
    """
    queues = doubtful.where(F.col("event") != _NUMBER).select(*_QUEUE)
    place = (*_QUEUE, "offset")
    hashed = unique.at(published, queues, _QUEUE).withColumn("hash", F.xxhash64("id"))
    counted = hashed.groupBy(*place).agg(
        F.min("hash").alias("lowest"),
        F.max("hash").alias("highest"),
        F.max("id").alias("id"),
        F.min("id").alias("other"),
        F.max("time_us").alias("at_us"),
        F.min("time_us").alias("first_us"),
    )
    twice = counted.where(F.col("lowest") < F.col("highest"))
    found = twice.join(F.broadcast(spans(losses)), was_lost(F.col("first_us"), slack_us), "left_anti")
    return found_in(
        found,
        *("M", "two at one offset", *place, "id", "other", "at_us"),
        text=F.format_string("%s and %s were both published at offset %d", "other", "id", "offset"),
    )
