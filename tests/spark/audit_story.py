"""A clean run of hosts and publishers as lists of rows, to plant faults in, and to write as ledger and trail."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.spark import synthetic
from emq.storage.message import slot_id
from emq.topics.model import Kind, Topic, split
from emq.trail import events, schema, segments
from emq_spark.audit.store import LaneView, QueueView, StoreView
from emq_spark.load import ledger, ledger_reading

Row = dict[str, Any]
S = 1_000_000
T0_US = synthetic.T0_S * S
SHAPE = synthetic.Shape(topics=8, seconds=6)
MERGES = "merges"
SLOTS = "slots"
MADE_UP = 10**6
"""Numbers in the ledger from here on are given out anew when it is written."""


@dataclasses.dataclass
class Story:
    """Rows of the trail and of the ledger, and what the store says.

    Attributes:
        unclosed: sources whose trail has no last segment.
    """

    trail: list[Row]
    sent: list[Row]
    queues: dict[tuple[str, int, int], QueueView]
    waiting: list[tuple[str, str]]
    dead: list[tuple[str, str]]
    lanes: list[LaneView]
    unclosed: set[str] = dataclasses.field(default_factory=set)

    def topics(self) -> list[Topic]:
        return [*SHAPE.catalog(), split(Topic(MERGES, qps=20, kind=Kind.RANGE_MERGE, priorities=())), _many_slots()]

    @property
    def store(self) -> StoreView:
        return StoreView(list(self.queues.values()), self.lanes, self.waiting, self.dead)

    def of(self, topic: str, group: int, *names: str, **fields: Any) -> list[Row]:
        """Rows of the trail in order of time."""
        found = [
            row
            for row in self.trail
            if (row["topic"], row["group"]) == (topic, group)
            and (not names or row["event"] in names)
            and all(row[name] == value for name, value in fields.items())
        ]
        return sorted(found, key=lambda row: row["time_us"])

    def undelivered(self, message: str) -> Row:
        """Take out of the trail what hosts did with a message; answers its publish."""
        self.trail = [row for row in self.trail if row["id"] != message]
        return next(row for row in self.sent if row["id"] == message)

    def extra(self, topic: str, group: int, name: str, start_us: int, **fields: Any) -> None:
        """A delayed message more, delivered once."""
        like = self.of(topic, group, events.STARTED)[0]
        published = {"topic": topic, "group": group, "id": name, "sent_us": T0_US - S, "answered_us": T0_US - S}
        published["priority"] = 2
        self.sent.append({**_blank(ledger.SCHEMA), **published, "seq": 10**6, "outcome": ledger.PUBLISHED})
        start = {"time_us": start_us, "ready_us": start_us - 100, "id": name, "offset": -1, "priority": 2, "key": None}
        start |= {"published_us": T0_US - S, "epoch": 1 if start_us < T0_US + 3 * S else 2, **fields}
        owner = next(r for r in self.of(topic, group, events.OWNED) if r["epoch"] == start["epoch"])["source"]
        self.trail.append({**like, **start, "source": owner})
        self.trail.append(_end({**like, **start, "source": owner}, start_us + 500))

    def write(self, directory: Path, chosen: Callable[[Row], bool] = lambda _: True, seq: int = 0) -> None:
        """Write the rows that are chosen; those of a second call with a higher `seq` go on from the first."""
        trail = directory / "trail"
        trail.mkdir(parents=True, exist_ok=True)
        for source in sorted({row["source"] for row in self.trail}):
            rows = [_due(row) for row in self.trail if row["source"] == source and chosen(row)]
            _write_segment(trail, source, rows, seq, closed=source not in self.unclosed)
        writer = ledger.Writer(directory / "ledger", SHAPE.run, seq, 0)
        numbered = [
            {**row, "seq": row["seq"] if row["seq"] < MADE_UP else MADE_UP + i} for i, row in enumerate(self.sent)
        ]
        rows = [row for row in numbered if chosen({"time_us": row["answered_us"] or row["sent_us"]})]
        writer.append(len(rows), {n: [row[n] for row in rows] for n in ledger.SCHEMA.names if n not in _OWN})
        earlier = ledger_reading.find(directory / "ledger").runs.values()
        parts = (*(part for run in earlier for part in run.parts), writer.close())
        ledger.write_run(directory / "ledger", ledger.Run(SHAPE.run, 1, "a story", T0_US, T0_US + S, True, parts))


def _due(row: Row) -> Row:
    """A failure that does not say when it is to be tried again is so at once."""
    is_told = row["event"] != events.RETRIED or row["due_ms"] is not None
    return row if is_told else {**row, "due_ms": row["time_us"] // 1000}


_OWN = ("run", "partition")


def _many_slots() -> Topic:
    """With more slots than starts a second."""
    return split(Topic(SLOTS, qps=2, kind=Kind.RANGE_MERGE, slots=4, priorities=()))


def start_in_every_slot(story: Story, at_us: int) -> None:
    """Each slot starts one message of the topic at the same time."""
    for slot in range(4):
        name = slot_id(slot, f"in slot {slot}".encode())
        mine = {"topic": SLOTS, "group": slot}
        owned = {"event": events.OWNED, "time_us": T0_US, "epoch": 1, "source": "host-0", **mine}
        story.trail.append({**_blank(schema.SCHEMA), **owned})
        _publish(story, name, at_us - S)
        story.sent[-1] |= mine
        _deliver(story, name, at_us + slot)
        for row in story.trail[-2:]:
            row |= mine


def clean(directory: Path) -> Story:
    """A clean story: some 11,000 messages of eight tenants, what merges, and unknown publishes.

    Args:
        directory: for its files on the way.
    """
    ledgers, trail = synthetic.write(directory, SHAPE)
    sent = pq.ParquetFile(ledgers / f"run={SHAPE.run}" / "part-0-0-0.parquet").read().to_pylist()
    rows = pa.concat_tables([segments.read(trail).table]).to_pylist()
    queues = {}
    for topic in SHAPE.catalog():
        for group in range(topic.groups):
            for priority, each in enumerate((10, 15, 20)):
                tail = each * SHAPE.seconds
                queues[topic.name, group, priority] = QueueView(topic.name, group, priority, tail, 2, tail, tail)
    dead = [(row["topic"], row["id"]) for row in rows if row["event"] == events.DEAD]
    story = Story(rows, sent, queues, [], dead, [])
    _merge(story)
    _unknown(story)
    return story


def _merge(story: Story) -> None:
    """A sorted topic: each of its contents is published three times, of which once merged, and settled twice."""
    epoch = {"event": events.OWNED, "topic": MERGES, "group": 0, "time_us": T0_US, "epoch": 1, "source": "host-0"}
    story.trail.append({**_blank(schema.SCHEMA), **epoch})
    for i in range(20):
        name, at = slot_id(0, f"content {i}".encode()), T0_US + i * 200_000
        for start_us, waits_us in ((at, 500_000), (at + S, 630_000)):  # never two at a time
            _publish(story, name, start_us)
            _deliver(story, name, start_us + waits_us)
        _publish(story, name, at + S + 5, ledger.MERGED)


def _publish(story: Story, name: str, at_us: int, outcome: str = ledger.PUBLISHED) -> None:
    row = {"topic": MERGES, "group": 0, "id": name, "sent_us": at_us, "answered_us": at_us + 100, "seq": 10**6}
    story.sent.append({**_blank(ledger.SCHEMA), **row, "outcome": outcome})


def _deliver(story: Story, name: str, at_us: int) -> None:
    start = {"event": events.STARTED, "topic": MERGES, "group": 0, "priority": 0, "offset": -1, "attempt": 1}
    start |= {"time_us": at_us, "ready_us": at_us - 50, "epoch": 1, "source": "host-0", "id": name}
    story.trail.append({**_blank(schema.SCHEMA), **start})
    story.trail.append(_end(story.trail[-1], at_us + 200))


def publish_merged(story: Story, number: int, at_us: int, outcome: str = ledger.PUBLISHED) -> None:
    """Publish a content of the sorted topic once more."""
    _publish(story, slot_id(0, f"content {number}".encode()), at_us, outcome)


def deliver_merged(story: Story, number: int, at_us: int) -> None:
    """Deliver a content of the sorted topic once more."""
    _deliver(story, slot_id(0, f"content {number}".encode()), at_us)


def _unknown(story: Story) -> None:
    """Ten publishes whose outcome is not known, of which five were carried out."""
    for i in range(10):
        at = T0_US + i // 2 * S + 990_000 + i
        row = {"topic": "tenant-0001", "group": 4, "sent_us": at - 9, "error": "connection lost", "seq": 10**6 + i}
        story.sent.append({**_blank(ledger.SCHEMA), **row, "outcome": ledger.UNKNOWN})
        if i < 5:
            before = len(story.sent)
            story.extra("tenant-0001", 4, f"unknown-{i}", at)
            del story.sent[before:]


def _end(start: Row, time_us: int, event: str = events.SETTLED) -> Row:
    return {**start, "event": event, "time_us": time_us, "epoch": None, "ready_us": None, "published_us": None}


def end(start: Row, time_us: int, event: str = events.SETTLED) -> Row:
    """The end of a delivery."""
    return _end(start, time_us, event)


def _blank(fields: Any) -> Row:
    return dict.fromkeys(fields.names) | {"priority": 0}


def _write_segment(directory: Path, source: str, rows: Iterable[Row], seq: int, closed: bool) -> None:
    table = pa.Table.from_pylist(sorted(rows, key=lambda row: row["time_us"]), schema=schema.SCHEMA)
    times = table["time_us"].to_pylist() or [T0_US]
    header = segments.Header(source, T0_US, seq, min(times), max(times), 0, closed)
    segments.write(directory, header, table)
