"""One owner (O): who had which group when, by what hosts recorded and by what they started; and pauses at moves."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from emq.trail import events, owners
from spark.audit_events import only

FIELDS = (
    "topic string, `group` int, source string, epoch long, owned_us long, released_us long, first_us long, last_us long"
)


@dataclasses.dataclass
class Ownership:
    """One group at one host under one epoch; times in microseconds since the epoch, None where nothing tells.

    Attributes:
        owned_us, released_us: when the host took the group, and let go of it in order.
        first_us, last_us: its first and last start.
    """

    topic: str
    group: int
    source: str
    epoch: int
    owned_us: int | None = None
    released_us: int | None = None
    first_us: int | None = None
    last_us: int | None = None

    @property
    def since_us(self) -> int:
        """The first that is known of it."""
        return min(t for t in (self.owned_us, self.first_us, self.released_us) if t is not None)

    @property
    def until_us(self) -> int:
        """The last that is known of it."""
        return max(t for t in (self.released_us, self.last_us, self.owned_us) if t is not None)


class Conflict(NamedTuple):
    """A host acted on a group while, or after, another one did under a higher or the same epoch; or, then `before` is
    `after`, without owning it by its own records."""

    before: Ownership
    after: Ownership
    text: str

    @property
    def kind(self) -> str:
        return "two owners" if self.before is not self.after else "not its owner"


class Pause(NamedTuple):
    """How long a group started nothing around a move, in microseconds; `clean` if it was released in order."""

    topic: str
    group: int
    at_us: int
    gap_us: int
    clean: bool


def table(rows: DataFrame, seconds: DataFrame) -> DataFrame:
    """All ownerships.

    Args:
        rows: events, of which those that say owned and released count.
        seconds: see `spark.audit_seconds`.
    """
    event = F.col("event")
    said = only(rows, events.OWNED, events.RELEASED).select(
        "topic",
        "group",
        "source",
        "epoch",
        F.when(event == events.OWNED, F.col("time_us")).alias("owned_us"),
        F.when(event == events.RELEASED, F.col("time_us")).alias("released_us"),
    )
    did = only(seconds, events.STARTED).select("topic", "group", "source", "epoch", "first_us", "last_us")
    return _summed(said.unionByName(did, allowMissingColumns=True))


def merged(found: DataFrame, carried: DataFrame) -> DataFrame:
    """Ownerships of this audit and of earlier ones, each once."""
    return _summed(found.unionByName(carried))


def _summed(frame: DataFrame) -> DataFrame:
    return frame.groupBy("topic", "group", "source", "epoch").agg(
        F.min("owned_us").alias("owned_us"),
        F.max("released_us").alias("released_us"),
        F.min("first_us").alias("first_us"),
        F.max("last_us").alias("last_us"),
    )


def by_group(ownerships: Iterable[Ownership]) -> dict[tuple[str, int], list[Ownership]]:
    """Ownerships of each group in order of their epochs."""
    groups: dict[tuple[str, int], list[Ownership]] = defaultdict(list)
    for ownership in ownerships:
        groups[ownership.topic, ownership.group].append(ownership)
    for found in groups.values():
        found.sort(key=lambda o: (o.epoch, o.since_us))
    return groups


def conflicts(groups: Collection[Sequence[Ownership]], slack_us: int, is_whole: bool) -> Iterator[Conflict]:
    """Two owners of one group at one time.

    Args:
        slack_us: by how much the clocks of two hosts may differ.
        is_whole: no records are missing.
    """
    for ownerships in groups:
        latest: Ownership | None = None
        for later in ownerships:
            yield from (Conflict(later, later, text) for text in owners.alone(_said(later), is_whole))
            if latest is not None and later.source != latest.source:
                overlap_us = latest.until_us - later.since_us
                if later.epoch == latest.epoch:
                    yield Conflict(
                        latest, later, f"{latest.source} and {later.source} both owned it under epoch {later.epoch}"
                    )
                elif overlap_us > slack_us:
                    yield Conflict(latest, later, _text(latest, later, overlap_us))
            if latest is None or later.until_us >= latest.until_us:
                latest = later


def _said(o: Ownership) -> owners.Ownership:
    place = f"{o.topic}/{o.group}"
    return owners.Ownership(place, o.source, o.epoch, o.owned_us, o.released_us, o.first_us, o.last_us)


def _text(before: Ownership, after: Ownership, overlap_us: int) -> str:
    did = "started a message" if before.until_us == before.last_us else "let go of it"
    return (
        f"{before.source} {did} under epoch {before.epoch} {overlap_us / 1e6:.3f} s after {after.source} "
        f"had taken it under epoch {after.epoch}"
    )


def pauses(groups: Collection[Sequence[Ownership]]) -> Iterator[Pause]:
    """Of each move from host to host: from the last start before to the first start after it."""
    for ownerships in groups:
        active = [o for o in ownerships if o.first_us is not None]
        for before, after in itertools.pairwise(active):
            if before.source != after.source and before.last_us is not None and after.first_us is not None:
                gap_us = max(0, after.first_us - before.last_us)
                yield Pause(after.topic, after.group, after.first_us, gap_us, before.released_us is not None)
