"""Ownerships of groups (O), from records and starts of hosts, for the rules of `emq_proof.owners`; pauses at moves.

The ownerships stay in Spark: there is one for each group, host and epoch. Windows over a group in order of the epochs
add to each ownership what the steps of the audit ask about its neighbours. Only the groups that may have had two owners
at a time go through Python, by the rules of the small proof.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from emq.trail import events
from emq_proof import owners
from emq_spark.audit import workers
from emq_spark.audit.events import only
from emq_spark.audit.findings import SCHEMA, found_in
from emq_spark.audit.seconds import OWNED

FIELDS = (
    "topic string, `group` int, source string, epoch long, owned_us long, released_us long, first_us long, last_us long"
)


OWNERS_ONLY: Final = (events.DEAD, events.SKIPPED)
"""Events that only an owner of the group records, also without a start."""


class Pause(NamedTuple):
    """The time `gap_us` in microseconds without starts at a group's move; `clean` if the former owner released it."""

    topic: str
    group: int
    at_us: int
    gap_us: int
    clean: bool


def table(seconds: DataFrame) -> DataFrame:
    """Return all ownerships.

    Args:
        seconds: see `emq_spark.audit.seconds`.
    """
    event = F.col("event")
    started = event == events.STARTED
    told = only(seconds, events.STARTED, *OWNED).select(
        *("topic", "group", "source", F.coalesce("epoch", F.lit(-1)).alias("epoch")),
        F.when(event == events.OWNED, F.col("first_us")).alias("owned_us"),
        F.when(event == events.RELEASED, F.col("first_us")).alias("released_us"),
        F.when(event == events.RELEASED, F.col("last_us")).alias("gone_us"),
        F.when(started, F.col("first_us")).alias("first_us"),
        F.when(started, F.col("last_us")).alias("last_us"),
    )
    return _summed(told)


def merged(found: DataFrame, carried: DataFrame) -> DataFrame:
    """Merge the ownerships of this audit with those of earlier ones; keep each once."""
    both = found.unionByName(carried)
    return _summed(both.withColumn("gone_us", F.col("released_us")))


def beside(owned: DataFrame, *, is_whole: bool) -> DataFrame:
    """Add to each ownership what concerns the others of its group.

    `since_us`, `until_us`: times of its first and last known event. `newer_us`: the first known event under a higher
    epoch. `age`: 1 for the newest ownership of the group, 2 for the one before. `former`: the ownership with starts
    before it (source, last_us, released_us). `suspect`: whether it may be in conflict with another one, or with its own
    records.

    Args:
        owned: see `merged`.
        is_whole: whether no records are missing.
    """
    since = F.least("owned_us", "first_us", "released_us").alias("since_us")
    until = F.greatest("released_us", "last_us", "owned_us").alias("until_us")
    found = owned.select("*", since, until)
    place = Window.partitionBy("topic", "group")
    order = place.orderBy("epoch", "since_us", "source")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    newer = place.orderBy("epoch").rangeBetween(1, Window.unboundedFollowing)
    started = F.when(F.col("first_us").isNotNull(), F.struct("source", "last_us", "released_us"))
    found = found.withColumns(
        {
            "newer_us": F.min("since_us").over(newer),
            "age": F.row_number().over(place.orderBy(F.desc("epoch"), F.desc("since_us"), F.desc("source"))),
            "former": F.last(started, ignorenulls=True).over(before),
            "busy_us": F.max("until_us").over(before),
            "was": F.lag("epoch").over(order),
        }
    )
    unowned = F.col("first_us").isNotNull() & F.col("owned_us").isNull() & F.lit(is_whole)
    early, late = F.col("first_us") < F.col("owned_us"), F.col("last_us") > F.col("released_us")
    together = (F.col("busy_us") > F.col("since_us")) | (F.col("was") == F.col("epoch"))
    suspect = F.coalesce(unowned | early | late | together, F.lit(False))
    return found.withColumn("suspect", suspect).drop("busy_us", "was")


def latest(owned: DataFrame, since_us: int) -> DataFrame:
    """Return the ownerships that lasted to `since_us` or longer, and the last two of each group; see `merged`.

    Args:
        owned: see `beside`.
    """
    return owned.where((F.col("age") <= 2) | (F.col("until_us") >= since_us)).select(*owners.Ownership._fields)


def conflicts(owned: DataFrame, slack_us: int, *, is_whole: bool) -> DataFrame:
    """Report two owners of a group at a time, and hosts that did not own their group by their own records (O).

    Args:
        owned: see `beside`; only groups with a suspect are judged.
        slack_us: microseconds by which the clocks of two hosts may differ.
        is_whole: whether no records are missing.
    """
    groups = owned.where("suspect").select("topic", "group").distinct()
    mine = owned.join(groups, ["topic", "group"], "left_semi").select(*owners.Ownership._fields, "since_us")
    order = ("topic", "group", "epoch", "since_us")
    ordered = mine.repartition("topic", "group").sortWithinPartitions(*order).drop("since_us")

    def judge(rows: Iterator[workers.Row]) -> Iterator[dict[str, Any]]:
        for _, found in itertools.groupby(map(owners.Ownership._make, rows), key=lambda each: each.place):
            for conflict in owners.conflicts(found, slack_us, is_whole):
                yield {
                    "promise": "O",
                    "kind": conflict.kind,
                    "topic": conflict.after.topic,
                    "group": conflict.after.group,
                    "source": conflict.before.source,
                    "other": conflict.after.source,
                    "at_us": conflict.after.since_us,
                    "text": conflict.text,
                }

    return workers.judged(ordered, judge, SCHEMA)


def _summed(frame: DataFrame) -> DataFrame:
    # A host that starts messages after its release has released the group all the same, unless it took the group again.
    has_again = F.max("owned_us") > F.min("released_us")
    return frame.groupBy("topic", "group", "source", "epoch").agg(
        F.min("owned_us").alias("owned_us"),
        F.when(has_again, F.max("gone_us")).otherwise(F.min("released_us")).alias("released_us"),
        F.min("first_us").alias("first_us"),
        F.max("last_us").alias("last_us"),
    )


def by_strangers(rows: DataFrame, owned: DataFrame) -> DataFrame:
    """Report deaths and holes that a source recorded in a group that it never had (O).

    Args:
        rows: events.
        owned: see `beside`.
    """
    place = ("topic", "group", "source")
    told = only(rows, *OWNERS_ONLY).groupBy(*place, "event").agg(F.min("time_us").alias("at_us"))
    found = told.join(owned.select(*place), list(place), "left_anti")
    text = F.format_string(
        "%s never owned the group, and recorded %s messages from %d us on", "source", "event", "at_us"
    )
    return found_in(found, "O", "not its owner", *place, at_us=F.col("at_us"), text=text)


def is_move() -> Column:
    """True for ownerships of a host with starts after those of another host."""
    return F.col("first_us").isNotNull() & (F.col("former.source") != F.col("source"))


def pauses(owned: DataFrame) -> DataFrame:
    """Return the pause of each move from host to host, from the last start before to the first start after it.

    Args:
        owned: see `beside`.
    """
    return owned.where(is_move()).select(
        *("topic", "group", F.col("first_us").alias("at_us")),
        F.greatest(F.lit(0), F.col("first_us") - F.col("former.last_us")).alias("gap_us"),
        F.col("former.released_us").isNotNull().alias("clean"),
    )
