"""The state that one audit leaves for the next, so that the next audit reads new segments only.

    <state>/state.json                   names of the segments read, counts of finished messages, number n of the audit
    <state>/audit-<n>/messages           counts of messages that are open or have recent events
    <state>/audit-<n>/recent             events of the last `carried_s`; of sorted topics as long as an id is open
    <state>/audit-<n>/seconds, owners    counts by second of the same time; the recent and last ownerships
    <state>/audit-<n>/known              fingerprints of findings that were reported

The new directory is complete before `state.json` names it, so an audit that is cut short leaves the old state.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from emq.runtime import errors
from emq.topics.model import Topic
from emq.trail.runs import SourceRun
from emq_spark.audit import local_rows
from emq_spark.audit.events import literal
from emq_spark.audit.store import QueueView

VERSION = 5
FILE = "state.json"


class Done(msgspec.Struct):
    """Counts of messages that are finished and no longer carried, under the names of the result."""

    events: int = 0
    segments: int = 0
    published: int = 0
    merged: int = 0
    delivered: int = 0
    dead: int = 0
    dropped: int = 0
    lost_by_store: int = 0
    finished_unseen: int = 0
    publishes_unknown: int = 0
    publishes_refused: int = 0
    not_published_here: int = 0


class CatalogSeen(msgspec.Struct):
    """A catalog that an audit was given.

    The catalog may have been in force until `until_us`: the last event of the audit that was given the next catalog.
    """

    until_us: int
    topics: list[Topic]


class Saved(msgspec.Struct):
    """The contents of `state.json`.

    Attributes:
        audits: number of audits so far.
        violations: number of violations so far, by promise.
        unknown: by topic, number of publishes with an unknown outcome.
        catalogs: earlier catalogs whose time is still carried; the last one was given to the last audit.
    """

    version: int = VERSION
    audits: int = 0
    sources: dict[str, SourceRun] = msgspec.field(default_factory=dict)
    ledger_names: list[str] = msgspec.field(default_factory=list)
    done: Done = msgspec.field(default_factory=Done)
    queues: list[QueueView] = msgspec.field(default_factory=list)
    violations: dict[str, int] = msgspec.field(default_factory=dict)
    unknown: dict[str, int] = msgspec.field(default_factory=dict)
    catalogs: list[CatalogSeen] = msgspec.field(default_factory=list)


class State:
    """The state below a directory; without a directory, an empty state that is not kept."""

    def __init__(self, spark: SparkSession, directory: Path | None) -> None:
        self._spark = spark
        self.directory = directory
        self.saved = Saved() if directory is None else saved_in(directory)

    def carried(self, name: str, schema: str | StructType) -> DataFrame:
        """Return the frame that the last audit left under a name; an empty frame if there is none."""
        place = None if self.directory is None else self.directory / f"audit-{self.saved.audits}" / name
        if place is None or not place.exists():
            return local_rows.nothing(self._spark, schema)
        return self._spark.read.schema(schema).parquet(literal(place))

    def hand_on(self, saved: Saved, frames: dict[str, DataFrame]) -> None:
        """Write the next state, then replace the old state with it.

        Raises:
            OSError: the state could not be written; the old one is still in force.
        """
        if self.directory is None:
            return
        saved.audits = self.saved.audits + 1
        place = self.directory / f"audit-{saved.audits}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for name, frame in frames.items():
            frame.write.parquet(str(place / name))
        temporary = self.directory / f"_{FILE}.tmp"
        temporary.write_bytes(msgspec.json.encode(saved))
        temporary.replace(self.directory / FILE)
        shutil.rmtree(self.directory / f"audit-{saved.audits - 1}", ignore_errors=True)


def saved_in(directory: Path) -> Saved:
    """Return the state that the last audit left; an empty state if there was none.

    Raises:
        InvalidSettings: it cannot be read, or another version of this program wrote it.
    """
    path = directory / FILE
    if not path.exists():
        return Saved()
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=Saved)
    except (OSError, msgspec.DecodeError) as exc:
        raise errors.InvalidSettings(
            f"audit state {str(path)!r} cannot be read ({exc}); name another directory"
        ) from exc
    if saved.version != VERSION:
        raise errors.InvalidSettings(
            f"audit state {str(path)!r} is of version {saved.version}, this program writes {VERSION}; start a new one"
        )
    return saved
