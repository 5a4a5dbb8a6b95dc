"""Judge times and deaths of messages whose ids may be published again (T, X), by the rules of `emq.trail.contents`."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from emq.trail import events
from emq_spark.audit import local_rows
from emq_spark.audit.events import SENT, count, is_copy, is_slot_id, only
from emq_spark.audit.findings import found_in

_COLUMNS = ("topic", "group", "priority", "id", "source")


def failures(rows: DataFrame) -> DataFrame:
    """Return deaths, starts after expiry, and failures and starts of copies, for ids that may be published again.

    Args:
        rows: events.
    """
    return rows.where(is_failure()).where(is_slot_id())  # the costly check comes last and sees few rows


def is_failure() -> Column:
    """True for the events that `failures` returns, whatever their ids."""
    event = F.col("event")
    late = F.coalesce((event == events.STARTED) & (F.col("until") <= F.col("time_us")), F.lit(False))
    return late | (event == events.DEAD) | (event.isin(events.STARTED, events.RETRIED) & is_copy())


def expired(failures: DataFrame, slack_us: int) -> DataFrame:
    """Report messages that were started after they had expired, and messages that expired too early.

    Args:
        failures: see `failures`.
    """
    late = only(failures, events.STARTED).where(F.col("until") <= F.col("time_us"))
    text = F.format_string("%s expired at %d us and was started at %d", "id", "until", "time_us")
    found = found_in(late, "T", "started after it expired", *_COLUMNS, at_us=F.col("time_us"), text=text)
    untold = F.col("until").isNull()
    dead = only(failures, events.DEAD).where(F.col("reason") == events.EXPIRED)
    soon = dead.where(untold | (F.col("time_us") < F.col("until") - slack_us))
    told = F.coalesce(F.col("until").cast("string"), F.lit("any time"))
    text = F.format_string("%s expired at %d us, and might have lived until %s", F.col("id"), F.col("time_us"), told)
    return found.unionByName(found_in(soon, "T", "expired too early", *_COLUMNS, at_us=F.col("time_us"), text=text))


def dead_too_early(failures: DataFrame, fewest: Mapping[str, int]) -> DataFrame:
    """Report messages that died with attempts left and without a cause that allows it (X).

    Args:
        failures: see `failures`.
        fewest: by topic, the fewest attempts that any catalog allowed.
    """
    most = local_rows.frame(failures.sparkSession, fewest.items(), "topic string, most int")
    reason = F.coalesce("reason", F.lit(""))
    lawful = (reason == events.EXPIRED) | reason.startswith(events.REJECTED) | reason.startswith(events.UNFIT)
    dead = only(failures, events.DEAD).where(~lawful)
    found = dead.join(F.broadcast(most), "topic").where(F.col("attempt") < F.col("most"))
    text = F.format_string("%s died at attempt %d of %d (%s)", "id", "attempt", "most", "reason")
    return found_in(found, "X", "dead too early", *_COLUMNS, at_us=F.col("time_us"), text=text)


def retried_too_early(failures: DataFrame, slack_us: int, crashed: DataFrame) -> DataFrame:
    """Report retries of copies before the time that their failure named (T).

    Args:
        failures: see `failures`.
        crashed: topic and group, with further columns, of owners that may have failed without a record.
    """
    copies = only(failures, events.STARTED, events.RETRIED).where(is_copy())
    copies = copies.join(crashed, ["topic", "group"], "left_anti")
    is_start = F.col("event") == events.STARTED
    tried = F.when(is_start, F.col("attempt") - 1).otherwise(F.col("attempt"))
    failure = F.when(~is_start, F.struct("due_ms", "source"))
    order = Window.partitionBy("topic", "id", "tried").orderBy("time_us", is_start)
    before = F.last(failure, ignorenulls=True).over(order.rowsBetween(Window.unboundedPreceding, -1))
    starts = copies.withColumn("tried", tried).withColumn("failure", before).where(is_start)
    early_us = F.when(F.col("failure.source") == F.col("source"), 0).otherwise(slack_us)
    due_ms = F.col("failure.due_ms") - F.floor(early_us / 1000)
    found = starts.where(F.floor(F.col("time_us") / 1000) < due_ms)
    text = F.format_string(
        "%s was to be tried again at %d ms and was started at %d us", "id", "failure.due_ms", "time_us"
    )
    return found_in(found, "T", "retried too early", *_COLUMNS, at_us=F.col("time_us"), text=text)


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
        *("T", "started before it was due", *_COLUMNS),
        at_us=F.col("start.time_us"),
        text=text,
    )
