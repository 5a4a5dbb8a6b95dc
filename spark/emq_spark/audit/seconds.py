"""Counts of events by second: the data of caps, ownerships and charts, much smaller than the events."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from emq.topics.model import MICRO
from emq.trail import events
from emq_spark.audit.events import SENT

SCHEMA: Final = (
    "event string, topic string, `group` int, source string, epoch long, second long, n long, first_us long, "
    "last_us long"
)

OWNED: Final = (events.OWNED, events.RELEASED)
_COUNTED = (SENT, events.PUBLISHED, events.STARTED, events.SETTLED, events.RETRIED, events.DEAD, events.RECALLED)


def counted(rows: DataFrame) -> DataFrame:
    """Count events by second, and starts and owners' events by group, host and epoch, too."""
    of_owner = F.col("event").isin(events.STARTED, *OWNED)
    return (
        rows.where(F.col("event").isin(*_COUNTED, *OWNED))
        .groupBy(
            "event",
            "topic",
            F.when(of_owner, F.col("group")).alias("group"),
            F.when(of_owner, F.col("source")).alias("source"),
            F.when(of_owner, F.col("epoch")).alias("epoch"),
            F.expr(f"time_us div {MICRO}").alias("second"),
        )
        .agg(F.count("*").alias("n"), F.min("time_us").alias("first_us"), F.max("time_us").alias("last_us"))
    )
