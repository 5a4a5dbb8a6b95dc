"""Judge the times of messages whose ids come back (T), by the rules of `emq.trail.contents`."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from emq.trail import events
from spark.audit.events import SENT, count, is_slot_id, only
from spark.audit.findings import found_in

_COLUMNS = ("topic", "group", "priority", "id", "source")


def expiries(rows: DataFrame) -> DataFrame:
    """Return the events that show that a message had expired, for ids that may come back.

    Args:
        rows: events.
    """
    return rows.where(is_expiry()).where(is_slot_id())  # the costlier check comes second, for few rows


def is_expiry() -> Column:
    """True for starts after expiry, and for deaths because of expiry."""
    late = (F.col("event") == events.STARTED) & (F.col("until") <= F.col("time_us"))
    return late | ((F.col("event") == events.DEAD) & (F.col("reason") == events.EXPIRED))


def expired(expiries: DataFrame, slack_us: int, silent: Collection[str]) -> DataFrame:
    """Report messages that were started after they had expired, and messages that expired too early.

    Args:
        expiries: see `expiries`.
        silent: see `emq.trail.history_facts.Facts`.
    """
    late = only(expiries, events.STARTED)
    text = F.format_string("%s expired at %d us and was started at %d", "id", "until", "time_us")
    found = found_in(late, "T", "started after it expired", *_COLUMNS, at_us=F.col("time_us"), text=text)
    untold = F.col("until").isNull() & ~F.col("source").isin(list(silent))
    soon = only(expiries, events.DEAD).where(untold | (F.col("time_us") < F.col("until") - slack_us))
    told = F.coalesce(F.col("until").cast("string"), F.lit("any time"))
    text = F.format_string("%s expired at %d us, and might have lived until %s", F.col("id"), F.col("time_us"), told)
    return found.unionByName(found_in(soon, "T", "expired too early", *_COLUMNS, at_us=F.col("time_us"), text=text))


def is_due() -> Column:
    """True for publishes with a due time."""
    return F.col("event").isin(SENT, events.PUBLISHED) & F.col("due_ms").isNotNull()


def too_early(rows: DataFrame, slack_us: int) -> DataFrame:
    """Report starts before the due time of every message published since the delivery before was claimed.

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
