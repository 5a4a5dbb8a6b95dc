"""Priority (P): no start while a message of higher priority is ready in the same group.

The audit takes two steps. First a sweep over each group in order of time counts the ready messages of each priority; a
start is a *suspect* if a message of higher priority was ready. But the key of that message may have held it back. So
the checker of small trails (`emq.trail.checks.inversions`) then judges each group with suspects in full.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from emq.topics.model import MICRO
from emq.trail import checks, events
from emq_spark.audit.events import origin

_GOES, _LEAVES, _READY = 0, 1, 2
_PLACES: Final = 16
"""A number above the most priorities that a topic can have."""

_FOUND: Final = "topic string, `group` int, n long, text string"


def waiting(starts: DataFrame, owners: DataFrame) -> DataFrame:
    """Add `owned_us`, `since_us` and `until_us` to started rows.

    From `since_us` to `until_us` the message lay in the store although its owner should have fetched it
    (`emq.trail.checks.in_store`); both are null if there was no such time.

    Args:
        starts: started rows.
        owners: topic, group, source, epoch and owned_us of all ownerships.
    """
    owned = F.broadcast(owners.where(F.col("owned_us").isNotNull()).drop("released_us"))
    found = starts.join(owned, ["topic", "group", "source", "epoch"], "left")
    since = F.greatest("published_us", "owned_us") + round(checks.FETCH_S * MICRO)
    until = F.when(F.col("ready_us") > 0, F.col("ready_us")).otherwise(F.col("time_us"))
    until = until - round(checks.BEHIND_S * MICRO)
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
        rows: started rows, and ends of messages with a key.
        groups: suspects; few enough to send to every executor.
    """
    named = rows.withColumn("name", F.concat_ws("/", "topic", origin()))
    chosen = named.join(F.broadcast(groups), ["topic", "group"], "left_semi").select(
        *("event", "time_us", "topic", "group", "priority", "offset", "name", "key", "attempt", "source"),
        *("ready_us", "published_us", "epoch", "owned_us"),
    )
    found = chosen.groupBy("topic", "group").applyInArrow(_judge, _FOUND)
    return found.select(F.lit("P").alias("promise"), F.lit("inversion").alias("kind"), "topic", "group", "n", "text")


def _judge(key: Any, table: Any) -> Any:
    """Judge all starts of one group with the checker of small trails; runs in a Python worker."""
    import pyarrow as pa  # type: ignore[import-untyped]

    topic, group = (value.as_py() for value in key)
    place = f"{topic}/{group}"
    starts, ends = [], []
    owned = {}
    for row in table.sort_by([("time_us", "ascending"), ("offset", "ascending")]).to_pylist():
        if row["event"] == events.STARTED:
            row["place"] = place
            owned[row["source"], row["epoch"]] = row["owned_us"]
            starts.append(checks.Start(**{name: row[name] for name in checks.Start._fields}))
        else:
            row["final"] = row["event"] not in events.AGAIN
            ends.append(checks.End(**{name: row[name] for name in checks.End._fields}))
    found = checks.inversions(starts, ends, None, lambda _place, source, epoch: owned[source, epoch])
    lines = list(_lines(found.count, found.examples))
    return pa.table(
        {
            "topic": pa.array([topic] * len(lines), pa.string()),
            "group": pa.array([group] * len(lines), pa.int32()),
            "n": pa.array([n for n, _ in lines], pa.int64()),
            "text": pa.array([text for _, text in lines], pa.string()),
        }
    )


def _lines(count: int, examples: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield each example with the count 1, and one line with the count of the findings that are not listed."""
    yield from ((1, text) for text in examples)
    if count > len(examples):
        yield count - len(examples), f"and {count - len(examples)} more in this group"
