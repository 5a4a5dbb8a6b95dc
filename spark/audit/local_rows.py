"""Rows that the driver has, as data frames whose size Spark's optimizer knows: what is empty is left out of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType


def frame(spark: SparkSession, rows: Iterable[Sequence[Any]], schema: str | StructType) -> DataFrame:
    """A small data frame.

    Args:
        rows: values in the order of the columns.
        schema: columns and types; as text, as Spark writes them.
    """
    # A list would become an RDD, of which the optimizer knows nothing; a table of Arrow becomes a local relation.
    shape = cast(StructType, StructType.fromDDL(schema)) if isinstance(schema, str) else schema
    columns = to_arrow_schema(shape)
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    arrays = [pa.array(found, field.type) for found, field in zip(values, columns, strict=True)]
    made: DataFrame = spark.createDataFrame(pa.table(arrays, schema=columns), shape)
    return made


def nothing(spark: SparkSession, schema: str | StructType) -> DataFrame:
    """A data frame without rows."""
    return frame(spark, (), schema)
