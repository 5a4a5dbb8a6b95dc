"""The cap holds (Q): count starts in aligned seconds, and for smooth topics in every second, beginning anywhere."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from emq.topics import budgets, shares
from emq.topics.model import MICRO, Topic
from emq.trail import events
from spark.audit import local_rows
from spark.audit.events import only
from spark.audit.findings import found_in


class Cap(NamedTuple):
    """The cap on starts of one group, of all groups of a topic (`group` -1), or of all topics of a budget (`BUDGET`).

    Attributes:
        whole, part, den, phase: the quota is `whole` starts a second plus `part` / `den` of one, dealt out from
            `phase` on, see `emq.topics.shares`.
        most: most starts in any second of a smooth topic; 0 if aligned seconds count.
        since_s: second from which `part`, `den` and `phase` are known; before it, one start more may be allowed.
    """

    topic: str
    group: int
    whole: int
    part: int
    most: int
    den: int = MICRO
    phase: int = 0
    since_s: int = 0


BUDGET: Final = -2
"""Stands for all topics that share the budget of a topic, in the place of a group."""

_CAPS: Final = "topic string, `group` int, whole long, part long, most long, den long, phase long, since_s long"

LARGEST: Final = 4_000_000_000
"""Largest denominator that can be multiplied with seconds since the epoch in 64 bits."""
NEVER_S: Final = 1 << 40

Catalog = Sequence[Topic]


def of_catalogs(catalogs: Sequence[Catalog]) -> list[Cap]:
    """Return the highest caps in these catalogs.

    No trail tells when a quota changed, and hosts learn of a change at different times, so the highest cap counts
    throughout. A topic's cap holds for the sum of its groups in every second, also while the number of groups changes.
    Meanwhile one group may use the quota that another leaves, up to the most that any group may have.
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
    if topic.shared_s:
        yield Cap(topic.name, BUDGET, *divmod(round(topic.qps * MICRO), MICRO), 0)
    for group in range(0 if borrows else topic.groups):
        share = division.share(group)
        if smooth:
            pace = shares.pace(division, group, burst)
            most = math.floor(pace.quota + pace.most + 1e-9)
        if is_resized:
            share = shares.Share(max(share.ceiling, math.ceil(topic.group_qps)), 1, 0)
            most = most and share.num + math.floor(shares.burst_of(topic.qps, burst))
        yield _of_share(topic.name, group, share, most, 0 if is_resized else division.since_s)


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
    """Return the rows, and a copy of each for each budget of its topic, as of that topic and the group `BUDGET`."""
    if not charged:
        return rows
    pairs = F.broadcast(local_rows.frame(spark, charged, "topic string, budget string"))
    copies = rows.join(pairs, "topic").withColumns({"topic": F.col("budget"), "group": F.lit(BUDGET)}).drop("budget")
    return rows.unionByName(copies)


