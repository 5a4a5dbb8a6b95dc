"""Find starts before the due time of messages whose ids may be published again (T), as `emq.trail.contents` does.

The other rules of that module take events in order of time, and `emq_spark.audit.lives` runs them in workers. This one
goes by the time at which each publish began.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from emq.trail import events
from emq_spark.audit.events import SENT, count, only
from emq_spark.audit.findings import found_in


def is_due() -> Column:
    """True for publishes with a due time."""
    return F.col("event").isin(SENT, events.PUBLISHED) & F.col("due_ms").isNotNull()


def too_early(rows: DataFrame, slack_us: int) -> DataFrame:
    """Report starts before the due time of each message that was published since the previous delivery was claimed.

    Args:
        rows: events of ids that may come back.
    """
    event = F.col("event")
    chosen = only(rows, SENT, events.PUBLISHED, events.MERGED, events.DOUBTED, events.STARTED)
    is_start, is_publish = event == events.STARTED, event.isin(SENT, events.PUBLISHED)
    claimed = F.when(F.col("ready_us") > 0, F.col("ready_us"))
    begun = F.coalesce(F.when(is_start, claimed).otherwise(F.col("published_us")), F.col("time_us"))
    order = Window.partitionBy("topic", "id").orderBy(begun, "event")
    before = F.coalesce(F.sum(is_start.cast("int")).over(order.rowsBetween(Window.unboundedPreceding, -1)), F.lit(0))
    start = F.when(is_start, F.struct("time_us", "attempt", "group", "priority", "source"))
    deliveries = (
        chosen.withColumn("n", before)
        .groupBy("topic", "id", "n")
        .agg(
            F.min(F.when(is_publish, F.col("due_ms"))).alias("due_ms"),
            count(~is_start & (~is_publish | F.col("due_ms").isNull())).alias("untold"),
            F.max(start).alias("start"),
        )
    )
    is_early = F.col("start.time_us") < F.col("due_ms") * 1000 - slack_us
    found = deliveries.where((F.col("untold") == 0) & (F.col("start.attempt") == 1) & is_early)
    text = F.format_string("%s is due at %d ms and was started at %d us", "id", "due_ms", "start.time_us")
    return found_in(
        found.select("topic", "id", "due_ms", "start", "start.group", "start.priority", "start.source"),
        *("T", "started before it was due", "topic", "group", "priority", "id", "source"),
        at_us=F.col("start.time_us"),
        text=text,
    )
