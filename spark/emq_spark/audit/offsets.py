"""Compare open messages and checkpoints with the store (L, M, X).

An *open* message was published, and the trail shows no end of it (settled, dead, dropped or recalled). The store must
hold an open message: in its queue at or above the finished offsets, or in its group's lane or slot. No trail shows the
last moments of a killed host. So the audit believes a checkpoint about as many messages as the quotas of the host's
groups allow in `unwritten_s`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from emq.trail import events
from emq_spark.audit import local_rows
from emq_spark.audit.events import NEVER_US, only
from emq_spark.audit.findings import found_in
from emq_spark.audit.options import AuditOptions
from emq_spark.audit.store import QueueView, StoreView

QUEUES: Final = (
    "topic string, `group` int, priority int, watermark long, saved_epoch long, head long, tail long, "
    "finished array<struct<begin: long, end: long>>, incarnation long"
)
BLIND_GROUPS: Final = "topic string, `group` int, most long, until_us long"
"""The columns of groups whose owner's trail was cut short.

Of the messages published by `until_us` (microseconds since the epoch), such owners may have finished at most `most`
without a record.
"""

_IDS = "topic string, id string"

DROPPED, SKIPPED, QUEUED, LANE, DEAD, BLIND, CLAIMED = (
    *("dropped", "skipped", "queued", "in a lane or slot", "dead", "finished by a killed host", "claimed"),
)
FORGOTTEN: Final = "lost by the store"
PASSED, TRIMMED, BEYOND, NOWHERE, UNKNOWN = ("passed", "trimmed", "beyond the tail", "nowhere", "not asked")
LOST: Final[Mapping[str, str]] = {
    SKIPPED: "its offset was skipped as a hole",
    PASSED: "its offset is below the checkpoint, and nothing says that it was finished",
    TRIMMED: "its offset was trimmed from the store",
    BEYOND: "its offset is beyond what the store holds",
    NOWHERE: "it is in no lane, slot or dead letters",
}
_OVERRUN: Final[Mapping[str, tuple[str, str]]] = {
    SKIPPED: ("skipped", "was skipped as a hole, but holds"),
    PASSED: ("past what is finished", "is below the checkpoint without being finished:"),
    TRIMMED: ("trimmed past what is finished", "was trimmed without being finished:"),
}


def ended(live: bool) -> tuple[str, ...]:
    """Return the places of open messages that will have no more events.

    While hosts run (`live`), a message finished unseen is not among them, because its trail may still arrive.
    """
    return (DROPPED, FORGOTTEN) if live else (DROPPED, FORGOTTEN, BLIND)


def placed(
    open_: DataFrame,
    ranges: DataFrame,
    store: StoreView | None,
    blind: DataFrame,
    reached: DataFrame,
    *,
    drops: Collection[str],
    live: bool,
    slack_us: int,
) -> DataFrame:
    """Add `place` to the open messages: where each message is, or how it was lost (`LOST`).

    Args:
        open_: the open rows of `emq_spark.audit.messages.JUDGED`.
        ranges: dropped, skipped, lost and forgotten rows.
        store: the view of the store; None if nobody asked the store.
        blind: see `BLIND_GROUPS`.
        reached: see `reach`.
        drops: topics whose stores drop the oldest messages, even if no host has recorded that.
        live: hosts still run, so a message with an event after the look at the store may have moved since.
        slack_us: microseconds by which clocks may differ.
    """
    spark = open_.sparkSession
    ranged = open_.withColumn("place", F.lit(None).cast("string"))
    is_inside = F.col("offset") < F.col("end")
    was_there = F.coalesce("last_begun_us", "last_us") <= F.col("lost_us") + slack_us
    ranged = _in_ranges(ranged, only(ranges, events.DROPPED), DROPPED, is_inside & was_there)
    ranged = _in_ranges(ranged, only(ranges, events.SKIPPED), SKIPPED, is_inside)
    # A store that came back from a crash gives out all offsets from `begin` on again, also to later messages.
    ranged = _in_ranges(ranged, only(ranges, events.LOST), FORGOTTEN, F.col("last_us") <= F.col("lost_us"))
    # Nothing of the messages before is in the store, whatever it has at their offsets now.
    ranged = _in_ranges(ranged, only(ranges, events.FORGOTTEN), NOWHERE, F.col("last_us") <= F.col("lost_us"))
    if store is None:
        return ranged.withColumn("place", F.coalesce("place", F.lit(UNKNOWN)))
    queues = local_rows.frame(spark, store.queues, QUEUES)
    waiting = local_rows.frame(spark, store.waiting, _IDS).distinct().withColumn("waits", F.lit(True))
    dead = local_rows.frame(spark, store.letters(), _IDS).distinct().withColumn("died", F.lit(True))
    joined = (
        ranged.join(F.broadcast(queues), ["topic", "group", "priority"], "left")
        .join(waiting, ["topic", "id"], "left")
        .join(dead, ["topic", "id"], "left")
    )
    added = [name for name in queues.columns if name not in ("topic", "group", "priority")]
    found = joined.withColumn("place", F.coalesce("place", _by_store(drops))).drop(*added, "waits", "died")
    if live:
        moved = F.col("place").isin(*LOST) & (F.col("last_us") >= store.at_us - slack_us)
        found = found.withColumn("place", F.when(moved, QUEUED).otherwise(F.col("place")))
    return _excused(found, store, blind, reached)


def nowhere(messages: DataFrame) -> DataFrame:
    """Return an empty frame with the columns of `placed`, for an audit without open messages."""
    shape = messages.withColumn("place", F.lit(None).cast("string")).schema
    return local_rows.nothing(messages.sparkSession, shape)


def reach(starts: DataFrame, unclosed: Collection[str]) -> DataFrame:
    """Return how far owners whose trail was cut short had started each queue, as the trail shows.

    The columns are topic, group, priority, reach (the highest offset) and keyed (keys may have held back messages
    below `reach`).
    """
    found = starts.where(F.col("source").isin(list(unclosed)) & (F.col("offset") >= 0))
    return found.groupBy("topic", "group", "priority").agg(
        F.max("offset").alias("reach"), F.max(F.col("key").isNotNull()).alias("keyed")
    )


def blind(owned: DataFrame, quotas: DataFrame, unclosed: Collection[str], options: AuditOptions) -> DataFrame:
    """Return the groups of owners whose trail was cut short, see `BLIND_GROUPS`.

    Args:
        owned: see `emq_spark.audit.owners.beside`.
        quotas: topic and quota; topics without a known quota have no row.
    """
    killed = owned.where(F.col("source").isin(list(unclosed))).join(F.broadcast(quotas), "topic", "left")
    unseen = F.ceil(F.max("quota") * options.unwritten_s) * F.count("*")
    until_us = F.max(F.coalesce("newer_us", F.lit(NEVER_US))) + options.slack_us
    return killed.groupBy("topic", "group").agg(
        F.coalesce(unseen, F.lit(1 << 61)).alias("most"), until_us.alias("until_us")
    )


def _in_ranges(frame: DataFrame, ranges: DataFrame, place: str, condition: Column) -> DataFrame:
    """Set `place` for messages at or behind the begin of one of the ranges for which `condition` holds."""
    inside = of_queue() & (F.col("offset") >= F.col("begin")) & condition
    hit = frame.join(F.broadcast(spans(ranges)), inside, "left_semi").select("topic", "id").distinct()
    joined = frame.join(F.broadcast(hit.withColumn("hit", F.lit(True))), ["topic", "id"], "left")
    return joined.withColumn("place", F.coalesce("place", F.when(F.col("hit"), place))).drop("hit")


def spans(ranges: DataFrame) -> DataFrame:
    """Return the ranges of offsets, with column names that differ from those of messages."""
    return ranges.select(
        F.col("topic").alias("t"),
        F.col("group").alias("g"),
        F.col("priority").alias("p"),
        F.col("offset").alias("begin"),
        F.col("until").alias("end"),
        F.col("time_us").alias("lost_us"),
    ).distinct()


def of_queue() -> Column:
    return (F.col("topic") == F.col("t")) & (F.col("group") == F.col("g")) & (F.col("priority") == F.col("p"))


def was_lost(time_us: Column, slack_us: int) -> Column:
    """True if a store may have lost the message that was at an offset at this time; for a join with `spans`."""
    return of_queue() & (F.col("offset") >= F.col("begin")) & (time_us <= F.col("lost_us") + slack_us)


def _by_store(drops: Collection[str]) -> Column:
    offset = F.col("offset")
    in_range = F.exists("finished", lambda r: (r.begin <= offset) & (offset < r.end))
    finished = (F.col("saved_epoch") > 0) & ((offset < F.col("watermark")) | in_range)
    return (
        F.when(F.col("waits"), LANE)
        .when(F.col("died"), DEAD)
        .when(F.col("in_lane") | F.col("watermark").isNull(), NOWHERE)
        .when(finished, PASSED)
        .when(offset < F.col("head"), F.when(F.col("topic").isin(*drops), DROPPED).otherwise(TRIMMED))
        .when(offset >= F.col("tail"), BEYOND)
        .otherwise(QUEUED)
    )


def _excused(found: DataFrame, store: StoreView, blind: DataFrame, reached: DataFrame) -> DataFrame:
    """Excuse as many missing messages of each group as may be claimed or may have been finished unseen.

    A killed host cannot have finished messages that were published after the next host took its group. Hosts start
    queues in order, so a message finished after the trail's end was either started in the trail or lies above all
    offsets that the host had started.
    """
    spark = found.sparkSession
    claimed = local_rows.frame(spark, store.lanes, "topic string, `group` int, claimed int")
    joined = (
        found.join(F.broadcast(claimed), ["topic", "group"], "left")
        .join(blind, ["topic", "group"], "left")
        .join(reached, ["topic", "group", "priority"], "left")
    )
    in_order = F.col("in_lane") | (F.col("started") > 0) | (F.col("offset") > F.col("reach")) | F.col("keyed")
    in_time = F.coalesce(F.col("first_us") <= F.col("until_us"), F.lit(False))
    was_there = in_time & F.coalesce(in_order, F.lit(True))
    ranked = joined.withColumn("was_there", was_there).withColumns(
        {"rank": _rank("topic", "group", "place"), "seen_rank": _rank("topic", "group", "place", "was_there")}
    )
    in_prepare = (F.col("place") == NOWHERE) & (F.col("rank") <= F.col("claimed"))
    unseen = F.col("place").isin(NOWHERE, PASSED) & F.col("was_there") & (F.col("seen_rank") <= F.col("most"))
    place = F.when(in_prepare, CLAIMED).when(unseen, BLIND).otherwise(F.col("place"))
    return ranked.withColumn("place", place).drop(
        "rank", "seen_rank", "was_there", "claimed", "most", "until_us", "reach", "keyed"
    )


def _rank(*columns: str) -> Column:
    return F.row_number().over(Window.partitionBy(*columns).orderBy(F.desc("last_us"), "id"))


def lost(placed: DataFrame) -> DataFrame:
    """Report messages that are lost (L)."""
    return found_in(
        placed.where(F.col("place").isin(*LOST)),
        *("L", F.concat(F.lit("lost: "), "place"), "topic", "group", "priority", "offset", "id"),
        at_us=F.col("last_us"),
        text=F.concat("id", F.lit(" is lost: "), _by_place(LOST)),
    )


def overrun(placed: DataFrame) -> DataFrame:
    """Report progress that went past an unfinished message (M)."""
    kind, what = (_by_place({place: texts[i] for place, texts in _OVERRUN.items()}) for i in range(2))
    return found_in(
        placed.where(F.col("place").isin(*_OVERRUN)),
        *("M", kind, "topic", "group", "priority", "offset", "id"),
        at_us=F.col("last_us"),
        text=F.concat(F.format_string("offset %d of priority %d ", "offset", "priority"), what, F.lit(" "), "id"),
    )


def _by_place(texts: Mapping[str, str]) -> Column:
    return F.create_map(*(F.lit(text) for pair in texts.items() for text in pair))[F.col("place")]


def not_lost(messages: DataFrame, losses: DataFrame, slack_us: int) -> DataFrame:
    """Leave out messages that a store may have lost; their owner reads them again if the store has kept them.

    Args:
        messages: of `emq_spark.audit.messages.JUDGED`.
        losses: lost rows.
        slack_us: microseconds by which clocks may differ.
    """
    inside = was_lost(F.coalesce("last_begun_us", "first_us"), slack_us) & (F.col("offset") < F.col("end"))
    return messages.join(F.broadcast(spans(losses)), inside, "left_anti")


def rewound(starts: DataFrame, restarted: DataFrame, losses: DataFrame, slack_us: int) -> DataFrame:
    """Report offsets with two first deliveries by one owner under one epoch (M), unless a store lost the offset.

    Args:
        starts: started rows.
        restarted: topic and id of messages that were started from their queues more than once.
        losses: lost rows.
    """
    starts = starts.where((F.col("attempt") == 1) & (F.col("offset") >= 0))
    # Starts after the loss was noticed do not count.
    starts = starts.join(F.broadcast(spans(losses)), was_lost(F.col("time_us"), slack_us), "left_anti")
    mine = starts.join(restarted.select("topic", "id"), ["topic", "id"], "left_semi")
    counted = mine.groupBy("topic", "group", "priority", "offset", "id", "source", "epoch").agg(
        F.count("*").alias("times"), F.max("time_us").alias("at_us")
    )
    return found_in(
        counted.where(F.col("times") > 1),
        *("M", "backwards", "topic", "group", "priority", "offset", "id", "source", "at_us"),
        text=F.format_string(
            "offset %d (%s) was delivered %d times by %s under epoch %d", "offset", "id", "times", "source", "epoch"
        ),
    )


def dropped(drops: DataFrame, refusing: Sequence[str]) -> DataFrame:
    """Report messages that were dropped to make room in topics that refuse new messages instead (L).

    Args:
        drops: dropped rows.
        refusing: topics that never dropped their oldest messages.
    """
    ranges = drops.where((F.col("reason") == "max_length") & F.col("topic").isin(list(refusing)))
    return found_in(
        ranges,
        *("L", "dropped", "topic", "group", "priority", "offset", "source"),
        at_us=F.col("time_us"),
        n=F.col("until") - F.col("offset"),
        text=F.format_string(
            "offsets %d to %d were dropped, although the topic refuses new messages instead", "offset", "until"
        ),
    )


def regressed(
    queues: Sequence[QueueView],
    before: Sequence[QueueView],
    topics: Collection[str] | None,
    forgotten: Collection[tuple[str, int, int]] = (),
) -> list[dict[str, Any]]:
    """Return findings about queues: checkpoint beyond the tail or behind an earlier audit's, made again, gone (M).

    Args:
        queues: the queues now.
        before: the queues at the last audit.
        topics: names of the topics that exist; None if unknown. A queue that is gone with its topic was deleted.
        forgotten: topic, group and priority of queues that the store forgot in between. They are others now.
    """
    earlier = {(q.topic, q.group, q.priority): q for q in before}
    earlier = {place: q for place, q in earlier.items() if place not in forgotten}
    found: list[dict[str, Any]] = []
    there = {q.topic: 0 for q in queues} if topics is None else topics
    groups = {name: max((q.group for q in queues if q.topic == name), default=-1) for name in {q.topic for q in before}}
    now_there = {(q.topic, q.group, q.priority) for q in queues}
    for place, was in sorted(earlier.items()):
        # The queues of a retired group disappear when they are empty.
        is_retired = was.group > groups[was.topic] and was.watermark >= was.tail
        if place not in now_there and was.topic in there and not is_retired:
            text = f"priority {was.priority}: the queue was there at the last audit, and is gone"
            found.append({"promise": "M", "kind": "gone", **_where(was), "offset": was.watermark, "text": text})
    for q in queues:
        texts = []
        if q.watermark > q.tail:
            texts.append(("past the tail", f"the checkpoint {q.watermark} is beyond the tail {q.tail}"))
        former = earlier.get((q.topic, q.group, q.priority))
        if former is not None and former.incarnation not in (0, q.incarnation):
            texts.append(("made again", "the queue was lost with its store and made again since the last audit"))
        elif former is not None:
            for name in ("watermark", "head", "tail", "epoch"):
                now, then = getattr(q, name), getattr(former, name)
                if now < then:
                    texts.append(("backwards", f"{name} went back from {then} to {now} since the last audit"))
        found += [
            {"promise": "M", "kind": kind, **_where(q), "offset": q.watermark, "text": f"priority {q.priority}: {text}"}
            for kind, text in texts
        ]
    return found


def _where(queue: QueueView) -> dict[str, Any]:
    return {"topic": queue.topic, "group": queue.group, "priority": queue.priority}
