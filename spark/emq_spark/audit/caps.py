"""The cap holds (Q): count starts in aligned seconds, and for smooth topics in every second, beginning anywhere."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from emq.topics import budgets, tokens
from emq.topics.model import MICRO, Topic
from emq.topics.shares import Share
from emq.trail import events
from emq_proof import skew
from emq_proof.skew import Found
from emq_spark.audit import local_rows, workers
from emq_spark.audit.events import only
from emq_spark.audit.findings import found_in


class Cap(NamedTuple):
    """The cap on starts of all groups of a topic (`group` -1), or of all topics of a budget (`BUDGET`).

    A group has no cap of its own: the groups of a topic on one host draw from one counter.

    Attributes:
        whole, part, phase: the quota is `whole` starts a second plus `part` millionths of one, dealt out from `phase`
            on, see `emq.topics.shares`.
        most: most starts in any second of a smooth topic; 0 if aligned seconds count.
    """

    topic: str
    group: int
    whole: int
    part: int
    most: int
    phase: int = 0


BUDGET: Final = -2
"""Stands for all topics that share the budget of a topic, in the place of a group."""

_CAPS: Final = "topic string, `group` int, whole long, part long, most long, phase long"

Catalog = Sequence[Topic]

Explains = Callable[[Mapping[str, Any], Found], bool]


def of_catalogs(catalogs: Sequence[Catalog]) -> list[Cap]:
    """Return the highest caps in these catalogs.

    No trail tells when a quota changed, and hosts learn of a change at different times, so the highest cap counts
    throughout. A topic's cap holds for the sum of its groups in every second, also while the number of groups changes.
    """
    highest: dict[tuple[str, int], Cap] = {}
    for topics in catalogs:
        for cap in (cap for topic in topics for cap in _of_topic(topic)):
            other = highest.get((cap.topic, cap.group), cap)
            highest[cap.topic, cap.group] = _higher(cap, other)
    return list(highest.values())


def _of_topic(topic: Topic) -> Iterator[Cap]:
    smooth = topic.options.pacing == "smooth"
    burst = tokens.smooth_burst(topic.division, topic.options.burst)
    most = math.floor(topic.qps + burst + 1e-9) if smooth else 0
    total = topic.division.total
    yield Cap(topic.name, -1, *divmod(total.num, MICRO), most, total.phase)
    if topic.shared_s:
        yield Cap(topic.name, BUDGET, *divmod(total.num, MICRO), 0, total.phase)


def charges(catalogs: Sequence[Catalog]) -> list[tuple[str, str]]:
    """Return each topic with each budget in which its starts count, by the latest catalog that has the topic."""
    found: dict[str, list[str]] = {}
    for topics in reversed(catalogs):
        known = {topic.name: topic for topic in topics}
        for topic in topics:
            own = [topic.name] if topic.shared_s else []
            found[topic.name] = own + budgets.above(topic, known)
    return sorted((topic, budget) for topic, names in found.items() for budget in names)


def with_budgets(spark: SparkSession, rows: DataFrame, charged: Sequence[tuple[str, str]]) -> DataFrame:
    """Return the rows, and copies for each budget of their topic, under the budget's topic and the group `BUDGET`."""
    if not charged:
        return rows
    pairs = F.broadcast(local_rows.frame(spark, charged, "topic string, budget string"))
    copies = rows.join(pairs, "topic").withColumns({"topic": F.col("budget"), "group": F.lit(BUDGET)}).drop("budget")
    return rows.unionByName(copies)


def _higher(one: Cap, other: Cap) -> Cap:
    if one == other:
        return one
    quotas = [(cap.whole, cap.part, cap.phase) for cap in (one, other)]
    whole, part, phase = max(quotas)
    if part and quotas[0] != quotas[1]:
        whole, part, phase = whole + 1, 0, 0  # in some seconds the lower quota allows one more than the higher one
    # Where the pacing changed, a sliding second can contain the end of one aligned second and the begin of the next.
    aligned = 0 if bool(one.most) == bool(other.most) else 2 * (whole + 1)
    return Cap(one.topic, one.group, whole, part, max(one.most, other.most, aligned), phase)


def frame(spark: SparkSession, caps: Sequence[Cap]) -> DataFrame:
    """Return the caps as a small data frame."""
    return local_rows.frame(spark, caps, _CAPS)


def unknown(seconds: DataFrame, caps: DataFrame) -> int:
    """Return the number of groups that started a message and have no cap."""
    whole = F.broadcast(caps.where(F.col("group") == -1).select("topic"))
    started = only(seconds, events.STARTED).join(whole, "topic", "left_anti")
    return started.select("topic", "group").distinct().count()


def exceeded(seconds: DataFrame, caps: DataFrame) -> DataFrame:
    """Find the seconds with more starts than the rule of the counter allows (`emq.topics.shares.Share.allowance`).

    Args:
        seconds: starts counted by topic, group and second, see `emq_spark.audit.seconds`.
    """
    in_windows = F.broadcast(caps.where(F.col("most") == 0))
    mine = only(seconds, events.STARTED).select("topic", _place(), "second", "source", "n")
    by_place = mine.groupBy("topic", "group", "second").agg(
        F.sum("n").alias("n"), (F.min("source") < F.max("source")).alias("moved")
    )
    judged = by_place.join(in_windows, ["topic", "group"])
    allowed = F.expr(f"whole + (part * (second + 1) + phase) div {MICRO} - (part * second + phase) div {MICRO}")
    return judged.withColumn("allowed", allowed).where(F.col("n") > F.col("allowed"))


