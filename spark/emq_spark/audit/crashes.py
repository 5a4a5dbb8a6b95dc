"""Count the deliveries that a crash may have repeated: those in flight, and those that ended too late to be saved.

An owner that did not release its group in order may have been killed or cut off. A delivery may come once more if the
owner had begun and not ended it, or had ended it at most `crash_s` before the owner's own end. The repeat comes from
the log if the offset was not checkpointed, from a lane if the verdict did not arrive, or from both if the message had
failed and moved. A trail that was cut short may lack the failure; then a later attempt proves it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from emq.trail import events
from emq_spark.audit import local_rows
from emq_spark.audit.events import ENDINGS, count, only, origin

CRASHED: Final = (
    "topic string, `group` int, source string, epoch long, ended_us long, is_cut_short boolean, until_us long"
)
"""The columns of ownerships that ended abruptly.

`ended_us` is the last known time of the ownership, `is_cut_short` is true if the end of the owner's trail is missing,
`until_us` is the time when the next ownership began; both times in microseconds since the epoch.
"""


def is_crash() -> Column:
    """True for ownerships that a newer one replaced before they were released; see `emq_spark.audit.owners.beside`."""
    return F.col("released_us").isNull() & F.col("newer_us").isNotNull()


def ownerships(
    owned: DataFrame, runs: Iterable[tuple[str, int]], cut_short: Collection[str], slack_us: int
) -> DataFrame:
    """Return the ownerships that ended abruptly, with the columns of `CRASHED`.

    Args:
        owned: see `emq_spark.audit.owners.beside`.
        runs: source and last event (microseconds since the epoch) of each run of a source.
        cut_short: sources whose trail was not closed.
        slack_us: microseconds by which the clocks of two hosts may differ.
    """
    told = local_rows.frame(owned.sparkSession, runs, "source string, run_us long")
    lasts = F.broadcast(told.groupBy("source").agg(F.collect_set("run_us").alias("runs_us")))
    found = owned.where(is_crash()).join(lasts, "source", "left")
    run_us = F.coalesce(F.array_min(F.filter("runs_us", lambda us: us >= F.col("until_us"))), F.col("until_us"))
    # With a later event, the host lived on without the group.
    ended_us = F.when(run_us <= F.col("newer_us") + slack_us, run_us).otherwise(F.col("until_us"))
    return found.select(
        *("topic", "group", "source", "epoch", ended_us.alias("ended_us")),
        F.col("source").isin(list(cut_short)).alias("is_cut_short"),
        F.col("newer_us").alias("until_us"),
    )


def repeats(rows: DataFrame, concerned: DataFrame, crashed: DataFrame, crash_us: int) -> DataFrame:
    """Count the deliveries of each message that a crash may have repeated: topic, id, repeats.

    Args:
        rows: events.
        concerned: topic, id and is_life of the messages to count.
        crashed: see `CRASHED`.
        crash_us: `AuditOptions.crash_s` in microseconds.
    """
    mine = _deliveries(rows, concerned)
    owner = crashed.select("topic", "group", "source", "epoch", "ended_us")
    last = mine.groupBy("topic", "id", "group", "source", "epoch", "attempt").agg(
        F.max(F.struct("time_us", "is_end")).alias("last")
    )
    lost = last.join(owner, ["topic", "group", "source", "epoch"]).where(
        ~F.col("last.is_end") | (F.col("last.time_us") >= F.col("ended_us") - crash_us)
    )
    cut = crashed.where("is_cut_short").select("topic", "group")
    unseen = _unseen(mine).join(cut, ["topic", "group"], "left_semi")
    both = lost.select("topic", "id", F.lit(1).alias("n")).unionByName(unseen.select("topic", "id", "n"))
    return both.groupBy("topic", "id").agg(F.sum("n").alias("repeats"))


def _deliveries(rows: DataFrame, concerned: DataFrame) -> DataFrame:
    """Return the starts and ends of these messages, each with the epoch of its delivery."""
    wanted = concerned.select("topic", "is_life", F.col("id").alias("wanted")).withColumn("origin", origin("wanted"))
    chosen = only(rows, events.STARTED, *ENDINGS).withColumn("origin", origin())
    mine = chosen.join(F.broadcast(wanted), ["topic", "origin"]).where(
        F.col("is_life") | (F.col("id") == F.col("wanted"))
    )
    mine = mine.withColumns({"id": F.col("wanted"), "is_end": F.col("event") != events.STARTED})
    delivery = Window.partitionBy("topic", "id", "source", "attempt").orderBy("time_us", "is_end")
    before = delivery.rowsBetween(Window.unboundedPreceding, 0)
    return mine.withColumn("epoch", F.last("epoch", ignorenulls=True).over(before))


def _unseen(mine: DataFrame) -> DataFrame:
    """Count the later attempts of each message that follow a failure missing from the trail: topic, group, id, n."""
    started, failed = F.col("event") == events.STARTED, F.col("event") == events.RETRIED
    attempt = F.when(started, F.col("attempt")).when(failed, F.col("attempt") + 1)
    told = mine.withColumn("to", attempt).where(F.col("to") > 1).groupBy("topic", "group", "id", "to")
    found = told.agg(count(started).alias("started"), count(failed).alias("failed"))
    sums = found.where((F.col("started") > 0) & (F.col("failed") == 0)).groupBy("topic", "group", "id")
    return sums.agg(F.count("*").alias("n"))
