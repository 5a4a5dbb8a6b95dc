"""Finds segments whose rows contradict their headers or each other; Python workers look at one file at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from emq.trail import segments
from emq_spark.audit import workers

_FOUND: Final = "path string, flaw string, first_us long, last_us long"


def looks(spark: SparkSession, paths: Sequence[str]) -> dict[str, segments.Looked]:
    """Look at the rows of each of these segments of a trail; return the results by path."""
    if not paths:
        return {}
    tasks = min(len(paths), 4 * spark.sparkContext.defaultParallelism)
    frame = spark.createDataFrame([(path,) for path in paths], "path string").repartition(tasks)
    found = {}
    for row in workers.judged(frame, _look, _FOUND).collect():
        turn = None if row["first_us"] is None else (row["first_us"], row["last_us"])
        found[row["path"]] = segments.Looked(row["flaw"], turn)
    return found


def _look(rows: Iterator[workers.Row]) -> Iterator[dict[str, Any]]:
    import pyarrow as pa  # type: ignore[import-untyped]

    for (path,) in rows:
        flaw, turn = segments.look(Path(path))
        first_us, last_us = turn or (None, None)
        yield {"path": path, "flaw": flaw, "first_us": first_us, "last_us": last_us}
        # The worker lives as long as the audit and would keep the memory that the largest segment needed.
        pa.default_memory_pool().release_unused()
