"""What became of each message: no loss, at least once, dead once (L, D, X), for ids that are published once.

One row for each message that can be merged with the rows of an earlier audit, so that what is still open is carried on
without its events. Ids of sorted topics come back and are judged in `spark.audit_lives`.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from emq.trail import events
from spark.audit_events import SENT, count

SUMS: Final = ("sent", "published", "started", "settled", "retried", "dead", "replayed", "recalled")
HIGHEST: Final = (
    *("group", "priority", "offset", "last_offset", "last_us", "due_ms", "retried_us", "dead_us", "replayed_us"),
    *("failed_attempt", "started_us"),
)
LOWEST: Final = ("first_us", "first_offset")

KEY: Final = ("topic", "id")

JUDGED: Final = (
    *("topic", "id", "group", "priority", "offset", "due_ms", "first_us", "last_us", "started", "failed_attempt"),
    *("publishes", "delivered", "is_dead", "is_recalled", "is_open", "in_lane", "surplus", "died_again", "extra"),
)
"""What `judged` and `spark.audit_lives.judged` answer for each message.

publishes: how often it was published; delivered: settled at least once; is_open: nothing became of it yet; in_lane: it
waits in a lane or slot if anywhere; surplus: settles that are one too many; died_again: deaths that are one too many;
extra: delivered and not published here.
"""


def aggregate(rows: DataFrame) -> DataFrame:
    """One row of counts for each message.

    Args:
        rows: events with an id.
    """
    event = F.col("event")
    counted = [count(event == name).alias(name) for name in (SENT, *SUMS[1:])]
    is_publish = event.isin(SENT, events.PUBLISHED)
    in_queue = F.col("offset") >= 0
    return rows.groupBy(*KEY).agg(
        *counted,
        F.max("group").alias("group"),
        F.max("priority").alias("priority"),
        F.max(F.when(is_publish, F.col("offset"))).alias("offset"),
        F.max(F.when((event == events.STARTED) & in_queue, F.col("offset"))).alias("last_offset"),
        F.min(F.when((event == events.STARTED) & in_queue, F.col("offset"))).alias("first_offset"),
        F.max("time_us").alias("last_us"),
        F.min("time_us").alias("first_us"),
        F.max("due_ms").alias("due_ms"),
        F.max(F.when(event == events.RETRIED, F.col("time_us"))).alias("retried_us"),
        F.max(F.when(event == events.DEAD, F.col("time_us"))).alias("dead_us"),
        F.max(F.when(event == events.REPLAYED, F.col("time_us"))).alias("replayed_us"),
        F.max(F.when(event == events.RETRIED, F.col("attempt"))).alias("failed_attempt"),
        F.max(F.when(event == events.STARTED, F.col("time_us"))).alias("started_us"),
    )


def merged(rows: DataFrame, carried: DataFrame) -> DataFrame:
    """Rows of this audit and those carried from the last one, one for each message."""
    return (
        rows.unionByName(carried)
        .groupBy(*KEY)
        .agg(
            *(F.sum(name).alias(name) for name in SUMS),
            *(F.max(name).alias(name) for name in HIGHEST),
            *(F.min(name).alias(name) for name in LOWEST),
        )
    )


def judged(messages: DataFrame) -> DataFrame:
    """The columns `JUDGED`, with all that `aggregate` counts beside them."""
    copy = F.col("id").contains(events.COPY)
    # What left its slot under an id of its own was published under another.
    publishes = F.greatest(F.col("sent"), F.col("published"), copy.cast("long"))
    stored_twice = F.col("first_offset") < F.col("last_offset")
    allowed = F.greatest(publishes, F.lit(1) + stored_twice.cast("long"), F.lit(1))
    buried = F.col("dead") > F.col("replayed")
    ended = (F.col("settled") > 0) | buried | (F.col("recalled") > 0)
    return messages.withColumns(
        {
            "publishes": publishes,
            "delivered": F.col("settled") > 0,
            "is_dead": buried & (F.col("settled") == 0),
            "is_recalled": (F.col("recalled") > 0) & (F.col("settled") == 0),
            "is_open": (publishes > 0) & ~_true(ended),
            "in_lane": F.col("offset").isNull() | (F.col("retried") + F.col("replayed") > 0),
            "surplus": F.greatest(F.lit(0), F.col("settled") - allowed),
            "died_again": F.greatest(F.lit(0), F.col("dead") - F.greatest(publishes, F.lit(1)) - F.col("replayed")),
            "extra": (publishes == 0) & (F.col("settled") > 0),
        }
    )


def _true(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))
