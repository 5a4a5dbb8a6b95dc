"""Rules of `emq_proof` that judge rows one after the other, in Python workers.

Spark sorts the rows and hands them over in batches, so no worker ever holds a whole message, key, group or partition
unless its rule does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame

from emq_spark.audit import local_rows

BATCH = 1_000
"""Most rows that a worker returns at once."""

Row = tuple[Any, ...]
"""The values of one row, in the order of the frame's columns."""

Judge = Callable[[Iterator[Row]], Iterator[Mapping[str, Any]]]
"""Function from all rows of a partition, in order, to the rows that it returns for them, by column."""


def judged(rows: DataFrame, judge: Judge, schema: str) -> DataFrame:
    """Return the rows that `judge` returns in the workers.

    Args:
        rows: partitioned and sorted as `judge` needs them.
        schema: columns and types of the result, in Spark's notation.
    """
    shape = local_rows.arrow_schema(schema)

    def judge_all(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa  # type: ignore[import-untyped]

        every = (row for batch in batches for row in zip(*(c.to_pylist() for c in batch.columns), strict=True))
        found = judge(every)
        while some := list(itertools.islice(found, BATCH)):
            yield pa.RecordBatch.from_pylist(some, shape)

    return rows.mapInArrow(judge_all, schema)
