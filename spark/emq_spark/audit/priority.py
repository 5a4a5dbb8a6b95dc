"""Priority (P): no start while a message of higher priority is ready in the same group.

The audit takes two steps. First a sweep over each group in order of time counts the ready messages of each priority; a
group is a *suspect* if a message started while one of higher priority was ready. But the key of that message may have
held it back. So the second step judges the suspects by the rule of `emq_proof.priorities`, in Python workers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from emq.topics.model import MICRO
from emq.trail import events
from emq_proof import priorities
from emq_proof.priorities import NEVER_US, Step
from emq_spark.audit import workers
from emq_spark.audit.events import origin
from emq_spark.audit.findings import SCHEMA

_HOST: Final = ("topic", "group", "source")
_GOES, _LEAVES, _READY = 0, 1, 2
_PLACES: Final = 16
"""A number above the most priorities that a topic can have."""


def waiting(starts: DataFrame, owners: DataFrame) -> DataFrame:
    """Add `owned_us`, `since_us` and `until_us` to started rows.

    From `since_us` to `until_us` the message lay in the store although its owner should have fetched it
    (`emq_proof.priorities.in_store`); both are null if there was no such time.

    Args:
        starts: started rows.
        owners: see `emq_spark.audit.owners.beside`.
    """
    owned = owners.where(F.col("owned_us").isNotNull()).select("topic", "group", "source", "epoch", "owned_us")
    found = starts.join(owned, ["topic", "group", "source", "epoch"], "left")
    since = F.greatest("published_us", "owned_us") + round(priorities.FETCH_S * MICRO)
    until = F.when(F.col("ready_us") > 0, F.col("ready_us")).otherwise(F.col("time_us"))
    until = until - round(priorities.BEHIND_S * MICRO)
    first = F.col("key").isNull() & (F.col("attempt") == 1) & (F.col("offset") >= 0) & (F.col("published_us") > 0)
    stored = first & F.col("owned_us").isNotNull() & (since < until)
    return found.withColumns({"since_us": F.when(stored, since), "until_us": F.when(stored, until)})


def suspects(starts: DataFrame, priorities: int) -> DataFrame:
    """Find groups in which a start overtook a ready message, without regard to keys: topic, group.

    Args:
        starts: started rows of topics that serve strictly, see `waiting`.
        priorities: most priorities of a topic; with 1 or less there are no suspects.
    """
    rows = starts.select(
        *("topic", "group", "source", F.col("priority").cast("int").alias("p")),
        *("time_us", "ready_us", "since_us", "until_us"),
    )
    # A message that was not seen waiting is not counted, so its start does not lower a count.
    waited = (F.col("ready_us") > 0) & (F.col("ready_us") < F.col("time_us"))
    stored = F.col("since_us").isNotNull()
    steps = F.array(
        _step("time_us", _LEAVES, F.when(waited, -1).otherwise(0)),
        F.when(waited, _step("ready_us", _READY, F.lit(1))),
        F.when(stored, _step("since_us", _READY, F.lit(1))),
        F.when(stored, _step("until_us", _GOES, F.lit(-1))),
    )
    swept = rows.select("topic", "group", "source", "p", F.inline(steps)).where(F.col("at").isNotNull())
    order = Window.partitionBy("topic", "group", "source").orderBy("at").rowsBetween(Window.unboundedPreceding, 0)
    above = F.lit(0)
    for priority in range(priorities - 1):
        waiting = F.sum(F.when(F.col("p") == priority, F.col("step")).otherwise(0)).over(order)
        above = above + F.when(F.col("p") > priority, waiting).otherwise(0)
    swept = swept.withColumn("above", above)
    return swept.where((F.col("kind") == _LEAVES) & (F.col("above") > 0)).select("topic", "group").distinct()


def _step(time: str, kind: int, step: Column) -> Column:
    """Make one step of the sweep, with a sort number for time, then leaving before getting ready, then priority.

    One number sorts faster than three columns.
    """
    at = F.col(time) * (3 * _PLACES) + kind * _PLACES + F.col("p")
    return F.struct(at.alias("at"), F.lit(kind).alias("kind"), step.alias("step"))


def inversions(rows: DataFrame, groups: DataFrame) -> DataFrame:
    """Report the starts in these groups that overtook a ready message that nothing held back.

    Args:
        rows: started rows, see `waiting`, and ends of messages with a key.
        groups: suspects.
    """
    ordered = _steps(rows.join(groups, ["topic", "group"], "left_semi")).repartition(*_HOST)
    ordered = ordered.sortWithinPartitions(*_HOST, "time_us", "what", "started_us", "offset")
    return workers.judged(ordered.select(*_HOST, "id", "offset", *Step._fields), _judge, SCHEMA)


def _steps(rows: DataFrame) -> DataFrame:
    """Return the steps of `emq_proof.priorities.Step` of each start."""
    mine = rows.withColumns({"name": origin(), "is_start": F.col("event") == events.STARTED})
    message = ("topic", "group", "name")
    delivery = Window.partitionBy(*message, "source", "attempt").orderBy("time_us", F.desc("is_start"))
    at_host = Window.partitionBy(*message, "source", "epoch").orderBy(F.desc("is_start"), "time_us", "offset")
    ended_us = F.when(~F.col("is_start"), F.col("time_us"))
    final_us = F.when(~F.col("event").isin(*events.AGAIN), ended_us)
    starts = mine.withColumns(
        {
            "over_us": F.min(ended_us).over(delivery.rowsBetween(1, Window.unboundedFollowing)),
            "finished_us": F.max(final_us).over(Window.partitionBy(*message)),
            "is_first": F.row_number().over(at_host) == 1,
        }
    ).where("is_start")
    is_buffered = (F.col("ready_us") > 0) & (F.col("ready_us") < F.col("time_us"))
    is_stored = F.col("is_first") & F.col("since_us").isNotNull()
    over_us = F.coalesce("over_us", F.lit(NEVER_US))
    steps = F.array(
        _at("time_us", priorities.LEAVES, over_us),
        _at("time_us", priorities.STARTS, over_us),
        F.when(is_buffered, _at("ready_us", priorities.READY, over_us)),
        F.when(is_stored, _at("since_us", priorities.STORED, F.col("until_us"))),
        F.when(F.col("finished_us").isNotNull(), _at("finished_us", priorities.FINISHES, over_us)),
    )
    told = starts.withColumns({"started_us": F.col("time_us"), "priority": F.col("priority").cast("int")})
    told = told.select(*_HOST, "id", "offset", "name", "key", "priority", "finished_us", "started_us", F.inline(steps))
    return told.where(F.col("what").isNotNull())


def _at(time: str, what: int, until_us: Column) -> Column:
    return F.struct(F.col(time).alias("time_us"), F.lit(what).alias("what"), until_us.alias("until_us"))


def _judge(rows: Iterator[workers.Row]) -> Iterator[dict[str, Any]]:
    """Judge one group at one host after the other."""
    for (topic, group, source), mine in itertools.groupby(rows, key=lambda row: row[:3]):
        sweep = priorities.Sweep()
        for _, _, _, message_id, offset, *values in mine:
            step = Step(*values)
            if found := sweep.overtaken(step):
                other, above = found
                text = (
                    f"{message_id} (priority {step.priority}) started at {step.time_us} us while {other} (priority "
                    f"{above}) was ready"
                )
                place = {"topic": topic, "group": group, "priority": step.priority, "offset": offset, "id": message_id}
                more = {"other": other, "key": step.key, "source": source, "at_us": step.time_us, "text": text}
                yield {"promise": "P", "kind": "inversion", **place, **more}
