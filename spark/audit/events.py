"""The events to audit as one data frame: rows of the hosts' trail, and publishes from the ledgers of load runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from emq.trail import events
from spark.audit import local_rows
from spark.audit.findings import EVIDENCE, found_in
from spark.load import ledger

SENT: Final = "sent"
"""A publish that a ledger tells of; the trail's own say `published`."""

TRAIL: Final = (
    "event string, time_us long, source string, topic string, `group` int, priority byte, offset long, until long, "
    "id string, key string, attempt int, epoch long, published_us long, ready_us long, due_ms long, reason string"
)

LEDGER: Final = (
    "run string, partition int, seq long, topic string, `group` int, priority byte, offset long, id string, "
    "key string, sent_us long, answered_us long, due_ms long, outcome string, error string"
)

RANGES: Final = (events.DROPPED, events.SKIPPED, events.LOST)
"""Events about offsets rather than messages."""

ENDINGS: Final = (events.SETTLED, events.RETRIED, events.DEAD)
"""How a delivery may end."""

NEVER_US: Final = 1 << 62
"""A time that does not come, in microseconds since the epoch."""

_PATTERN = re.compile(r"[\\{}\[\]*?]")


def of_trail(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """The rows of these segments."""
    return _read(spark, paths, TRAIL)


def of_ledger(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """The messages of these segments. What a task and its next attempt both tell of counts once."""
    found = _read(spark, paths, LEDGER)
    if any(path.rpartition("/")[2].split("-")[2] != "0" for path in paths):
        again = found.where(F.col("id").isNotNull()).dropDuplicates(["run", "partition", "seq", "id", "sent_us"])
        found = again.unionByName(found.where(F.col("id").isNull()).dropDuplicates(["run", "partition", "seq"]))
    return found


def is_odd_row() -> Column:
    """True for rows of a ledger that no load writes, and that nothing else would judge."""
    outcome = F.col("outcome")
    nameless = outcome.isin(ledger.PUBLISHED, ledger.MERGED) & (F.col("id").isNull() | F.col("topic").isNull())
    return F.coalesce(~outcome.isin(*ledger.OUTCOMES), F.lit(True)) | nameless | F.col("seq").isNull()


def odd_rows(sent: DataFrame) -> DataFrame:
    """Findings of such rows."""
    told = F.coalesce("outcome", F.lit("no outcome"))
    text = F.format_string("number %d of run %s is %s, of message %s", F.col("seq"), F.col("run"), told, F.col("id"))
    return found_in(sent.where(is_odd_row()), EVIDENCE, "a row of a ledger that cannot be", "topic", "id", text=text)


def _read(spark: SparkSession, paths: Sequence[str], schema: str) -> DataFrame:
    """Pages that do not match their checksums are an error of whoever reads them."""
    if not paths:
        return local_rows.nothing(spark, schema)
    reader = spark.read.schema(schema).option("parquet.page.verify-checksum.enabled", "true")
    return reader.parquet(*map(literal, paths))


def literal(path: str | Path) -> str:
    """A path as Spark has to be told of it, so that it does not take it for a pattern of many."""
    return _PATTERN.sub(r"\\\g<0>", str(path))


def united(trail: DataFrame, sent: DataFrame) -> DataFrame:
    """Trail and ledger with the trail's columns; of the ledger what was, or may have been, published or merged."""
    outcome = F.col("outcome")
    doubted = (outcome == ledger.UNKNOWN) & F.col("id").isNotNull()
    published = sent.where(outcome.isin(ledger.PUBLISHED, ledger.MERGED) | doubted).select(
        F.when(outcome == ledger.PUBLISHED, SENT)
        .when(outcome == ledger.MERGED, events.MERGED)
        .otherwise(events.DOUBTED)
        .alias("event"),
        F.coalesce("answered_us", "sent_us").alias("time_us"),
        F.concat(F.lit("ledger of "), "run").alias("source"),
        "topic",
        "group",
        "priority",
        "offset",
        "id",
        "key",
        F.col("sent_us").alias("published_us"),
        "due_ms",
    )
    return trail.unionByName(published, allowMissingColumns=True)


def only(frame: DataFrame, *names: str) -> DataFrame:
    """The rows of these events."""
    return frame.where(F.col("event").isin(*names))


def is_slot_id() -> Column:
    """True for ids that may come back."""
    return F.col("id").rlike(events.SLOT_ID)


def is_copy(name: str = "id") -> Column:
    """True for ids of messages that left their slot for their lane."""
    return F.col(name).contains(events.COPY) & F.col(name).rlike(events.COPIED)


def origin(name: str = "id") -> Column:
    """The id under which a message was published."""
    return F.when(is_copy(name), F.substring_index(name, events.COPY, 1)).otherwise(F.col(name))


def count(condition: Column) -> Column:
    """How many rows of a group fulfil a condition."""
    return F.sum(F.when(condition, 1).otherwise(0))
