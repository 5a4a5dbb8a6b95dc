"""Key order (K): messages of one key run one at a time, and first deliveries follow the order of their queue."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from emq.trail import events
from emq_proof.owners import UNTOLD_US
from emq_spark.audit import offsets
from emq_spark.audit.events import ENDINGS, NEVER_US, SENT, count, only, origin
from emq_spark.audit.findings import found_in

_AHEAD: Final = ("group", "time_us", "source")


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
        *("topic", "key", "id", "time_us", "source", "attempt", "group", "priority", "offset", "epoch", "published_us"),
        is_start.alias("is_start"),
        (F.col("event") == events.SETTLED).alias("succeeds"),
    )
    # Partitioned by key here already, so that the next steps, which go by key too, need no exchange.
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


def followed(deliveries: DataFrame, slack_us: int) -> DataFrame:
    """Find the deliveries that broke the order of their key, in one sweep over the keys.

    `running` is the delivery of another message of the key that still ran; `passed` is an earlier first delivery with
    a higher offset; `ahead` is an earlier first delivery from another group of the topic of a message whose publish
    began later. A column is null if there is no such delivery.

    Args:
        slack_us: microseconds by which the clocks of two hosts may differ.
    """
    # Of several that began at one time, those that ended at once come first: the others may have begun after them.
    order = Window.partitionBy("topic", "key").orderBy("time_us", "until_us")
    running = F.max(F.struct("until_us", "id", "source", "group")).over(
        order.rowsBetween(Window.unboundedPreceding, -1)
    )
    is_first = (F.col("rank") == 1) & (F.col("attempt") == 1) & (F.col("offset") >= 0)
    # Of several, the one that was published last is enough: if it came from this group, its offset is higher.
    any_group = Window.partitionBy("topic", "key", "priority").orderBy("time_us", "offset")
    ahead = F.max(F.when(is_first & (F.col("published_us") > 0), F.struct("published_us", "id", *_AHEAD)))
    ahead = ahead.over(any_group.rowsBetween(Window.unboundedPreceding, -1))
    in_queue = Window.partitionBy("topic", "key", "group", "priority").orderBy("time_us", "offset")
    passed = F.max(F.when(is_first, F.struct("offset", "id", "time_us", "source", "epoch")))
    passed = passed.over(in_queue.rowsBetween(Window.unboundedPreceding, -1))
    found = deliveries.withColumns({"running": running, "passed": passed, "ahead": ahead})
    room = F.when(F.col("running.source") == F.col("source"), 0).otherwise(slack_us)
    overlaps = (F.col("running.until_us") - room > F.col("time_us")) & (F.col("running.id") != F.col("id"))
    # Two owners' starts are in the order of their epochs, so clocks explain only the reverse, see `emq_proof.keys`.
    is_later = F.coalesce(F.col("passed.epoch") > F.col("epoch"), F.lit(True))
    near = (
        is_later
        & (F.col("passed.source") != F.col("source"))
        & (F.col("time_us") - F.col("passed.time_us") <= slack_us)
    )
    disorder = is_first & (F.col("passed.offset") > F.col("offset")) & ~near
    late_us = F.when(F.col("ahead.source") == F.col("source"), 0).otherwise(slack_us)
    overtaken = (
        is_first
        & (F.col("ahead.group") != F.col("group"))
        & (F.col("ahead.published_us") > F.col("published_us"))
        & (F.col("time_us") > F.col("ahead.time_us") + late_us)
    )
    seen = {"running": overlaps, "passed": disorder, "ahead": overtaken}
    found = found.withColumns({name: F.when(condition, F.col(name)) for name, condition in seen.items()})
    return found.where(F.coalesce(*(F.col(name).getField("id") for name in seen)).isNotNull())


def overlaps(followed: DataFrame, doubtful: DataFrame | None = None) -> DataFrame:
    """Report deliveries that began while another message of their key ran; see `followed`.

    Args:
        doubtful: topics and groups of killed hosts, or of stores that have lost messages; None for none. A message
            that such a group repeats may run beside messages of its key that has moved to another group meanwhile.
    """
    found = followed.where(F.col("running").isNotNull()).withColumn("before", F.col("running"))
    if doubtful is not None:
        unsure, moved = doubtful.toDF("t", "g"), F.col("group") != F.col("before.group")
        for group in ("group", "before.group"):
            of_group = (F.col("topic") == F.col("t")) & (F.col(group) == F.col("g"))
            found = found.join(unsure, of_group & moved, "left_anti")
    return _pairs(
        found, "overlap", F.format_string("%s started while %s of the same key %s ran", "id", "before.id", "key")
    )


def disorder(followed: DataFrame, losses: DataFrame) -> DataFrame:
    """Report first deliveries that followed one of their queue and key with a higher offset; see `followed`.

    Args:
        losses: rows about messages that a store lost, or about queues that it forgot. The store gives out their
            offsets again, so offsets delivered after such a row cannot be compared with offsets delivered before.
    """
    found = followed.where(F.col("passed").isNotNull()).withColumn("before", F.col("passed"))
    between = F.col("lost_us").between(F.col("before.time_us"), F.col("time_us"))
    found = found.join(F.broadcast(offsets.spans(losses)), offsets.of_queue() & between, "left_anti")
    text = F.format_string(
        "%s (offset %d) of key %s was started after %s (offset %d)", "id", "offset", "key", "before.id", "before.offset"
    )
    return _pairs(found, "disorder", text)


def overtaken(followed: DataFrame, rows: DataFrame, doubtful: DataFrame, slack_us: int) -> DataFrame:
    """Report first deliveries that a later message of their key had overtaken in another group; see `followed`.

    A key comes to another group when its topic's number of groups changes. Offsets of two groups cannot be compared, so
    this goes by publishes that followed each other: one was done before the other began, and both are certain.

    Args:
        rows: events.
        doubtful: topics and groups whose first deliveries may not all be recorded, or may be repeats.
    """
    found = followed.where(F.col("ahead").isNotNull()).join(doubtful, ["topic", "group"], "left_anti")
    both = F.explode(F.array("id", "ahead.id")).alias("id")
    told = only(rows, SENT, events.PUBLISHED, events.DOUBTED)
    told = told.join(F.broadcast(found.select("topic", both).distinct()), ["topic", "id"], "left_semi")
    is_sent = F.col("event") == SENT
    publishes = told.groupBy("topic", "id").agg(
        F.min(F.coalesce("published_us", "time_us")).alias("begun_us"),
        F.max("time_us").alias("done_us"),
        # A ledger does not tell which task published.
        F.max(F.when(~is_sent, F.col("source"))).alias("publisher"),
        count(is_sent).alias("sent"),
        count(F.col("event") == events.PUBLISHED).alias("published"),
        count(F.col("event") == events.DOUBTED).alias("doubted"),
    )
    sure = publishes.where((F.col("doubted") == 0) & (F.col("sent") < 2) & (F.col("published") < 2))
    later = sure.select(
        "topic",
        F.col("id").alias("later_id"),
        F.col("begun_us").alias("later_us"),
        F.col("publisher").alias("later_publisher"),
    )
    found = (
        found.withColumn("later_id", F.col("ahead.id")).join(sure, ["topic", "id"]).join(later, ["topic", "later_id"])
    )
    same = F.coalesce(F.col("publisher") == F.col("later_publisher"), F.lit(False))
    follows = F.col("later_us") > F.col("done_us") + F.when(same, 0).otherwise(slack_us)
    text = F.format_string(
        "%s of key %s was started in group %d after %s in group %d, which was published later",
        *("id", "key", "group", "before.id", "before.group"),
    )
    return _pairs(found.where(follows).withColumn("before", F.col("ahead")), "disorder", text)


def passed_over(waiting: DataFrame, starts: DataFrame, losses: DataFrame) -> DataFrame:
    """Report messages that were never started, although a message of their key and queue with a higher offset was.

    Args:
        waiting: waiting messages with a key, see `emq_spark.audit.waiting`.
        starts: started rows.
        losses: as for `disorder`; starts before them passed over nothing that is published after them.
    """
    begun = F.broadcast(offsets.spans(losses))
    starts = starts.join(begun, offsets.was_lost(F.col("time_us"), 0), "left_anti")
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
