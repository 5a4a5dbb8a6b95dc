"""The cap holds (Q): starts counted in aligned seconds, and for smooth topics in every second, beginning anywhere."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from emq import shares
from emq.model import MICRO, Topic
from emq.trail import events, limits
from spark.audit_events import only
from spark.audit_findings import found_in


class Cap(NamedTuple):
    """What one group may start, or with `group` -1 all groups of a topic together.

    Attributes:
        whole, part: the quota in whole starts a second, and millionths of one.
        most: of a smooth topic: starts in any second; 0 where aligned seconds count.
    """

    topic: str
    group: int
    whole: int
    part: int
    most: int


Catalog = Sequence[Topic]


def of_catalogs(catalogs: Sequence[Catalog]) -> list[Cap]:
    """The highest caps that these catalogs say, each as it was at some time.

    When a quota was changed no trail tells, and hosts learn of it at different times, so the highest counts throughout.
    A topic's cap holds for the sum of its groups in every second, also while their number changes. Meanwhile a group
    may use what another one leaves, up to what a group may have at all.
    """
    highest: dict[tuple[str, int], Cap] = {}
    borrows = {topic.name for topics in catalogs for topic in topics if topic.options.borrow}
    changed = set(resized(catalogs))
    for topics in catalogs:
        for cap in (cap for topic in topics for cap in _of_topic(topic, topic.name in borrows, topic.name in changed)):
            other = highest.get((cap.topic, cap.group), cap)
            highest[cap.topic, cap.group] = _higher(cap, other)
    return list(highest.values())


def _of_topic(topic: Topic, borrows: bool, is_resized: bool) -> Iterator[Cap]:
    division, burst = topic.division, topic.options.burst
    smooth = topic.options.pacing == "smooth"
    most = math.floor(topic.qps + shares.smooth_burst(division, burst) + 1e-9) if smooth else 0
    yield Cap(topic.name, -1, *divmod(round(topic.qps * MICRO), MICRO), most)
    for group in range(0 if borrows else topic.groups):
        share = division.share(group)
        if smooth:
            pace = shares.pace(division, group, burst)
            most = math.floor(pace.quota + pace.most + 1e-9)
        if is_resized:
            share = shares.Share(max(share.ceiling, math.ceil(topic.group_qps)), 1, 0)
            most = most and share.num + math.floor(shares.burst_of(topic.qps, burst))
        elif share.phase or share.den != MICRO:
            share = limits.group_limit(share)
        yield Cap(topic.name, group, *divmod(share.num * MICRO // share.den, MICRO), most)


def _higher(one: Cap, other: Cap) -> Cap:
    whole, part = max(one[2:4], other[2:4])
    if part and one[2:4] != other[2:4]:
        whole, part = whole + 1, 0  # the lower quota may allow a start in a second in which the higher one does not
    # Where the pacing was changed: the end of one aligned second and the begin of the next are one sliding second.
    aligned = 0 if bool(one.most) == bool(other.most) else 2 * (whole + 1)
    return Cap(one.topic, one.group, whole, part, max(one.most, other.most, aligned))


def resized(catalogs: Sequence[Catalog]) -> list[str]:
    """Topics whose number of groups has changed, or is about to."""
    counts: dict[str, set[int]] = defaultdict(set)
    for topic in (topic for topics in catalogs for topic in topics):
        counts[topic.name] |= {topic.active_groups, topic.groups}
    return sorted(name for name, found in counts.items() if len(found) > 1)


def frame(spark: SparkSession, caps: Sequence[Cap]) -> DataFrame:
    """Caps as a small data frame."""
    return spark.createDataFrame(list(caps), "topic string, `group` int, whole long, part long, most long")


def unknown(seconds: DataFrame, caps: DataFrame) -> int:
    """How many groups have started something and have no cap."""
    started = only(seconds, events.STARTED).select("topic", "group").distinct()
    of_group = started.join(F.broadcast(caps), ["topic", "group"], "left_anti")
    whole = caps.where(F.col("group") == -1).select("topic")
    return of_group.join(F.broadcast(whole), "topic", "left_anti").count()


def aligned(seconds: DataFrame, caps: DataFrame) -> DataFrame:
    """Seconds with more starts than the counter's rule allows (`emq.trail.checks.window_allowance`).

    Args:
        seconds: starts counted by topic, group and second, see `spark.audit_seconds`.
    """
    in_windows = F.broadcast(caps.where(F.col("most") == 0))
    starts = only(seconds, events.STARTED)
    by_group = starts.groupBy("topic", "group", "second").agg(F.sum("n").alias("n"))
    sums = starts.groupBy("topic", "second").agg(F.sum("n").alias("n")).withColumn("group", F.lit(-1))
    counted = by_group.unionByName(sums).join(in_windows, ["topic", "group"])
    allowed = F.expr(f"whole + (part * (second + 1)) div {MICRO} - (part * second) div {MICRO}")
    over = counted.withColumn("allowed", allowed).where(F.col("n") > F.col("allowed"))
    return found_in(
        over,
        *("Q", "aligned second", "topic"),
        group=F.when(F.col("group") >= 0, F.col("group")),
        at_us=F.col("second") * MICRO,
        text=F.format_string("%d started in second %d, %d allowed", "n", "second", "allowed"),
    )


def sliding(starts: DataFrame, caps: DataFrame) -> DataFrame:
    """Stretches of one second, beginning anywhere, in which a smooth group started too many.

    Each start counts from its time until a second later; a stretch is named once, by the start that was one too many.

    Args:
        starts: started rows.
    """
    smooth = F.broadcast(caps.where(F.col("most") > 0).select("topic", "group", "most"))
    by_group = starts.select("topic", "group", "id", "time_us")
    mine = by_group.unionByName(by_group.withColumn("group", F.lit(-1))).join(smooth, ["topic", "group"])
    comes = mine.select("topic", "group", "most", "id", F.col("time_us").alias("at"), F.lit(1).alias("step"))
    goes = mine.select(
        "topic",
        "group",
        "most",
        F.lit(None).cast("string").alias("id"),
        (F.col("time_us") + MICRO).alias("at"),
        F.lit(-1).alias("step"),
    )
    order = Window.partitionBy("topic", "group").orderBy("at", "step").rowsBetween(Window.unboundedPreceding, 0)
    swept = comes.unionByName(goes).withColumn("n", F.sum("step").over(order))
    over = swept.where((F.col("step") == 1) & (F.col("n") == F.col("most") + 1))
    return found_in(
        over,
        *("Q", "sliding second", "topic", "id"),
        group=F.when(F.col("group") >= 0, F.col("group")),
        at_us=F.col("at"),
        text=F.format_string("%d started within the second up to %d us, %d allowed", "n", "at", "most"),
    )
