"""Messages that were settled more than once (D): within what a crash may repeat, or not."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from emq.trail import events
from spark.audit_events import only
from spark.audit_options import AuditOptions


def explained(rows: DataFrame, judged: DataFrame, ownerships: DataFrame, options: AuditOptions) -> DataFrame:
    """Findings for all messages with a surplus; see `_once` and `_again`."""
    surplus = judged.where(F.col("surplus") > 0)
    once = _once(rows, surplus.where(~F.col("is_life")), ownerships, options.crash_us)
    return once.unionByName(_again(surplus.where("is_life"), ownerships), allowMissingColumns=True)


def _again(repeated: DataFrame, ownerships: DataFrame) -> DataFrame:
    """Ids that come back: which settle is the surplus one cannot be told, so any crash of an owner excuses."""
    latest = F.max("epoch").over(Window.partitionBy("topic", "group"))
    taken_over = ownerships.withColumn("latest", latest).where(F.col("epoch") < F.col("latest"))
    crashed = taken_over.where(F.col("released_us").isNull()).select("topic", "group").distinct()
    found = repeated.join(F.broadcast(crashed.withColumn("excused", F.lit(True))), ["topic", "group"], "left")
    return found.select(
        F.lit("D").alias("promise"),
        F.lit("duplicate").alias("kind"),
        *("topic", "group", "id"),
        F.col("last_us").alias("at_us"),
        F.col("surplus").alias("n"),
        F.format_string("%s was settled %d times more than it was published", "id", "surplus").alias("text"),
        F.coalesce("excused", F.lit(False)).alias("excused"),
    )


def _once(rows: DataFrame, repeated: DataFrame, ownerships: DataFrame, crash_us: int) -> DataFrame:
    """Every settle beyond the first of these messages, with `excused`.

    Excused is what follows a crash: the settle before it was made under a lower epoch, by an owner that did not let go
    of the group in order, within `crash_us` of the last that is known of that owner.

    Args:
        rows: events.
        repeated: topic and id of messages that were settled too often.
        ownerships: see `spark.audit_owners`, with `source_last_us`: the last event of the owner's trail.
    """
    few = F.broadcast(repeated.select("topic", "id", (F.col("settled") - F.col("surplus")).alias("allowed")))
    mine = only(rows, events.STARTED, events.SETTLED).join(few, ["topic", "id"])
    delivery = Window.partitionBy("topic", "id", "source", "attempt").orderBy("time_us", "is_end")
    mine = mine.withColumn("is_end", (F.col("event") == events.SETTLED).cast("int"))
    epoch = F.last("epoch", ignorenulls=True).over(delivery.rowsBetween(Window.unboundedPreceding, 0))
    settled = only(mine.withColumn("of_epoch", epoch), events.SETTLED)
    order = Window.partitionBy("topic", "id").orderBy("time_us", "of_epoch")
    before = F.lag(F.struct("time_us", "source", "of_epoch")).over(order)
    rank = F.row_number().over(order)
    surplus = settled.withColumns({"before": before, "rank": rank}).where(F.col("rank") > F.col("allowed"))
    owner = ownerships.select(
        "topic",
        "group",
        F.col("source").alias("owner"),
        F.col("epoch").alias("owner_epoch"),
        "released_us",
        "source_last_us",
    )
    same = (
        surplus["topic"].eqNullSafe(owner["topic"])
        & surplus["group"].eqNullSafe(owner["group"])
        & (F.col("before.source") == F.col("owner"))
        & (F.col("before.of_epoch") == F.col("owner_epoch"))
    )
    joined = surplus.join(F.broadcast(owner), same, "left").drop(owner["topic"], owner["group"])
    newer = F.col("of_epoch") > F.col("before.of_epoch")
    crashed = F.col("owner").isNotNull() & F.col("released_us").isNull()
    in_time = F.col("before.time_us") >= F.col("source_last_us") - crash_us
    excused = F.coalesce(newer & crashed & in_time, F.lit(False))
    why = (
        F.when(excused, "repeated after a crash")
        .when(newer & crashed, "repeated after a crash, though it was settled long before")
        .when(newer, "repeated after its group was released in order")
        .otherwise("settled twice under one epoch")
    )
    return joined.select(
        F.lit("D").alias("promise"),
        F.lit("duplicate").alias("kind"),
        "topic",
        "group",
        "priority",
        "offset",
        "id",
        "key",
        "source",
        F.col("time_us").alias("at_us"),
        F.concat(F.format_string("%s was settled by %s and again by %s: ", "id", "before.source", "source"), why).alias(
            "text"
        ),
        excused.alias("excused"),
    )
