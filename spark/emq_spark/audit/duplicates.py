"""Judge messages that were settled more than once (D): repeats that crashes explain, and others."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from emq.trail import events
from emq_spark.audit import local_rows
from emq_spark.audit.events import only
from emq_spark.audit.findings import found_in, times


def explained(rows: DataFrame, repeated: DataFrame, crashed: DataFrame, unknown: Mapping[str, int]) -> DataFrame:
    """Report all messages with a surplus; see `_once` and `_again`.

    Args:
        rows: events.
        repeated: of `emq_spark.audit.messages.JUDGED` with `is_life` and `repeats`, see `emq_spark.audit.crashes`.
        crashed: see `emq_spark.audit.crashes.CRASHED`.
        unknown: by topic, number of publishes with an unknown outcome.
    """
    surplus = repeated.where(F.col("surplus") > 0)
    once = _once(rows, surplus.where(~F.col("is_life")), crashed)
    return once.unionByName(_again(surplus.where("is_life"), unknown), allowMissingColumns=True)


def _again(repeated: DataFrame, unknown: Mapping[str, int]) -> DataFrame:
    """Report repeated ids by the number of their surplus settles, because no record shows which one is surplus.

    Settles that no crash explains may belong to publishes of unknown outcome, whose topic alone is known.
    """
    spark = repeated.sparkSession
    publishes = local_rows.frame(spark, unknown.items(), "topic string, unknown long")
    over = F.greatest(F.lit(0), F.col("surplus") - F.col("repeats"))
    before = Window.partitionBy("topic").orderBy("id").rowsBetween(Window.unboundedPreceding, -1)
    counted = repeated.withColumn("over", over).join(F.broadcast(publishes), "topic", "left")
    room = F.coalesce("unknown", F.lit(0)) - F.coalesce(F.sum("over").over(before), F.lit(0))
    of_unknown = F.least(F.col("over"), F.greatest(F.lit(0), room))
    counted = counted.withColumn("of_unknown", of_unknown)
    part = F.explode(
        F.array(
            _part("duplicate", F.least("surplus", "repeats"), excused=True),
            _part("of unknown publishes", F.col("of_unknown"), excused=True),
            _part("duplicate", F.col("over") - F.col("of_unknown"), excused=False),
        )
    )
    return found_in(
        counted.withColumn("part", part).where(F.col("part.n") > 0),
        *("D", F.col("part.kind"), "topic", "group", "id"),
        at_us=F.col("last_us"),
        n=F.col("part.n"),
        text=F.format_string("%s was settled %s more than it was published", F.col("id"), times(F.col("part.n"))),
        excused=F.col("part.excused"),
    )


def _part(kind: str, n: Column, *, excused: bool) -> Column:
    return F.struct(F.lit(kind).alias("kind"), n.cast("long").alias("n"), F.lit(excused).alias("excused"))


def _once(rows: DataFrame, repeated: DataFrame, crashed: DataFrame) -> DataFrame:
    """Report every settle beyond the allowed ones of these messages; excuse as many as crashes may have repeated."""
    allowed = (F.col("settled") - F.col("surplus")).alias("allowed")
    few = F.broadcast(repeated.select("topic", "id", allowed, "repeats"))
    mine = only(rows, events.STARTED, events.SETTLED).join(few, ["topic", "id"])
    delivery = Window.partitionBy("topic", "id", "source", "attempt").orderBy("time_us", "is_end")
    mine = mine.withColumn("is_end", (F.col("event") == events.SETTLED).cast("int"))
    epoch = F.last("epoch", ignorenulls=True).over(delivery.rowsBetween(Window.unboundedPreceding, 0))
    settled = only(mine.withColumn("of_epoch", epoch), events.SETTLED)
    order = Window.partitionBy("topic", "id").orderBy("time_us", "of_epoch")
    before = F.lag(F.struct("time_us", "source", "of_epoch")).over(order)
    rank = F.row_number().over(order)
    surplus = settled.withColumns({"before": before, "rank": rank}).where(F.col("rank") > F.col("allowed"))
    owner = crashed.select(
        "topic", "group", F.col("source").alias("owner"), F.col("epoch").alias("owner_epoch")
    ).distinct()
    same = (
        surplus["topic"].eqNullSafe(owner["topic"])
        & surplus["group"].eqNullSafe(owner["group"])
        & (F.col("before.source") == F.col("owner"))
        & (F.col("before.of_epoch") == F.col("owner_epoch"))
    )
    joined = surplus.join(owner, same, "left").drop(owner["topic"], owner["group"])
    newer = F.col("of_epoch") > F.col("before.of_epoch")
    excused = F.col("rank") - F.col("allowed") <= F.col("repeats")
    why = (
        F.when(excused, "repeated after a crash")
        .when(newer & F.col("owner").isNotNull(), "repeated after a crash, though it was settled long before")
        .when(newer, "repeated after its group was released in order")
        .otherwise("settled twice under one epoch")
    )
    return found_in(
        joined,
        *("D", "duplicate", "topic", "group", "priority", "offset", "id", "key", "source"),
        at_us=F.col("time_us"),
        text=F.concat(F.format_string("%s was settled by %s and again by %s: ", "id", "before.source", "source"), why),
        excused=excused,
    )
