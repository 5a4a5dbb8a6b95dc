"""Ids that are published again and again, judged by the rules of `emq_proof.lives` and `emq_proof.contents`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from emq.trail import events
from emq_proof import contents, lives
from emq_proof.history_facts import Facts
from emq_proof.lives import Life, Step
from emq_spark.audit import workers
from emq_spark.audit.events import SENT, only, origin
from emq_spark.audit.findings import SCHEMA
from emq_spark.audit.messages import JUDGED

FOUND: Final = (
    "topic string, id string, `group` int, priority byte, offset long, first_us long, last_us long, started long, "
    "failed_attempt int, publishes long, delivered boolean, is_dead boolean, is_recalled boolean, is_open boolean, "
    "in_lane boolean, surplus long, died_again long, extra boolean, is_odd boolean, steps long, "
    "promise string, kind string, source string, at_us long, text string"
)
_COLUMNS: Final = ("topic", "priority", "has_crashed", *Step._fields)
_ORIGIN: Final = _COLUMNS.index("origin")
_NAME: Final = 1 + Step._fields.index("name")
_FAULT: Final = ("promise", "kind", "topic", "group", "id", "source", "at_us", "text")


def judged(
    rows: DataFrame, crashed: DataFrame, max_attempts: Mapping[str, int], slack_us: int, *, is_whole: bool
) -> DataFrame:
    """Return one row for each life and one for each fault, see `of` and `faults`.

    Args:
        rows: events of ids that may come back.
        crashed: see `emq_spark.audit.crashes.CRASHED`.
        max_attempts: by topic, the fewest attempts that any catalog allowed.
        slack_us: microseconds by which the clocks of publishers and hosts may differ.
        is_whole: whether no events are missing.
    """
    mine = _steps(rows)
    unsure = crashed.select("topic", "group", F.lit(True).alias("has_crashed")).distinct()
    mine = mine.join(F.broadcast(unsure), ["topic", "group"], "left")
    ordered = mine.repartition("topic", "origin").sortWithinPartitions("topic", "origin", *lives.ORDER)

    def judge(rows: Iterator[workers.Row]) -> Iterator[dict[str, Any]]:
        for (topic, name), steps in itertools.groupby(rows, key=lambda row: (row[0], row[_ORIGIN])):
            yield from _follow(topic, name, steps, Facts(max_attempts.get(topic), slack_us, is_complete=is_whole))

    chosen = ordered.select(*_COLUMNS)
    return workers.judged(chosen, judge, FOUND)


def too_early(rows: DataFrame, slack_us: int) -> DataFrame:
    """Report deliveries before the due time (T); arguments as for `judged`."""
    mine = only(_steps(rows), *contents.DUE).repartition("topic", "name")
    ordered = mine.sortWithinPartitions("topic", "name", "begun_us", "event")

    def judge(rows: Iterator[workers.Row]) -> Iterator[dict[str, Any]]:
        for (topic, name), mine in itertools.groupby(rows, key=lambda row: (row[0], row[_NAME])):
            steps = (Step(*values) for _, *values in mine)
            for fault in contents.too_early(steps, slack_us):
                yield {"topic": topic, "id": name, **fault._asdict()}

    return workers.judged(ordered.select("topic", *Step._fields), judge, SCHEMA)


def _steps(rows: DataFrame) -> DataFrame:
    """Return the events that lives consist of, with the columns of `emq_proof.lives.Step` and of its orders."""
    event, is_start = F.col("event"), F.col("event") == events.STARTED
    claimed_us = F.when(F.col("ready_us") > 0, F.col("ready_us"))
    return rows.where(event.isin(SENT, *lives.EVENTS)).withColumns(
        {
            "event": F.when(event == SENT, events.PUBLISHED).otherwise(event),
            "name": F.col("id"),
            "origin": origin(),
            "is_end": ~is_start,
            "begun_us": F.coalesce(F.when(is_start, claimed_us).otherwise(F.col("published_us")), F.col("time_us")),
        }
    )


def of(judged: DataFrame) -> DataFrame:
    """Return the lives, with the columns `emq_spark.audit.messages.JUDGED`."""
    return judged.where(F.col("promise").isNull()).select(*JUDGED)


def faults(judged: DataFrame) -> DataFrame:
    """Return the faults as findings."""
    return judged.where(F.col("promise").isNotNull()).select(*_FAULT)


def _follow(topic: str, name: str, rows: Iterator[workers.Row], facts: Facts) -> Iterator[dict[str, Any]]:
    """Yield the faults of one id, then its life; no events are held."""
    life = Life(facts.slack_us)
    found: dict[str, Any] = {"topic": topic, "id": name, "group": None, "priority": None, "started": 0}
    crashes: dict[int, tuple[tuple[float, float], ...]] = {}

    def steps() -> Iterator[Step]:
        for _, priority, has_crashed, *values in rows:
            step = Step(*values)
            life.add(step)
            found.setdefault("first_us", step.time_us)
            found["last_us"] = step.time_us
            found["started"] += step.event == events.STARTED
            for column, value in (("group", step.group), ("priority", priority)):
                found[column] = max((each for each in (found[column], value) if each is not None), default=None)
            if has_crashed and step.group is not None:
                crashes[step.group] = _AT_ANY_TIME
            yield step

    for fault in contents.judge(steps(), facts._replace(crashes=lambda group: crashes.get(group, ()))):
        yield {"topic": topic, "id": name, **fault._asdict()}
    is_over = bool(life.settled)
    yield {
        **found,
        "publishes": len(life.begun),
        "delivered": is_over,
        "is_dead": life.is_buried and not is_over,
        "is_recalled": bool(life.recalled) and not is_over,
        "is_open": life.is_published and life.is_open,
        "in_lane": True,
        "surplus": life.settled_again,
        "died_again": life.died_again,
        "extra": is_over and not life.is_published,
        "is_odd": False,
        "steps": 0,
    }


_AT_ANY_TIME: Final = ((0.0, math.inf),)
"""The times of crashes, for rules that ask only whether there was one."""
