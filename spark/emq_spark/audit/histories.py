"""Judge the histories of odd messages (D, X, T, M, P, O, E), by the rules of `emq.trail.histories`.

Most messages are published, started and settled once; `emq_spark.audit.messages` recognises them by sums in Spark. Only
the others (the *odd* ones) come here, with all their events, and Python workers judge them one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from emq.trail import events
from emq.trail.histories import Facts, Fault, Step, in_order, judge
from emq.trail.history_facts import Loss, Losses
from emq_spark.audit.events import SENT

Crashes = Mapping[tuple[str, int], Sequence[tuple[float, float]]]
"""Crashes by topic and group, see `emq.trail.history_facts.Facts`."""

FEW: Final = 1_000_000
"""Most odd messages whose ids Spark sends to every executor; with more, Spark sorts all events by message."""

_EVENTS: Final = (
    *(SENT, events.PUBLISHED, events.STARTED, events.SETTLED, *events.AGAIN, events.DEAD),
    *(events.REPLAYED, events.RECALLED, events.DOUBTED),
)
_FOUND: Final = (
    "promise string, kind string, topic string, `group` int, id string, source string, at_us long, text string, "
    "excused boolean"
)


def judged(
    rows: DataFrame,
    odd: DataFrame,
    messages: int,
    *,
    max_attempts: Mapping[str, int],
    crashes: Crashes,
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
        copied: topics with messages that may have been published twice without a record of the first publish.
    """
    chosen = odd.select("topic", "id", "steps")
    chosen = F.broadcast(chosen) if messages <= FEW else chosen
    mine = rows.where(F.col("event").isin(*_EVENTS)).join(chosen, ["topic", "id"])
    mine = mine.withColumn("event", F.when(F.col("event") == SENT, events.PUBLISHED).otherwise(F.col("event")))
    columns = ("topic", "id", "steps", *Step._fields)
    ordered = mine.select(*columns).repartition("topic", "id").sortWithinPartitions("topic", "id", "time_us")
    judge_all = _judge(dict(max_attempts), dict(crashes), frozenset(copied), slack_us, is_whole, dict(losses))
    return ordered.mapInArrow(judge_all, _FOUND)


def _judge(
    max_attempts: Mapping[str, int],
    crashes: Crashes,
    copied: Collection[str],
    slack_us: int,
    is_whole: bool,
    losses: Losses,
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def judge_all(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa  # type: ignore[import-untyped]

        for topic, name, whole, steps in _messages(batches):

            def crashes_of(group: int, topic: str = topic) -> Sequence[tuple[float, float]]:
                return crashes.get((topic, group), ())

            def lost(group: int, priority: int | None, topic: str = topic) -> Sequence[Loss]:
                return losses.get((topic, group, priority), ())

            facts = Facts(max_attempts.get(topic), slack_us, crashes_of, whole and is_whole, lost)
            if found := list(judge(name, steps, facts)):
                yield pa.RecordBatch.from_pylist([_finding(topic, name, fault, copied) for fault in found], _schema())

    return judge_all


def _messages(batches: Iterable[Any]) -> Iterator[tuple[str, str, bool, list[Step]]]:
    """Yield topic, id, whether all events are here, and the events in order, for one message after the other."""
    before: tuple[str, str, int] | None = None
    steps: list[Step] = []
    for batch in batches:
        for topic, name, expected, *values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if before is not None and (topic, name) != before[:2]:
                yield before[0], before[1], len(steps) >= before[2], in_order(steps)
                steps = []
            before = topic, name, expected
            steps.append(Step(*values))
    if before is not None:
        yield before[0], before[1], len(steps) >= before[2], in_order(steps)


def _finding(topic: str, name: str, fault: Fault, copied: Collection[str]) -> dict[str, Any]:
    return {
        "promise": fault.promise,
        "kind": fault.kind,
        "topic": topic,
        "group": fault.group,
        "id": name,
        "source": fault.source,
        "at_us": fault.at_us,
        "text": fault.text,
        "excused": fault.kind == "from two places" and topic in copied,
    }


def _schema() -> Any:
    import pyarrow as pa

    texts, numbers = pa.string(), pa.int64()
    return pa.schema(
        [
            *(("promise", texts), ("kind", texts), ("topic", texts), ("group", pa.int32()), ("id", texts)),
            *(("source", texts), ("at_us", numbers), ("text", texts), ("excused", pa.bool_())),
        ]
    )
