"""Dead letters (X): those that died twice, or should be there and are not."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from emq.model import Topic
from spark.audit_store import StoreView

_PLACE = ("topic", "group", "priority", "offset", "id")


def twice(judged: DataFrame) -> DataFrame:
    """Messages that became dead letters more often than they were published and replayed."""
    return judged.where(F.col("died_again") > 0).select(
        F.lit("X").alias("promise"),
        F.lit("dead twice").alias("kind"),
        *_PLACE,
        F.col("last_us").alias("at_us"),
        F.col("died_again").alias("n"),
        F.format_string("%s became a dead letter %d times too often", "id", "died_again").alias("text"),
    )


def never(judged: DataFrame, topics: Sequence[Topic]) -> DataFrame:
    """Messages that failed at their last attempt and are to be tried again."""
    limits = [(t.name, t.options.max_attempts) for t in topics if not t.is_sorted or t.options.retry == "backoff"]
    most = judged.sparkSession.createDataFrame(limits, "topic string, most int")
    found = judged.join(F.broadcast(most), "topic").where(F.col("failed_attempt") >= F.col("most"))
    return found.select(
        F.lit("X").alias("promise"),
        F.lit("never dead").alias("kind"),
        *_PLACE,
        F.col("last_us").alias("at_us"),
        F.format_string("%s failed %d times of %d and was put back", "id", "failed_attempt", "most").alias("text"),
    )


def absent(judged: DataFrame, store: StoreView) -> DataFrame:
    """Messages that died by the trail, were not replayed, and are not among the dead letters of the store."""
    spark = judged.sparkSession
    kept = spark.createDataFrame([*store.dead, *store.waiting], "topic string, id string").distinct()
    gone = judged.where("is_dead").join(kept, ["topic", "id"], "left_anti")
    return gone.select(
        F.lit("X").alias("promise"),
        F.lit("not among the dead").alias("kind"),
        *_PLACE,
        F.col("last_us").alias("at_us"),
        F.format_string("%s died and is not among the dead letters; if it was purged, say so (--purged)", "id").alias(
            "text"
        ),
    )
