"""Makes up clean ledgers and trails of any size; an audit must pass them, and tests plant faults in them.

Each tenant has five groups of 50 starts a second each, with a backlog from the first second to the last. In each second
a group starts 45 messages for the first time, in the order of their three priorities. With the rest of the quota the
group starts the messages that failed in the second before. One message in 100 fails once; one in 1,000 fails twice and
becomes a dead letter. Half of the tenants use keys, and a quarter is paced smoothly. In the middle of the run each
group moves from one host to another. If keys wait (`Shape.keys_wait`), the last message that a group with keys starts
in a second runs into the next second, and holds back the key of a message of the highest priority there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from emq.topics.model import Topic, TopicOptions, split
from emq.trail import events, schema, segments
from emq_spark.load import ledger

GROUPS = 5
QUOTA = 50
FRESH = 45
"""First deliveries of a group in a second; the rest of the quota is for retries."""
PRIORITIES = np.repeat([0, 1, 2], [10, 15, 20])
"""Priorities of the messages of one second, in the order in which the messages are started."""
HELD, HOLDER = 14, FRESH - 1
"""Of the messages of a second, the one that its key holds back, and the one that holds the key in the next second."""
HELD_PRIORITIES = np.repeat([0, 1, 0, 1, 2], [HELD - 5, 5, 1, 10, 20])
"""`PRIORITIES` where keys wait."""
STEP_US = 20_000
HANDLED_US = 2_000
HOLDS_US = 1_000_000 - (HOLDER - HELD) * STEP_US - 10_000
CHUNK = 1_000_000
T0_S = 1_700_000_000

Array = Any
"""A numpy array."""


@dataclass(frozen=True)
class Shape:
    """The size of a made-up run.

    Attributes:
        topics: number of tenants, of `GROUPS` groups each.
        seconds: seconds in which messages are started; messages = topics * 5 * 45 * seconds.
        hosts: number of hosts that share the groups, at least 2.
        run: id of the load run; also in the message ids.
        idle: number of further tenants, whose groups have owners and no messages.
        large: number of groups of the first tenant, a multiple of `GROUPS`.
        keys_wait: whether messages of the highest priority wait for their keys.
    """

    topics: int
    seconds: int
    hosts: int = 2
    run: str = "made-up"
    idle: int = 0
    large: int = GROUPS
    keys_wait: bool = False

    @classmethod
    def of(cls, messages: int, seconds: int, *, idle: int = 0, skew: float = 0.0, keys_wait: bool = False) -> Shape:
        """Return the shape of a run of at least `messages` messages in `seconds` seconds.

        Args:
            skew: share of the messages that the first tenant has at least.
        """
        tenants = -(-messages // (GROUPS * FRESH * seconds))
        of_first = max(1, min(tenants - 1, round(tenants * skew))) if skew else 1
        return cls(tenants - of_first + 1, seconds, idle=idle, large=of_first * GROUPS, keys_wait=keys_wait)

    @property
    def messages(self) -> int:
        return self.groups * FRESH * self.seconds

    @property
    def groups(self) -> int:
        """Number of groups that have messages; those of idle tenants follow them."""
        return self.large + (self.topics - 1) * GROUPS

    @property
    def owned(self) -> int:
        return self.groups + self.idle * GROUPS

    def tenant(self, group: Array) -> Array:
        """Return the numbers of the tenants of groups by number."""
        return np.maximum(0, (group - self.large) // GROUPS + 1)

    def index(self, group: Array) -> Array:
        """Return the numbers that groups have in their topics."""
        return np.where(group < self.large, group, (group - self.large) % GROUPS)

    def has_keys(self, group: Array) -> Array:
        """Return whether the messages of groups by number have keys."""
        return self.tenant(group) % 2 == 0

    def names(self, group: Array) -> Any:
        """Return the topic names of groups by number."""
        names = pa.array([f"tenant-{i:04d}" for i in range(int(self.tenant(group).max(initial=0)) + 1)])
        return pa.DictionaryArray.from_arrays(pa.array(self.tenant(group), pa.int32()), names).cast(pa.string())

    def catalog(self) -> list[Topic]:
        """Return the tenants as a catalog would have them."""
        return [
            split(
                Topic(
                    f"tenant-{i:04d}",
                    qps=(GROUPS if i else self.large) * QUOTA,
                    group_qps=QUOTA,
                    options=TopicOptions(pacing="smooth" if i % 4 == 3 else "window", max_attempts=2),
                )
            )
            for i in range(self.topics + self.idle)
        ]


@dataclass
class _Block:
    """The messages that are published in some seconds for all groups, as arrays in the order of their starts."""

    shape: Shape
    number: Array
    group: Array
    second: Array
    place: Array
    """The message's number among the 45 of its second."""

    @property
    def start_us(self) -> Array:
        return (T0_S + self.second) * 1_000_000 + self.place * STEP_US

    @property
    def priority(self) -> Array:
        return self._priorities[self.place]

    @property
    def _priorities(self) -> Array:
        return HELD_PRIORITIES if self.shape.keys_wait else PRIORITIES

    @property
    def offset(self) -> Array:
        """Offsets, dense in each queue, from 0."""
        mine = self._priorities[:, None] == np.arange(3)
        rank = (mine.cumsum(axis=0) * mine).sum(axis=1) - 1
        return self.second * mine.sum(axis=0)[self.priority] + rank[self.place]

    @property
    def end_us(self) -> Array:
        """Ends of the first deliveries."""
        is_last = (self.second + 1 == self.shape.seconds // 2) | (self.second + 1 == self.shape.seconds)
        return self.start_us + np.where(self._has_key_that_waits(HOLDER) & ~is_last, HOLDS_US, HANDLED_US)

    @property
    def ready_us(self) -> Array:
        """Times at which the first deliveries were ready."""
        usual_us = np.maximum(self.start_us // 1_000_000 * 1_000_000, self.start_us - 800_000)
        if not self.shape.keys_wait:
            return usual_us
        is_held = self._has_key_that_waits(HELD) & (self.second % (self.shape.seconds // 2) > 0)
        return np.where((self.place == HELD) & ~is_held, self.start_us - 500, usual_us)

    @property
    def keys(self) -> Any:
        """Keys: messages of every other tenant have one of 20 keys of their group, the others none."""
        waits = self._has_key_that_waits(HELD) | self._has_key_that_waits(HOLDER)
        number = pa.array(np.where(waits, -1 - self.group, self.group * 20 + self.number % 20))
        texts = pc.binary_join_element_wise("k", number.cast(pa.string()), "")
        return pc.if_else(pa.array(self.shape.has_keys(self.group)), texts, pa.scalar(None, pa.string()))

    def _has_key_that_waits(self, place: int) -> Array:
        return (self.place == place) & self.shape.has_keys(self.group) & self.shape.keys_wait

    @property
    def fails(self) -> Array:
        of_chain = self._has_key_that_waits(HELD) | self._has_key_that_waits(HOLDER)
        return ((self.number + 31 * self.second) % 100 == 7) & ~of_chain

    @property
    def dies(self) -> Array:
        return self.fails & ((self.number + 31 * self.second) % 1000 == 7)


def write(directory: Path, shape: Shape) -> tuple[Path, Path]:
    """Write a clean ledger and trail below `directory`; return their directories (ledger, trail)."""
    ledgers, trail = directory / "ledger", directory / "trail"
    trail.mkdir(parents=True, exist_ok=True)
    writer = ledger.Writer(ledgers, shape.run, 0, 0, rotate_rows=CHUNK)
    hosts = [_Host(trail, f"host-{i}", shape) for i in range(shape.hosts)]
    for block in _blocks(shape):
        _publish(writer, shape, block)
        for host in hosts:
            host.record(block)
    for host in hosts:
        host.close()
    part = writer.close()
    began, ended = T0_S * 1_000_000, (T0_S + shape.seconds) * 1_000_000
    ledger.write_run(ledgers, ledger.Run(shape.run, 1, "made up", began, ended, True, (part,)))
    return ledgers, trail


def _blocks(shape: Shape) -> Iterator[_Block]:
    """Yield blocks of some seconds. Numbers go over groups before seconds, so that failures are spread."""
    step = max(1, CHUNK // (shape.groups * FRESH))
    for begin in range(0, shape.seconds, step):
        seconds = np.arange(begin, min(begin + step, shape.seconds))
        second, place, group = (
            a.ravel() for a in np.meshgrid(seconds, np.arange(FRESH), np.arange(shape.groups), indexing="ij")
        )
        number = (second * shape.groups + group) * FRESH + place
        yield _Block(shape, number, group, second, place)


def ids(shape: Shape, number: Array) -> Any:
    """Return message ids."""
    return pc.binary_join_element_wise(f"{shape.run}-", pa.array(number).cast(pa.string()), "")


def _publish(writer: ledger.Writer, shape: Shape, block: _Block) -> None:
    sent = (T0_S + block.second) * 1_000_000 - 500_000 - block.number % 1000
    writer.append(
        len(sent),
        {
            "seq": block.number,
            "topic": shape.names(block.group),
            "group": shape.index(block.group),
            "priority": block.priority,
            "offset": block.offset,
            "id": ids(shape, block.number),
            "key": block.keys,
            "sent_us": sent,
            "answered_us": sent + 300,
            "outcome": ledger.PUBLISHED,
        },
    )


class _Host:
    """The trail of one host: it owns some groups in the first half, and its neighbour's groups in the second."""

    def __init__(self, directory: Path, name: str, shape: Shape) -> None:
        self._directory = directory
        self._name = name
        self._shape = shape
        self._index = int(name.rpartition("-")[2])
        self._half = shape.seconds // 2
        self._seq = 0
        self._held: list[Any] = []
        self._owned = [self._ownership(events.OWNED, 0), self._ownership(events.OWNED, 1)]
        self._owned.append(self._ownership(events.RELEASED, 0))
        self._write([])

    def record(self, block: _Block) -> None:
        """Record what this host does with the messages of a block, and with those that failed in the last one."""
        mine = self._chosen(block, self._is_mine(block.group, block.second))
        fails = block.fails
        failed = self._chosen(block, fails & self._is_mine(block.group, block.second + 1))
        tables = [
            *self._deliver(mine, 1, mine.start_us, np.where(mine.fails, events.RETRIED, events.SETTLED)),
            *self._deliver(
                failed,
                2,
                (T0_S + failed.second + 1) * 1_000_000 + 920_000 + failed.place * 1_000,
                np.where(failed.dies, events.DEAD, events.SETTLED),
            ),
        ]
        self._write([*self._owned, *tables], upto_us=(T0_S + int(block.second.max()) + 1) * 1_000_000)
        self._owned = []

    def close(self) -> None:
        self._write([self._ownership(events.RELEASED, 1)], closed=True)

    def _is_mine(self, group: Array, second: Array) -> Array:
        return (group + (second >= self._half)) % self._shape.hosts == self._index

    def _chosen(self, block: _Block, mask: Array) -> _Block:
        return _Block(self._shape, block.number[mask], block.group[mask], block.second[mask], block.place[mask])

    def _deliver(self, block: _Block, attempt: int, start_us: Array, ends: Array) -> list[Any]:
        rows = len(block.number)
        fresh = attempt == 1
        shared = {
            "topic": self._shape.names(block.group),
            "group": self._shape.index(block.group),
            "priority": block.priority,
            "offset": block.offset if fresh else np.full(rows, -1),
            "id": ids(self._shape, block.number),
            "key": block.keys,
            "attempt": np.full(rows, attempt),
        }
        started = {
            **shared,
            "event": [events.STARTED] * rows,
            "time_us": start_us,
            "epoch": self._epoch(start_us),
            "published_us": (T0_S + block.second) * 1_000_000 - 500_000 - block.number % 1000,
            "ready_us": block.ready_us if fresh else start_us - 500,
        }
        ended_us = block.end_us if fresh else start_us + 500
        ended = {**shared, "event": ends.tolist(), "time_us": ended_us, "reason": _reasons(ends)}
        ended["due_ms"] = pc.if_else(
            pa.array(ends == events.RETRIED), pa.array(ended_us // 1000 + 500), pa.scalar(None, pa.int64())
        )
        return [schema.table(self._name, columns, rows) for columns in (started, ended)]

    def _epoch(self, time_us: Array) -> Array:
        return np.where(time_us // 1_000_000 - T0_S >= self._half, 2, 1)

    def _ownership(self, event: str, half: int) -> Any:
        """Return the events with which the host takes or releases its groups of the first (0) or second (1) half."""
        group = np.arange(self._shape.owned)
        group = group[(group + half) % self._shape.hosts == self._index]
        begin = (T0_S + half * self._half) * 1_000_000
        end = (T0_S + (self._half if half == 0 else self._shape.seconds + 2)) * 1_000_000
        time_us = begin - 1_000 if event == events.OWNED else end - 5_000
        columns = {
            "event": [event] * len(group),
            "time_us": np.full(len(group), time_us),
            "topic": self._shape.names(group),
            "group": self._shape.index(group),
            "epoch": np.full(len(group), half + 1),
        }
        return schema.table(self._name, columns, len(group))

    def _write(self, tables: list[Any], upto_us: int = 1 << 62, closed: bool = False) -> None:
        """Write the events before `upto_us` in order of time, and keep the others for the next segment."""
        whole = pa.concat_tables([schema.table(self._name, {}, 0), *self._held, *tables]).sort_by("time_us")
        self._held = [whole.filter(pc.greater_equal(whole["time_us"], upto_us))]
        table = whole.filter(pc.less(whole["time_us"], upto_us))
        times = pc.min_max(table["time_us"]).as_py()
        first, last = times["min"] or T0_S * 1_000_000, times["max"] or T0_S * 1_000_000
        header = segments.Header(self._name, T0_S * 1_000_000, self._seq, first, last, 0, closed)
        segments.write(self._directory, header, table)
        self._seq += 1


def _reasons(ends: Array) -> Any:
    return pc.if_else(pa.array(ends == events.SETTLED), pa.scalar(None, pa.string()), "handler failed")
