"""Ownerships of groups (O), from records and starts of hosts, for the rules of `emq.trail.owners`; pauses at moves."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from emq.trail import events
from emq.trail.owners import Ownership
from emq_spark.audit.events import only
from emq_spark.audit.findings import found_in
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
        *("topic", "group", "source", "epoch"),
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


def _summed(frame: DataFrame) -> DataFrame:
    # A host that starts after its release has let go of the group all the same, unless it has taken it again.
    has_again = F.max("owned_us") > F.min("released_us")
    return frame.groupBy("topic", "group", "source", "epoch").agg(
        F.min("owned_us").alias("owned_us"),
        F.when(has_again, F.max("gone_us")).otherwise(F.min("released_us")).alias("released_us"),
        F.min("first_us").alias("first_us"),
        F.max("last_us").alias("last_us"),
    )


def by_strangers(rows: DataFrame, owned: DataFrame) -> DataFrame:
    """Report deaths and holes that a source recorded in a group that it never had (O); other ends need a start.

    Args:
        rows: events.
        owned: topic, group and source of all ownerships, with further columns.
    """
    place = ("topic", "group", "source")
    told = only(rows, *OWNERS_ONLY).groupBy(*place, "event").agg(F.min("time_us").alias("at_us"))
    found = told.join(F.broadcast(owned.select(*place).distinct()), list(place), "left_anti")
    text = F.format_string(
        "%s never owned the group, and recorded %s messages from %d us on", "source", "event", "at_us"
    )
    return found_in(found, "O", "not its owner", *place, at_us=F.col("at_us"), text=text)


def pauses(groups: Collection[Sequence[Ownership]]) -> Iterator[Pause]:
    """Yield the pause of each move from host to host: from the last start before to the first start after it."""
    for ownerships in groups:
        active = [o for o in ownerships if o.first_us is not None]
        for before, after in itertools.pairwise(active):
            if before.source != after.source and before.last_us is not None and after.first_us is not None:
                gap_us = max(0, after.first_us - before.last_us)
                yield Pause(after.topic, after.group, after.first_us, gap_us, before.released_us is not None)
