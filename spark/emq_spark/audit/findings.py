"""Findings: each broken promise and each excused irregularity, with the messages concerned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from emq_spark.audit import local_rows

SCHEMA: Final = (
    "promise string, kind string, topic string, `group` int, priority int, offset long, id string, other string, "
    "key string, source string, at_us long, n long, text string, excused boolean"
)
"""The columns of the Parquet findings.

`id` and `other` are the messages concerned, `at_us` is the time (microseconds since the epoch), `n` is the number of
violations that a row stands for. `excused` is true for a finding that breaks no promise (a repeat after a crash).
"""

EXAMPLES = 10
NAMES: Final[Mapping[str, str]] = {
    "L": "no loss",
    "D": "at least once, and no more but after a crash",
    "Q": "the cap holds",
    "P": "priority",
    "K": "key order",
    "O": "one owner",
    "M": "offsets go forward, and never past an unfinished message",
    "T": "nothing starts before it is due or after it expires",
    "X": "dead letters exactly once",
}
EVIDENCE: Final = "E"
"""Letter in place of a promise's, for contradictory evidence: such a finding breaks no promise but voids the proof."""
_IDENTITY = ("promise", "topic", "group", "priority", "offset", "id", "source", "at_us")


class Kind(msgspec.Struct, frozen=True):
    """All findings of one kind.

    Attributes:
        count: number of violations, or of excused irregularities.
        examples: one line for each of the first `EXAMPLES` in order of time.
    """

    promise: str
    kind: str
    excused: bool
    count: int
    examples: tuple[str, ...]


def found_in(
    frame: DataFrame, promise: str, kind: str | Column, *columns: str, text: Column, **more: Column
) -> DataFrame:
    """Turn each row into a finding that has the given columns of `SCHEMA`.

    Args:
        kind: name of the kind, or a column that holds the name.
        columns: columns that the frame has under the names of `SCHEMA`.
        more: further columns by their names in `SCHEMA`.
    """
    named = {"promise": F.lit(promise), "kind": F.lit(kind), **more, "text": text}
    return frame.select(*columns, *(column.alias(name) for name, column in named.items()))


def times(n: Column) -> Column:
    """Return a column of texts such as "1 time", "2 times"."""
    return F.format_string("%d %s", n, F.when(n == 1, "time").otherwise("times"))


def complete(frame: DataFrame) -> DataFrame:
    """Return the frame with all columns of `SCHEMA` in order; a missing column is null, `n` is 1, `excused` False."""
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
    """Make a frame of findings from rows of the driver."""
    names = [part.split()[0].strip("`") for part in SCHEMA.split(", ")]
    return local_rows.frame(spark, [tuple(row.get(name) for name in names) for row in rows], SCHEMA)


def fingerprinted(frame: DataFrame) -> DataFrame:
    """Add `fingerprint`, by which a later audit recognises a finding.

    A finding keeps its fingerprint when a later audit knows more and words it differently (passed, then trimmed; 51
    starts in a second, then 52).
    """
    by_message = F.col("promise").isin("L", "M")
    words = F.when(F.col("at_us").isNull(), F.concat("kind", "text")).when(~by_message, F.col("kind"))
    return frame.withColumn("fingerprint", F.xxhash64(*_IDENTITY, words))


def kinds(frame: DataFrame) -> list[Kind]:
    """Summarise the findings by promise and kind."""
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
