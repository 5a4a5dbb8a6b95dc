"""Data frames from rows of the driver. Spark's optimizer knows their size and drops empty ones from a plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType


def frame(spark: SparkSession, rows: Iterable[Sequence[Any]], schema: str | StructType) -> DataFrame:
    """Return a small data frame.

    Args:
        rows: values in the order of the columns.
        schema: columns and types, as a struct or as text in Spark's notation.
    """
    # Spark makes an RDD from a list, whose size the optimizer does not know, but a local relation from an Arrow table.
    columns = arrow_schema(schema)
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    arrays = [pa.array(found, field.type) for found, field in zip(values, columns, strict=True)]
    made: DataFrame = spark.createDataFrame(pa.table(arrays, schema=columns), schema)
    return made


def arrow_schema(schema: str | StructType) -> Any:
    """Return a schema for the Arrow tables that functions in Python workers return; only the driver can make it."""
    return to_arrow_schema(cast(StructType, StructType.fromDDL(schema)) if isinstance(schema, str) else schema)


def nothing(spark: SparkSession, schema: str | StructType) -> DataFrame:
    """Return a data frame without rows."""
    return frame(spark, (), schema)
