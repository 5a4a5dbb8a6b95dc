"""Finds by sums the places (such as queues) in which a number may be repeated.

If the rows of a place hold each number from `low` to `high` once, there are `high - low + 1` rows, and the exclusive or
of the numbers' hashes equals that of the whole range. So sums alone prove a place. Only the few places whose sums do
not fit need a comparison of row with row.
"""

from __future__ import annotations

import functools
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

_STRIDE: Final = 10_000
"""Most numbers of a range that one row lists."""


def sums(rows: DataFrame, place: tuple[str, ...], number: str, *more: Column) -> DataFrame:
    """Return for each place the number of rows (`n`), the lowest and highest number, and the `mix` of all hashes."""
    mix = F.bit_xor(F.xxhash64(number)).alias("mix")
    return rows.groupBy(*place).agg(
        F.count("*").alias("n"), F.min(number).alias("low"), F.max(number).alias("high"), mix, *more
    )


def doubtful(sums: DataFrame, place: tuple[str, ...]) -> DataFrame:
    """Return the places whose sums do not prove that each number from `low` to `high` is there exactly once."""
    is_dense = F.col("n") == F.col("high") - F.col("low") + 1
    dense = sums.where(is_dense)
    begins = dense.select(*place, "high", F.explode(F.sequence("low", "high", F.lit(_STRIDE))).alias("begin"))
    ends = F.least("high", F.col("begin") + (_STRIDE - 1))
    every = begins.select(*place, F.explode(F.sequence("begin", ends)).alias("each"))
    wanted = every.groupBy(*place).agg(F.bit_xor(F.xxhash64("each")).alias("wanted"))
    proved = dense.join(wanted, list(place)).where(F.col("mix") == F.col("wanted"))
    return sums.join(proved.select(*place), list(place), "left_anti")


def at(rows: DataFrame, places: DataFrame, place: tuple[str, ...]) -> DataFrame:
    """Return the rows at these places; a null counts as a place like any other."""
    named = places.select(*(F.col(name).alias(f"its_{name}") for name in place))
    is_there = functools.reduce(Column.__and__, (F.col(name).eqNullSafe(F.col(f"its_{name}")) for name in place))
    return rows.join(F.broadcast(named), is_there, "left_semi")
