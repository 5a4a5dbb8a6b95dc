"""Key order (K): messages of one key run one at a time, and first deliveries follow the order of their queue."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from emq.trail import events
from emq.trail.takeovers import UNTOLD_US
from spark.audit.events import ENDINGS, NEVER_US, only, origin
from spark.audit.findings import found_in


def deliveries(rows: DataFrame, cut_short: Iterable[tuple[str, int, int]], *, failures_run: bool = True) -> DataFrame:
    """Return the started rows of messages with a key, with `until_us`: the time when the delivery ended.

    For a delivery without an end, `until_us` is the time when the message was started again, and `NEVER_US` if it was
    not. A delivery without an end on a host whose trail was cut short ran until the last event of that trail at the
    latest: another host starts the message again, and may start messages of higher priority first.

    Args:
        rows: events with their key.
        cut_short: source, first and last event of each run that was cut short, in microseconds since the epoch.
        failures_run: a failed delivery counts as running until the store knew of the failure. If False, the delivery
            counts as ended at its start, because no event tells when its handler returned; and a delivery without an
            end on a host whose trail was cut short may have failed in the last second of that trail.
    """
    keyed = only(rows, events.STARTED, *ENDINGS).where(F.col("key").isNotNull()).withColumn("id", origin())
    is_start = F.col("event") == events.STARTED
    chosen = keyed.select(
        *("topic", "key", "id", "time_us", "source", "attempt", "group", "priority", "offset"),
        is_start.alias("is_start"),
        (F.col("event") == events.SETTLED).alias("succeeds"),
    )
    # Partitioned by key already here: the next steps go by key as well, and need no exchange of their own then.
    chosen = chosen.repartition("topic", "key")
    order = Window.partitionBy("topic", "key", "id").orderBy("time_us", F.desc("is_start"))
    following = F.struct("time_us", "is_start", "source", "attempt", "succeeds")
    chosen = chosen.withColumns({"next": F.lead(following).over(order), "rank": F.row_number().over(order)})
    mine = (F.col("next.source") == F.col("source")) & (F.col("next.attempt") == F.col("attempt"))
    ended = F.when(F.col("next.succeeds") | F.lit(failures_run), F.col("next.time_us")).otherwise(F.col("time_us"))
    until = F.when(~F.col("next.is_start") & mine, ended)
    anew = F.coalesce(F.when(F.col("next.is_start"), F.col("next.time_us")), F.lit(NEVER_US))
    for source, first_us, last_us in cut_short:
        is_cut = (F.col("source") == source) & F.col("time_us").between(first_us, last_us)
        over_us = last_us if failures_run else last_us - UNTOLD_US
        until = until.when(is_cut, F.least(anew, F.greatest(F.col("time_us"), F.lit(over_us))))
    until = until.otherwise(anew)
    return chosen.where("is_start").withColumn("until_us", until).drop("next", "is_start", "succeeds")


def by_slot(rows: DataFrame, topics: Collection[str]) -> DataFrame:
    """Return the rows of topics that run one message of a slot at a time, with the slot in place of the key."""
    mine = rows.where(F.col("topic").isin(list(topics)))
    return mine.withColumn("key", F.concat(F.lit("slot "), F.col("group").cast("string")))


def followed(deliveries: DataFrame, resized: Collection[str], slack_us: int) -> DataFrame:
    """Find the deliveries that broke the order of their key, in one sweep over the keys.

    `running` is the delivery of another message of the key that still ran; `passed` is an earlier first delivery with
    a higher offset. A column is null if there is no such delivery.

    Args:
        resized: topics whose number of groups has changed. They are judged group by group, because a key may have
            moved to a new group while its last messages were in the old one.
        slack_us: microseconds by which the clocks of two hosts may differ.
    """
    group = F.when(F.col("topic").isin(*resized), F.col("group"))
    order = Window.partitionBy("topic", "key", group).orderBy("time_us", "offset")
    running = F.max(F.struct("until_us", "id", "source")).over(order.rowsBetween(Window.unboundedPreceding, -1))
    is_first = (F.col("rank") == 1) & (F.col("attempt") == 1) & (F.col("offset") >= 0)
    in_queue = Window.partitionBy("topic", "key", "group", "priority").orderBy("time_us", "offset")
    passed = F.max(F.when(is_first, F.struct("offset", "id", "time_us", "source")))
    passed = passed.over(in_queue.rowsBetween(Window.unboundedPreceding, -1))
    found = deliveries.withColumns({"running": running, "passed": passed})
    room = F.when(F.col("running.source") == F.col("source"), 0).otherwise(slack_us)
    overlaps = (F.col("running.until_us") - room > F.col("time_us")) & (F.col("running.id") != F.col("id"))
    near = (F.col("passed.source") != F.col("source")) & (F.col("time_us") - F.col("passed.time_us") <= slack_us)
    disorder = is_first & (F.col("passed.offset") > F.col("offset")) & ~near
    found = found.withColumns(
        {"running": F.when(overlaps, F.col("running")), "passed": F.when(disorder, F.col("passed"))}
    )
    return found.where(F.col("running").isNotNull() | F.col("passed").isNotNull())


def overlaps(followed: DataFrame) -> DataFrame:
    """Report deliveries that began while another message of their key ran; see `followed`."""
    found = followed.where(F.col("running").isNotNull()).withColumn("before", F.col("running"))
    return _pairs(
        found, "overlap", F.format_string("%s started while %s of the same key %s ran", "id", "before.id", "key")
    )


def disorder(followed: DataFrame, losses: DataFrame) -> DataFrame:
    """Report first deliveries that followed one of their queue and key with a higher offset; see `followed`.

    Args:
        losses: rows about messages that a store lost. The store gives out their offsets again, so offsets delivered
            after a host noticed a loss cannot be compared with offsets delivered before.
    """
    found = followed.where(F.col("passed").isNotNull()).withColumn("before", F.col("passed"))
    noticed = losses.select(
        F.col("topic").alias("t"),
        F.col("group").alias("g"),
        F.col("priority").alias("p"),
        F.col("time_us").alias("lost_us"),
    ).distinct()
    of_queue = (F.col("topic") == F.col("t")) & (F.col("group") == F.col("g")) & (F.col("priority") == F.col("p"))
    between = F.col("lost_us").between(F.col("before.time_us"), F.col("time_us"))
    found = found.join(F.broadcast(noticed), of_queue & between, "left_anti")
    text = F.format_string(
        "%s (offset %d) of key %s was started after %s (offset %d)", "id", "offset", "key", "before.id", "before.offset"
    )
    return _pairs(found, "disorder", text)


def passed_over(waiting: DataFrame, starts: DataFrame) -> DataFrame:
    """Report messages that were never started, although one of their key and queue with a higher offset was.

    Args:
        waiting: waiting messages with a key, see `spark.audit.waiting`.
        starts: started rows.
    """
    first = starts.where(F.col("key").isNotNull() & (F.col("attempt") == 1) & (F.col("offset") >= 0))
    place = ("topic", "group", "priority", "key_low")
    reached = first.withColumn("key_low", F.hash("key").cast("long")).groupBy(*place)
    latest = reached.agg(F.max(F.struct("offset", "id", "time_us", "source", "key")).alias("passed"))
    found = waiting.join(latest, list(place)).where(F.col("passed.offset") > F.col("offset"))
    text = F.format_string(
        "%s (offset %d) of key %s was never started, and %s (offset %d) was",
        *("id", "offset", "passed.key", "passed.id", "passed.offset"),
    )
    columns = ("topic", "group", "priority", "offset", "id")
    more = {"key": F.col("passed.key"), "source": F.col("passed.source"), "other": F.col("passed.id")}
    return found_in(found, "K", "passed over", *columns, at_us=F.col("passed.time_us"), text=text, **more)


def _pairs(found: DataFrame, kind: str, text: Column) -> DataFrame:
    """Make findings about a delivery and the one before it."""
    columns = ("topic", "group", "priority", "offset", "id", "key", "source")
    return found_in(found, "K", kind, *columns, other=F.col("before.id"), at_us=F.col("time_us"), text=text)