def _of_share(topic: str, group: int, share: shares.Share, most: int, since_s: int) -> Cap:
    divisor = math.gcd(share.num, share.den, share.phase)
    num, den, phase = (n // divisor for n in share)
    whole, part = divmod(num, den)
    if not part:
        return Cap(topic, group, whole, 0, most)
    return Cap(topic, group, whole, part, most, den, phase, since_s if den <= LARGEST else NEVER_S)


def _higher(one: Cap, other: Cap) -> Cap:
    if one == other:
        return one
    whole, part, _, den, *_ = max((one, other), key=lambda cap: cap.whole + cap.part / cap.den)[2:]
    phase = max(one.phase, other.phase)
    if part and one._replace(since_s=0) != other._replace(since_s=0):
        whole, part, phase = whole + 1, 0, 0  # in some seconds the lower quota allows one more than the higher one
    # Where the pacing changed, a sliding second can contain the end of one aligned second and the begin of the next.
    aligned = 0 if bool(one.most) == bool(other.most) else 2 * (whole + 1)
    since_s = max(one.since_s, other.since_s)
    return Cap(one.topic, one.group, whole, part, max(one.most, other.most, aligned), den, phase, since_s)


def resized(catalogs: Sequence[Catalog]) -> list[str]:
    """Return the topics whose number of groups has changed or is about to change."""
    counts: dict[str, set[int]] = defaultdict(set)
    for topic in (topic for topics in catalogs for topic in topics):
        counts[topic.name] |= {topic.active_groups, topic.groups}
    return sorted(name for name, found in counts.items() if len(found) > 1)


def frame(spark: SparkSession, caps: Sequence[Cap]) -> DataFrame:
    """Return the caps as a small data frame."""
    return local_rows.frame(spark, caps, _CAPS)


def unknown(seconds: DataFrame, caps: DataFrame) -> int:
    """Return the number of groups that started a message and have no cap."""
    whole = F.broadcast(caps.where(F.col("group") == -1).select("topic"))
    started = only(seconds, events.STARTED).join(whole, "topic", "left_anti")
    return started.select("topic", "group").distinct().count()


def exceeded(seconds: DataFrame, caps: DataFrame) -> DataFrame:
    """Find the seconds with more starts than the rule of the counter allows (`emq.trail.checks.window_allowance`).

    Args:
        seconds: starts counted by topic, group and second, see `spark.audit.seconds`.
    """
    in_windows = F.broadcast(caps.where(F.col("most") == 0))
    both, alone = F.array("group", F.lit(-1)), F.array("group")
    places = F.explode(F.when(F.col("group") == BUDGET, alone).otherwise(both)).alias("group")
    mine = only(seconds, events.STARTED).select("topic", places, "second", "source", "n")
    by_place = mine.groupBy("topic", "group", "second").agg(
        F.sum("n").alias("n"), (F.min("source") < F.max("source")).alias("moved")
    )
    judged = by_place.join(in_windows, ["topic", "group"])
    return judged.withColumn("allowed", _allowed("second")).where(F.col("n") > F.col("allowed"))


def aligned(over: DataFrame, starts: DataFrame, slack_us: int) -> DataFrame:
    """Report the seconds in which only one host started, and those that no difference of two clocks explains.

    Args:
        over: see `exceeded`.
        starts: started rows.
        slack_us: microseconds by which the clocks of two hosts may differ.
    """
    clear = over.where(~F.col("moved")).select("topic", "group", "second", "n", "allowed")
    doubtful = over.where(F.col("moved"))
    broken = clear.unionByName(_beyond_slack(doubtful, starts, slack_us))
    return found_in(
        broken,
        *("Q", "aligned second", "topic"),
        group=F.when(F.col("group") >= 0, F.col("group")),
        at_us=F.col("second") * MICRO,
        text=F.concat(
            F.format_string("%d started in second %d, %d allowed", "n", "second", "allowed"),
            F.when(F.col("group") == BUDGET, " to all topics of its budget").otherwise(""),
        ),
    )


def _allowed(second: str) -> Column:
    exact = f"whole + (part * ({second} + 1) + phase) div den - (part * {second} + phase) div den"
    return F.expr(f"if({second} < since_s, whole + if(part > 0, 1, 0), {exact})")


def _beyond_slack(doubtful: DataFrame, starts: DataFrame, slack_us: int) -> DataFrame:
    """Keep the seconds that no difference of two clocks explains. They are few, because groups seldom move."""
    around = doubtful.select(
        "topic", "group", "second", "n", "allowed", F.expr("struct(whole, part, den, phase, since_s)").alias("cap")
    )
    joined = _near(starts).join(F.broadcast(around), ["topic", "group", "second"])
    return joined.groupBy("topic", "group", "second").applyInArrow(_judge(slack_us), _SECONDS)


def _near(starts: DataFrame) -> DataFrame:
    """Repeat each start for each second at most two seconds away, by group and by topic (group -1)."""
    by_group = starts.select("topic", "group", "source", "time_us")
    by_topic = by_group.where(F.col("group") != BUDGET).withColumn("group", F.lit(-1))
    both = by_group.unionByName(by_topic)
    beside = F.expr(f"sequence(time_us div {MICRO} - 2, time_us div {MICRO} + 2)")
    return both.withColumn("second", F.explode(beside))


def _explained(over: DataFrame, starts: DataFrame, slack_us: int) -> DataFrame:
    """Find the stretches that a difference of clocks explains: topic, group, at."""
    around = over.select("topic", "group", "at", "most", F.expr(f"at div {MICRO}").alias("second"))
    joined = _near(starts).join(F.broadcast(around), ["topic", "group", "second"])
    return joined.groupBy("topic", "group", "at").applyInArrow(_judge_stretch(slack_us), _STRETCHES)


_STRETCHES: Final = "topic string, `group` int, at long"


def _judge_stretch(slack_us: int) -> Any:
    """Return a function that keeps one row of an explained stretch and none of another; it runs in a Python worker.

    The function gets the stretch with the starts around it.
    """

    def judge(key: Any, table: Any) -> Any:
        from emq.trail import skew

        found = sorted(zip(table["time_us"].to_pylist(), table["source"].to_pylist(), strict=True))
        from_us, most = key[2].as_py() - MICRO + 1, table["most"][0].as_py()
        is_explained = skew.explains_stretch(found, from_us, most, slack_us)
        return table.select(["topic", "group", "at"]).slice(0, int(is_explained))

    return judge


_SECONDS: Final = "topic string, `group` int, second long, n long, allowed long"


def _judge(slack_us: int) -> Any:
    """Return a function that judges one second by its starts and those around it; it runs in a Python worker."""

    def judge(key: Any, table: Any) -> Any:
        from emq.trail import skew

        second = key[2].as_py()
        cap = table["cap"][0].as_py()

        def allowed_in(each: int) -> int:
            if each < cap["since_s"]:
                return int(cap["whole"] + (cap["part"] > 0))
            upto = (cap["part"] * (each + 1) + cap["phase"]) // cap["den"]
            return int(cap["whole"] + upto - (cap["part"] * each + cap["phase"]) // cap["den"])

        found = sorted(zip(table["time_us"].to_pylist(), table["source"].to_pylist(), strict=True))
        names = ["topic", "group", "second", "n", "allowed"]
        keep = 0 if skew.explains_second(found, second, allowed_in, slack_us) else 1
        return table.select(names).slice(0, keep)

    return judge


def stretches(starts: DataFrame, caps: DataFrame) -> DataFrame:
    """Find stretches of one second, beginning anywhere, in which a smooth group started too many messages.

    Each start counts from its time until a second later. A stretch is listed once, with its first start too many.

    Args:
        starts: started rows.
    """
    smooth = F.broadcast(caps.where(F.col("most") > 0).select("topic", "group", "most"))
    places = F.explode(F.array("group", F.lit(-1))).alias("group")
    mine = starts.select("topic", places, "id", "time_us").join(smooth, ["topic", "group"])
    comes = F.struct(F.col("time_us").alias("at"), F.lit(1).alias("step"), F.col("id").alias("id"))
    goes = F.struct(
        (F.col("time_us") + MICRO).alias("at"), F.lit(-1).alias("step"), F.lit(None).cast("string").alias("id")
    )
    order = Window.partitionBy("topic", "group").orderBy("at", "step").rowsBetween(Window.unboundedPreceding, 0)
    both = mine.select("topic", "group", "most", F.inline(F.array(comes, goes)))
    swept = both.withColumn("n", F.sum("step").over(order))
    return swept.where((F.col("step") == 1) & (F.col("n") == F.col("most") + 1))


def sliding(stretches: DataFrame, starts: DataFrame, slack_us: int) -> DataFrame:
    """Report the stretches that no difference of two clocks explains.

    Args:
        stretches: see `stretches`.
        starts: started rows.
        slack_us: microseconds by which the clocks of two hosts may differ.
    """
    explained = F.broadcast(_explained(stretches, starts, slack_us))
    return found_in(
        stretches.join(explained, ["topic", "group", "at"], "left_anti"),
        *("Q", "sliding second", "topic", "id"),
        group=F.when(F.col("group") >= 0, F.col("group")),
        at_us=F.col("at"),
        text=F.format_string("%d started within the second up to %d us, %d allowed", "n", "at", "most"),
    )
