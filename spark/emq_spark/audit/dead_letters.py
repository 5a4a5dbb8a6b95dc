"""Judge dead letters (X): messages that died twice, and letters that are missing from the store or too many there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from emq.topics.model import Topic
from emq_spark.audit import local_rows
from emq_spark.audit.findings import found_in, times
from emq_spark.audit.store import StoreView

_PLACE = ("topic", "group", "priority", "offset", "id")


def counted(spark: SparkSession, store: StoreView | None) -> DataFrame:
    """Return the dead letters of the store: topic, id, and the number of letters of each message."""
    dead = local_rows.frame(spark, store.letters() if store is not None else (), "topic string, id string")
    return dead.groupBy("topic", "id").agg(F.count("*").alias("letters"))


def twice(judged: DataFrame) -> DataFrame:
    """Report messages that became dead letters more often than they were published and replayed.

    A message that dies from its queue is a dead letter before its offset is checkpointed. A crash in between lets the
    message die again, which adds no second dead letter. As many deaths as crashes may have repeated are excused.

    Args:
        judged: rows of `emq_spark.audit.messages.JUDGED`, with `repeats`, see `emq_spark.audit.crashes`.
    """
    again, most = F.col("died_again").cast("long"), F.least("died_again", "repeats").cast("long")
    parts = F.array(
        F.struct(most.alias("n"), F.lit(True).alias("excused")),
        F.struct((again - most).alias("n"), F.lit(False).alias("excused")),
    )
    found = judged.where(F.col("died_again") > 0).withColumn("part", F.explode(parts))
    return _told(
        found.where(F.col("part.n") > 0),
        "dead twice",
        n=F.col("part.n"),
        text=F.format_string("%s became a dead letter %s too often", F.col("id"), times(F.col("part.n"))),
        excused=F.col("part.excused"),
    )


def _told(judged: DataFrame, kind: str, *, text: Column, **more: Column) -> DataFrame:
    """Make findings about messages."""
    return found_in(judged, "X", kind, *_PLACE, at_us=F.col("last_us"), text=text, **more)


def limits(catalogs: Sequence[Sequence[Topic]], choose: Callable[[int, int], int] = max) -> dict[str, int]:
    """Return by topic the most attempts that any catalog allowed; the fewest if `choose` is `min`."""
    found: dict[str, int] = {}
    for t in (t for topics in catalogs for t in topics if t.counts_attempts):
        found[t.name] = choose(t.options.max_attempts, found.get(t.name, t.options.max_attempts))
    return found


def never(judged: DataFrame, limits: Mapping[str, int]) -> DataFrame:
    """Report messages that failed at their last attempt and were put back for another one.

    Args:
        limits: see `limits`.
    """
    most = local_rows.frame(judged.sparkSession, limits.items(), "topic string, most int")
    found = judged.join(F.broadcast(most), "topic").where(F.col("failed_attempt") >= F.col("most"))
    return _told(
        found,
        "never dead",
        text=F.format_string("%s failed at attempt %d of %d and was put back", "id", "failed_attempt", "most"),
    )


def delivered(judged: DataFrame) -> DataFrame:
    """Report messages that were settled and never died, but are among the dead letters of the store."""
    found = judged.where(F.col("in_dead") & F.col("delivered") & ~F.col("is_life") & (F.col("dead") == 0))
    return _told(
        found,
        "delivered and among the dead",
        text=F.format_string("%s was settled, and is among the dead letters", "id"),
    )


def several(judged: DataFrame) -> DataFrame:
    """Report messages of which the store has more than one dead letter."""
    return _told(
        judged.where((F.col("letters") > 1) & ~F.col("is_life")),
        "several dead letters",
        n=F.col("letters") - 1,
        text=F.format_string("%s is among the dead letters %d times", "id", "letters"),
    )


def unknown(judged: DataFrame, store: StoreView, first_us: int) -> DataFrame:
    """Report dead letters that are in no ledger and no trail.

    Args:
        first_us: when ledgers and trails begin; letters of messages that died earlier are not judged.
    """
    spark = judged.sparkSession
    letters = local_rows.frame(spark, store.letters(first_us), "topic string, id string").distinct()
    told = judged.where("in_dead").select("topic", "id")
    return found_in(
        letters.join(told, ["topic", "id"], "left_anti"),
        *("X", "unknown dead letter", "topic", "id"),
        text=F.format_string("%s is among the dead letters without a record of its publish", "id"),
    )


def absent(judged: DataFrame, store: StoreView, until_us: int) -> DataFrame:
    """Report messages that died by the trail, were not replayed, and are not among the dead letters of the store.

    Args:
        until_us: messages with events from this time on are not judged, because the view of the store is older.
    """
    spark = judged.sparkSession
    kept = local_rows.frame(spark, [*store.letters(), *store.waiting], "topic string, id string").distinct()
    gone = judged.where(F.col("is_dead") & (F.col("last_us") < until_us)).join(kept, ["topic", "id"], "left_anti")
    return _told(
        gone,
        "not among the dead",
        text=F.format_string("%s died and is not among the dead letters; if it was purged, say so (--purged)", "id"),
    )
