"""What one audit leaves for the next, which then reads new segments only.

    <state>/state.json                   what was read, counts of what is done with, and which directory holds the rest
    <state>/audit-<n>/messages           counts of messages that are open, or that something happened to lately
    <state>/audit-<n>/recent             events of the last `carried_s`, of sorted topics as long as an id is open
    <state>/audit-<n>/seconds, owners    counts by second of the same time, and all ownerships
    <state>/audit-<n>/known              fingerprints of findings that were reported

The new directory is complete before `state.json` names it, so that an audit that is cut short leaves the old state.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession

from emq import errors
from emq.topics.model import Topic
from spark.audit import local_rows
from spark.audit.events import literal
from spark.audit.segments_read import SourceRun
from spark.audit.store import QueueView

VERSION = 3
FILE = "state.json"


class Done(msgspec.Struct):
    """Messages that are done with and no longer carried."""

    published: int = 0
    delivered: int = 0
    dead: int = 0
    dropped: int = 0
    forgotten: int = 0
    unseen: int = 0
    extra: int = 0
    unknown: int = 0
    refused: int = 0
    merged: int = 0
    events: int = 0
    segments: int = 0


class CatalogSeen(msgspec.Struct):
    """A catalog that an audit was given; it may have been in force until `until_us`, the last event audited since."""

    until_us: int
    topics: list[Topic]


class Saved(msgspec.Struct):
    """The contents of `state.json`.

    Attributes:
        audits: how many there were.
        violations: found so far, by promise.
        unknown: by topic, how many publishes have an unknown outcome.
        catalogs: the one that the last audit was given, and others before it whose time is still carried.
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
    """The state below a directory; without one, a state that is empty and not kept."""

    def __init__(self, spark: SparkSession, directory: Path | None) -> None:
        self._spark = spark
        self.directory = directory
        self.saved = Saved()
        if directory is not None and (directory / FILE).exists():
            self.saved = _load(directory / FILE)

    def carried(self, name: str, schema: str) -> DataFrame:
        """What the last audit left under a name; empty if it left nothing."""
        place = None if self.directory is None else self.directory / f"audit-{self.saved.audits}" / name
        if place is None or not place.exists():
            return local_rows.nothing(self._spark, schema)
        return self._spark.read.schema(schema).parquet(literal(place))

    def hand_on(self, saved: Saved, frames: dict[str, DataFrame]) -> None:
        """Write the next state, then let it be the state.

        Raises:
            OSError: it could not be written; the old one is still in force.
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


def _load(path: Path) -> Saved:
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
