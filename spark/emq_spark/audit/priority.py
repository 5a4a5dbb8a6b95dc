"""Priority (P): no start while a message of higher priority is ready in the same group.

The audit takes two steps. First a sweep over each group in order of time counts the ready messages of each priority; a
group is a *suspect* if a message started while one of higher priority was ready. But the key of that message may have
held it back. So the second step judges the suspects by the rule of small trails (`emq.trail.checks.inversions`), in two
sweeps. A sweep over each key finds the stretches of time in which one of its messages was ready and nothing held it
back (`emq_spark.audit.locks`). A sweep over each group counts these stretches instead of the ready messages.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from emq.topics.model import MICRO
from emq.trail import checks
from emq_spark.audit import locks
from emq_spark.audit.findings import found_in

_GOES, _LEAVES, _READY = 0, 1, 2
_PLACES: Final = 16
"""A number above the most priorities that a topic can have."""


def waiting(starts: DataFrame, owners: DataFrame) -> DataFrame:
    """Add `owned_us`, `since_us` and `until_us` to started rows.

    From `since_us` to `until_us` the message lay in the store although its owner should have fetched it
    (`emq.trail.checks.in_store`); both are null if there was no such time.

    Args:
        starts: started rows.
        owners: see `emq_spark.audit.owners.beside`.
    """
    owned = owners.where(F.col("owned_us").isNotNull()).select("topic", "group", "source", "epoch", "owned_us")
    found = starts.join(owned, ["topic", "group", "source", "epoch"], "left")
    since = F.greatest("published_us", "owned_us") + round(checks.FETCH_S * MICRO)
    until = F.when(F.col("ready_us") > 0, F.col("ready_us")).otherwise(F.col("time_us"))
    until = until - round(checks.BEHIND_S * MICRO)
    first = F.col("key").isNull() & (F.col("attempt") == 1) & (F.col("offset") >= 0) & (F.col("published_us") > 0)
    stored = first & F.col("owned_us").isNotNull() & (since < until)
    return found.withColumns({"since_us": F.when(stored, since), "until_us": F.when(stored, until)})


def suspects(starts: DataFrame, priorities: int) -> DataFrame:
    """Find groups in which a start overtook a ready message, without regard to keys: topic, group.

    Args:
        starts: started rows of topics that serve strictly, see `waiting`.
        priorities: most priorities of a topic; with 1 or less there are no suspects.
    """
    rows = starts.select(
        *("topic", "group", "source", F.col("priority").cast("int").alias("p")),
        *("time_us", "ready_us", "since_us", "until_us"),
    )
    # A message that was not seen waiting is not counted, so its start does not lower a count.
    waited = (F.col("ready_us") > 0) & (F.col("ready_us") < F.col("time_us"))
    stored = F.col("since_us").isNotNull()
    steps = F.array(
        _step("time_us", _LEAVES, F.when(waited, -1).otherwise(0)),
        F.when(waited, _step("ready_us", _READY, F.lit(1))),
        F.when(stored, _step("since_us", _READY, F.lit(1))),
        F.when(stored, _step("until_us", _GOES, F.lit(-1))),
    )
    swept = rows.select("topic", "group", "source", "p", F.inline(steps)).where(F.col("at").isNotNull())
    order = Window.partitionBy("topic", "group", "source").orderBy("at").rowsBetween(Window.unboundedPreceding, 0)
    above = F.lit(0)
    for priority in range(priorities - 1):
        waiting = F.sum(F.when(F.col("p") == priority, F.col("step")).otherwise(0)).over(order)
        above = above + F.when(F.col("p") > priority, waiting).otherwise(0)
    swept = swept.withColumn("above", above)
    return swept.where((F.col("kind") == _LEAVES) & (F.col("above") > 0)).select("topic", "group").distinct()


def _step(time: str, kind: int, step: Column) -> Column:
    """Make one step of the sweep, with a sort number for time, then leaving before getting ready, then priority.

    One number sorts faster than three columns.
    """
    at = F.col(time) * (3 * _PLACES) + kind * _PLACES + F.col("p")
    return F.struct(at.alias("at"), F.lit(kind).alias("kind"), step.alias("step"))


def inversions(starts: DataFrame, priorities: int) -> DataFrame:
    """Report the starts that overtook a ready message that nothing held back.

    Args:
        starts: see `emq_spark.audit.locks.locked`.
        priorities: most priorities of a topic.
    """
    judged = starts.select(
        *("topic", "group", "source", "id", "key", "offset", "p", F.lit(True).alias("is_start")),
        locks.start().alias("at"),
        F.lit(0).alias("step"),
    )
    order = Window.partitionBy("topic", "group", "source").orderBy("at").rowsBetween(Window.unboundedPreceding, 0)
    kept = []
    for priority in range(priorities - 1):
        of_priority = F.col("p") == priority
        free = F.sum(F.when(of_priority, F.col("step")).otherwise(0)).over(order)
        # Of the stretches that have begun, the one that ends last goes on as long as any does.
        begun = F.when(of_priority & (F.col("step") == 1), F.struct("end", F.lit(priority).alias("p"), "name"))
        kept.append(F.when((F.col("p") > priority) & (free > 0), F.max(begun).over(order)))
    stretches = locks.free(starts, priorities)
    swept = judged.unionByName(stretches, allowMissingColumns=True).withColumn("kept", F.coalesce(*kept))
    text = F.format_string(
        "%s (priority %d) started at %d us while %s (priority %d) was ready",
        *("id", "p", "at.us", "kept.name", "kept.p"),
    )
    more = {"priority": F.col("p"), "other": F.col("kept.name"), "at_us": F.col("at.us")}
    found = swept.where(F.col("is_start") & F.col("kept").isNotNull())
    return found_in(found, "P", "inversion", "topic", "group", "offset", "id", "key", "source", text=text, **more)