def aligned(over: DataFrame, starts: DataFrame, slack_us: int) -> DataFrame:
    """Report the seconds in which only one host started, and those that no difference of two clocks explains.

    Args:
        over: see `exceeded`.
        starts: started rows.
        slack_us: microseconds by which the clocks of two hosts may differ.
    """
    clear = over.where(~F.col("moved")).select("topic", "group", "second", "n", "allowed")
    doubtful = over.where(F.col("moved"))

    def explains(row: Mapping[str, Any], found: Found) -> bool:
        share = Share(row["whole"] * MICRO + row["part"], MICRO, row["phase"])
        return skew.explains_second(found, row["second"], share.allowance, slack_us)

    names = ("topic", "group", "second", "n", "allowed")
    broken = clear.unionByName(
        _beyond_slack(doubtful.select(*names, "whole", "part", "phase"), starts, explains, names)
    )
    return found_in(
        broken,
        *("Q", "aligned second", "topic"),
        at_us=F.col("second") * MICRO,
        text=F.concat(
            F.format_string("%d started in second %d, %d allowed", "n", "second", "allowed"),
            F.when(F.col("group") == BUDGET, " to all topics of its budget").otherwise(""),
        ),
    )


def _place() -> Column:
    """Return the place whose cap a row counts for: its topic, or the budget."""
    return F.when(F.col("group") == BUDGET, F.col("group")).otherwise(F.lit(-1)).alias("group")


def _beyond_slack(over: DataFrame, starts: DataFrame, explains: Explains, names: Sequence[str]) -> DataFrame:
    """Keep the rows that no difference of clocks explains. They are few, because groups seldom move.

    Args:
        over: the rows, with the columns topic, group and second.
        explains: function that tells from a row, and from time and source of each start near its second, whether a
            difference of clocks explains the row; it runs in a Python worker.
        names: columns of `over` to return, which identify a row.
    """
    beside = F.expr(f"sequence(time_us div {MICRO} - 2, time_us div {MICRO} + 2)")
    near = starts.select("topic", _place(), "source", "time_us").withColumn("second", F.explode(beside))
    joined = near.join(F.broadcast(over), ["topic", "group", "second"]).repartition(*names)
    ordered = joined.sortWithinPartitions(*names, "time_us", "source")
    others = [name for name in over.columns if name not in names]
    width = len(names) + len(others)

    def judge(rows: Iterator[workers.Row]) -> Iterator[dict[str, Any]]:
        for values, mine in itertools.groupby(rows, key=lambda row: row[:width]):
            row = dict(zip((*names, *others), values, strict=True))
            if not explains(row, [each[width:] for each in mine]):
                yield {name: row[name] for name in names}

    types = {each.name: each.dataType.simpleString() for each in over.schema}
    schema = ", ".join(f"`{name}` {types[name]}" for name in names)
    return workers.judged(ordered.select(*names, *others, "time_us", "source"), judge, schema)


def stretches(starts: DataFrame, caps: DataFrame) -> DataFrame:
    """Find stretches of one second, beginning anywhere, in which a smooth topic started too many messages.

    Each start counts from its time until a second later. A stretch is listed once, with its first start too many. The
    aligned seconds of a topic are counted apart, each with the starts that still count from the second before: so no
    task has to sort all starts of a topic.

    Args:
        starts: started rows.
    """
    smooth = F.broadcast(caps.where(F.col("most") > 0).select("topic", "group", "most"))
    mine = starts.select("topic", _place(), "id", "time_us").join(smooth, ["topic", "group"])
    second, no_id = F.expr(f"time_us div {MICRO}"), F.lit(None).cast("string")
    steps = [
        _step(second, F.col("time_us"), 1, F.col("id")),
        _step(second + 1, (second + 1) * MICRO - 1, 1, no_id),
        _step(second + 1, F.col("time_us") + MICRO, -1, no_id),
    ]
    every = mine.select("topic", "group", "most", F.inline(F.array(*steps)))
    order = Window.partitionBy("topic", "group", "second").orderBy("at", "step")
    swept = every.withColumn("n", F.sum("step").over(order.rowsBetween(Window.unboundedPreceding, 0)))
    is_start = F.expr(f"at div {MICRO}") == F.col("second")
    return swept.where(is_start & (F.col("step") == 1) & (F.col("n") == F.col("most") + 1))


def _step(second: Column, at: Column, step: int, id_: Column) -> Column:
    return F.struct(second.alias("second"), at.alias("at"), F.lit(step).alias("step"), id_.alias("id"))


def sliding(stretches: DataFrame, starts: DataFrame, slack_us: int) -> DataFrame:
    """Report the stretches that no difference of two clocks explains.

    Args:
        stretches: see `stretches`.
        starts: started rows.
        slack_us: microseconds by which the clocks of two hosts may differ.
    """

    def explains(row: Mapping[str, Any], found: Found) -> bool:
        return skew.explains_stretch(found, row["at"] - MICRO + 1, row["most"], slack_us)

    names = ("topic", "group", "at", "id", "n", "most")
    return found_in(
        _beyond_slack(stretches.select("second", *names), starts, explains, names),
        *("Q", "sliding second", "topic", "id"),
        at_us=F.col("at"),
        text=F.format_string("%d started within the second up to %d us, %d allowed", "n", "at", "most"),
    )
