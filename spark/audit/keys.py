"""Key order (K): messages of one key run one at a time, and first deliveries follow the order of their queue."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from emq.trail import events
from spark.audit.events import ENDINGS, NEVER_US, only, origin
from spark.audit.findings import found_in


def deliveries(rows: DataFrame, cut_short: Iterable[tuple[str, int, int]], *, failures_run: bool = True) -> DataFrame:
    """Started rows of messages with a key, with `until_us`: when that delivery ended, else when it was begun anew.

    What neither ended nor began anew counts as running for ever. On a host whose trail was cut short, what has no end
    there ran until then at the latest: it is begun anew by another host, and higher priorities may come before it.

    Args:
        rows: events with their key.
        cut_short: source, first and last event of each such run, in microseconds since the epoch.
        failures_run: a delivery that failed counts until the store knew of it, not only until its handler returned,
            which no event tells.
    """
    keyed = only(rows, events.STARTED, *ENDINGS).where(F.col("key").isNotNull()).withColumn("id", origin())
    is_start = F.col("event") == events.STARTED
    chosen = keyed.select(
        *("topic", "key", "id", "time_us", "source", "attempt", "group", "priority", "offset"),
        is_start.alias("is_start"),
        (F.col("event") == events.SETTLED).alias("succeeds"),
    )
    # By key already here: what follows goes by key, too, and needs no exchange of its own then.
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
        until = until.when(is_cut, F.least(anew, F.lit(last_us)))
    until = until.otherwise(anew)
    return chosen.where("is_start").withColumn("until_us", until).drop("next", "is_start", "succeeds")


def by_slot(rows: DataFrame, topics: Collection[str]) -> DataFrame:
    """Rows of topics that run one message of a slot at a time, with their slot for a key."""
    mine = rows.where(F.col("topic").isin(list(topics)))
    return mine.withColumn("key", F.concat(F.lit("slot "), F.col("group").cast("string")))


def followed(deliveries: DataFrame, resized: Collection[str], slack_us: int) -> DataFrame:
    """Those that began while another message of their key ran (`running`), or followed one with a higher offset
    (`passed`), each with that other delivery, or null; all in one sweep over the keys.

    Args:
        resized: topics whose number of groups has changed: a key may have gone to another group, beside the last of
            it in the old one, so they are judged group by group.
        slack_us: by how much the clocks of two hosts may differ.
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
    """Deliveries that began while another message of their key ran; see `followed`."""
    found = followed.where(F.col("running").isNotNull()).withColumn("before", F.col("running"))
    return _pairs(
        found, "overlap", F.format_string("%s started while %s of the same key %s ran", "id", "before.id", "key")
    )


def disorder(followed: DataFrame, losses: DataFrame) -> DataFrame:
    """First deliveries that followed one with a higher offset, in their queue and of their key; see `followed`.

    Args:
        losses: rows of messages that a store has lost. Their offsets are given out again, so the order of what is
            delivered after one was noticed says nothing about what was delivered before.
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
    """Messages that were never started, though one of their key and queue with a higher offset was.

    Args:
        waiting: those with a key, see `spark.audit.waiting`.
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
    """Findings of a delivery and the one before it."""
    columns = ("topic", "group", "priority", "offset", "id", "key", "source")
    return found_in(found, "K", kind, *columns, other=F.col("before.id"), at_us=F.col("time_us"), text=text)
