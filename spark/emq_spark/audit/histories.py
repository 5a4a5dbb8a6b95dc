"""Judge the histories of odd messages (D, X, T, M, P, O, E), by the rules of `emq_proof.histories`.

Most messages are published, started and settled once; `emq_spark.audit.messages` recognises them by sums in Spark. Only
the others (the *odd* ones) come here, with all their events, and Python workers judge them one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from emq.trail import events
from emq_proof.histories import in_order, judge
from emq_proof.history_facts import Facts, Loss, Losses, Step
from emq_spark.audit import workers
from emq_spark.audit.events import SENT
from emq_spark.audit.findings import SCHEMA

Crashes = Mapping[int, Sequence[tuple[int, int]]]
"""Crashes by group, see `emq_proof.history_facts.Facts`."""

FEW: Final = 1_000_000
"""Most odd messages whose ids Spark sends to every executor; with more, Spark sorts all events by message."""

_LOSS: Final = ("topic", "group", "priority", "offset", "time_us")
_EVENTS: Final = (
    *(SENT, events.PUBLISHED, events.STARTED, events.SETTLED, *events.AGAIN, events.DEAD),
    *(events.REPLAYED, events.RECALLED, events.DOUBTED),
)


def judged(
    rows: DataFrame,
    odd: DataFrame,
    messages: int,
    *,
    max_attempts: Mapping[str, int],
    crashed: DataFrame,
    crash_us: int,
    copied: Collection[str],
    slack_us: int,
    is_whole: bool,
    losses: Losses,
) -> DataFrame:
    """Return findings about these messages.

    Args:
        rows: events.
        odd: topic, id and steps of the messages; only ids that are published once.
        messages: number of rows of `odd`.
        max_attempts: by topic, the fewest attempts that any catalog allowed.
        is_whole: True if no events are missing.
        crashed: see `emq_spark.audit.crashes.CRASHED`.
        crash_us: `AuditOptions.crash_s` in microseconds.
        copied: topics with messages that may have been published twice without a record of the first publish.
    """
    chosen = odd.select("topic", "id", "steps")
    chosen = F.broadcast(chosen) if messages <= FEW else chosen
    mine = rows.where(F.col("event").isin(*_EVENTS)).join(chosen, ["topic", "id"])
    mine = mine.withColumn("event", F.when(F.col("event") == SENT, events.PUBLISHED).otherwise(F.col("event")))
    span = F.struct((F.col("ended_us") - crash_us).alias("from_us"), "until_us")
    crashes = crashed.groupBy("topic", "group").agg(F.collect_list(span).alias("crashes"))
    mine = mine.join(crashes, ["topic", "group"], "left")
    columns = ("topic", "id", "steps", "crashes", *Step._fields)
    ordered = mine.select(*columns).repartition("topic", "id").sortWithinPartitions("topic", "id", "time_us")

    def judge_all(rows: Iterator[workers.Row]) -> Iterator[dict[str, Any]]:
        for topic, name, whole, steps, crashes in _messages(rows):

            def crashes_of(group: int, crashes: Crashes = crashes) -> Sequence[tuple[int, int]]:
                return crashes.get(group, ())

            def lost(group: int, priority: int | None, topic: str = topic) -> Sequence[Loss]:
                return losses.get((topic, group, priority), ())

            facts = Facts(max_attempts.get(topic), slack_us, crashes_of, whole and is_whole, lost)
            for fault in judge(name, steps, facts):
                excused = fault.kind == "from two places" and topic in copied
                yield {"topic": topic, "id": name, "excused": excused, **fault._asdict()}

    return workers.judged(ordered, judge_all, SCHEMA)


def losses_by_queue(losses: DataFrame) -> Losses:
    """Return what stores have lost, from the rows about losses."""
    found: dict[tuple[str, int, int | None], list[Loss]] = {}
    for topic, group, priority, *loss in losses.select(*_LOSS).distinct().collect():
        found.setdefault((topic, group, priority), []).append(Loss(*loss))
    return found


def _messages(rows: Iterator[workers.Row]) -> Iterator[tuple[str, str, bool, list[Step], Crashes]]:
    """Yield topic, id, whether all events are here, the events in order, and crashes, for one message after another."""
    for (topic, name), mine in itertools.groupby(rows, key=lambda row: row[:2]):
        steps, crashes, whole = [], {}, 0
        for _, _, expected, spans, *values in mine:
            step, whole = Step(*values), expected
            steps.append(step)
            crashes[step.group] = [(span["from_us"], span["until_us"]) for span in spans or ()]
        yield topic, name, len(steps) >= whole, in_order(steps), crashes
