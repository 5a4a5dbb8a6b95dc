"""The events to audit as one data frame: rows of the hosts' trail, and publishes from the ledgers of load runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from emq.trail import events, schema
from emq_spark.audit import local_rows
from emq_spark.audit.findings import EVIDENCE, found_in
from emq_spark.load import ledger

SENT: Final = "sent"
"""Event of a publish in a ledger; a publish in a trail has the event `published`."""

TRAIL: Final = from_arrow_schema(schema.SCHEMA)

RANGES: Final = (events.DROPPED, events.SKIPPED, events.LOST, events.FORGOTTEN)
"""Events about offsets rather than messages."""

ENDINGS: Final = (events.SETTLED, events.RETRIED, events.RETURNED, events.DEAD)
"""Events that end a delivery."""

NEVER_US: Final = 1 << 62
"""A time that never comes, in microseconds since the epoch."""

_PATTERN = re.compile(r"[\\{}\[\]*?]")


def of_trail(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Read the rows of these segments of a trail."""
    return _read(spark, paths, TRAIL)


def of_ledger(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Read the rows of these segments of a ledger. A row that two attempts at a task both wrote counts once."""
    found = _read(spark, paths, from_arrow_schema(ledger.SCHEMA))
    if any(path.rpartition("/")[2].split("-")[2] != "0" for path in paths):
        again = found.where(F.col("id").isNotNull()).dropDuplicates(["run", "partition", "seq", "id", "sent_us"])
        found = again.unionByName(found.where(F.col("id").isNull()).dropDuplicates(["run", "partition", "seq"]))
    return found


def is_odd_row() -> Column:
    """True for rows of a ledger that no load writes and that no other check would find."""
    outcome = F.col("outcome")
    nameless = outcome.isin(ledger.PUBLISHED, ledger.MERGED) & (F.col("id").isNull() | F.col("topic").isNull())
    return F.coalesce(~outcome.isin(*ledger.OUTCOMES), F.lit(True)) | nameless | F.col("seq").isNull()


def odd_rows(sent: DataFrame) -> DataFrame:
    """Report the rows of a ledger that no load writes, see `is_odd_row`."""
    told = F.coalesce("outcome", F.lit("no outcome"))
    text = F.format_string("number %d of run %s is %s, of message %s", F.col("seq"), F.col("run"), told, F.col("id"))
    return found_in(sent.where(is_odd_row()), EVIDENCE, "a row of a ledger that cannot be", "topic", "id", text=text)


def _read(spark: SparkSession, paths: Sequence[str], columns: StructType) -> DataFrame:
    """Read Parquet files; Spark raises an error when it reads a page that does not match its checksum."""
    if not paths:
        return local_rows.nothing(spark, columns)
    reader = spark.read.schema(columns).option("parquet.page.verify-checksum.enabled", "true")
    return reader.parquet(*map(literal, paths))


def literal(path: str | Path) -> str:
    """Escape a path for Spark, which would otherwise read special characters as a pattern for several paths."""
    return _PATTERN.sub(r"\\\g<0>", str(path))


def united(trail: DataFrame, sent: DataFrame) -> DataFrame:
    """Unite trail and ledger under the trail's columns, with the ledger's certain and possible publishes and merges."""
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
    """Keep the rows of these events."""
    return frame.where(F.col("event").isin(*names))


def is_slot_id() -> Column:
    """True for ids that may come back."""
    return F.col("id").rlike(events.SLOT_ID)


def is_copy(name: str = "id") -> Column:
    """True for ids of messages that left their slot for their lane."""
    return F.col(name).contains(events.COPY) & F.col(name).rlike(events.COPIED)


def origin(name: str = "id") -> Column:
    """Return the id under which a message was published."""
    return F.when(is_copy(name), F.substring_index(name, events.COPY, 1)).otherwise(F.col(name))


def count(condition: Column) -> Column:
    """Count the rows of a group that fulfil a condition."""
    return F.sum(F.when(condition, 1).otherwise(0))
