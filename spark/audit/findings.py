"""Findings: what broke a promise, or was reported beside it, each with the messages concerned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from spark.audit import local_rows

SCHEMA: Final = (
    "promise string, kind string, topic string, `group` int, priority int, offset long, id string, other string, "
    "key string, source string, at_us long, n long, text string, excused boolean"
)
"""The columns of the Parquet findings: `id` and `other` are the messages concerned, `at_us` when (microseconds since
the epoch), `n` how many violations a row stands for, `excused` that it broke no promise (a repeat after a crash)."""

EXAMPLES = 10
NAMES: Final[Mapping[str, str]] = {
    "L": "no loss",
    "D": "at least once, and no more but after a crash",
    "Q": "the cap holds",
    "P": "priority",
    "K": "key order",
    "O": "one owner",
    "M": "offsets go forward, and never past what is unfinished",
    "T": "nothing starts before its time, or after it",
    "X": "dead letters exactly once",
}
EVIDENCE: Final = "E"
"""Stands where a promise does, in findings of what contradicts itself: no promise is broken, and none is proved."""
_IDENTITY = ("promise", "topic", "group", "priority", "offset", "id", "source", "at_us")


class Kind(msgspec.Struct, frozen=True):
    """All findings of one kind.

    Attributes:
        count: violations, or what was excused.
        examples: one line each, the first few in order of time.
    """

    promise: str
    kind: str
    excused: bool
    count: int
    examples: tuple[str, ...]


def found_in(
    frame: DataFrame, promise: str, kind: str | Column, *columns: str, text: Column, **more: Column
) -> DataFrame:
    """Each row as a finding, with as many of the columns of `SCHEMA` as are told.

    Args:
        kind: its name, or a column with it.
        columns: those that the frame has under their names.
        more: others, by name.
    """
    named = {"promise": F.lit(promise), "kind": F.lit(kind), **more, "text": text}
    return frame.select(*columns, *(column.alias(name) for name, column in named.items()))


def complete(frame: DataFrame) -> DataFrame:
    """The frame with all columns of `SCHEMA` in order; those that it lacks are null, `n` 1, `excused` False."""
    empty = local_rows.nothing(frame.sparkSession, SCHEMA)
    whole = empty.unionByName(frame, allowMissingColumns=True)
    return whole.select(
        *(F.col(name).cast(empty.schema[name].dataType).alias(name) for name in empty.columns if name not in _DEFAULTS),
        F.coalesce("n", F.lit(1)).cast("long").alias("n"),
        "text",
        F.coalesce("excused", F.lit(False)).alias("excused"),
    )


_DEFAULTS = ("n", "text", "excused")


def of_rows(spark: SparkSession, rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Findings that the driver made."""
    names = [part.split()[0].strip("`") for part in SCHEMA.split(", ")]
    return local_rows.frame(spark, [tuple(row.get(name) for name in names) for row in rows], SCHEMA)


def fingerprinted(frame: DataFrame) -> DataFrame:
    """With `fingerprint`, by which a finding of an earlier audit is known again.

    What is told in other words when more is known (passed, then trimmed; 51 starts in a second, then 52) is the same.
    """
    by_message = F.col("promise").isin("L", "M")
    words = F.when(F.col("at_us").isNull(), F.concat("kind", "text")).when(~by_message, F.col("kind"))
    return frame.withColumn("fingerprint", F.xxhash64(*_IDENTITY, words))


def kinds(frame: DataFrame) -> list[Kind]:
    """The findings by promise and kind."""
    order = Window.partitionBy("promise", "kind", "excused").orderBy("at_us", "topic", "group", "id", "text")
    counted = frame.groupBy("promise", "kind", "excused").agg(F.sum("n").alias("count")).collect()
    first = frame.withColumn("rank", F.row_number().over(order)).where(F.col("rank") <= EXAMPLES)
    examples: dict[tuple[str, str, bool], list[str]] = {}
    for row in first.orderBy("rank").collect():
        place = f"{row['topic']}/{row['group']}: " if row["group"] is not None else f"{row['topic']}: "
        examples.setdefault((row["promise"], row["kind"], row["excused"]), []).append(
            (place if row["topic"] is not None else "") + row["text"]
        )
    found = [
        Kind(
            row["promise"],
            row["kind"],
            row["excused"],
            int(row["count"]),
            tuple(examples[row["promise"], row["kind"], row["excused"]]),
        )
        for row in counted
    ]
    return sorted(found, key=lambda kind: ([*NAMES, EVIDENCE].index(kind.promise), kind.excused, kind.kind))
