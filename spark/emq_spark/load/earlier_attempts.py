"""The messages that earlier attempts at a partition noted in the ledger, and those that they left in doubt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from emq.runtime import errors
from emq_spark.load import ledger
from emq_spark.load import state as load_state
from emq_spark.load.batch import Batch
from emq_spark.load.random import Array

_QUEUE = ["topic", "group", "priority"]
_COLUMNS = ["seq", *_QUEUE, "offset", "id", "outcome"]


class End(NamedTuple):
    """The end of the messages that a queue has in the ledger.

    Attributes:
        offset: the one after the last message's.
        uid: identity of the last message.
    """

    offset: int
    uid: str


class Earlier(NamedTuple):
    """The work of earlier attempts.

    Attributes:
        attempt: number of the attempt that begins now; 0 for the first.
        begin_us: begin of the first attempt, microseconds since the epoch; 0 if there was none.
        begun: slices below this number may have been published.
        seqs: numbers of the messages whose outcome is in the ledger, ascending; these are not published again.
        ends: by (topic, group, priority) of the queues written to, the end of the known messages.
        counts: number of messages in the ledger by topic and outcome.
        segments: (attempt, number of its segments) of each attempt that wrote segments.
    """

    attempt: int
    begin_us: int
    begun: int
    seqs: Array
    ends: Mapping[tuple[str, int, int], End]
    counts: Mapping[str, Mapping[str, int]]
    segments: tuple[tuple[int, int], ...] = ()

    def left(self, batches: Iterable[Batch]) -> list[Batch]:
        """Return the messages without an outcome in the ledger."""
        found = []
        for batch in batches:
            seqs = np.asarray(batch.seqs, dtype=np.int64)
            places = np.flatnonzero(~self._has(seqs)).tolist()
            if len(places) == len(batch):
                found.append(batch)
            elif places:
                found.append(batch.only(places))
        return found

    def _has(self, seqs: Array) -> Array:
        """Return which of these messages are in the ledger; each is looked up: a ledger is long, and a batch short."""
        if not len(self.seqs):
            return np.zeros(len(seqs), dtype=bool)
        at = np.minimum(np.searchsorted(self.seqs, seqs), len(self.seqs) - 1)
        return self.seqs[at] == seqs


def of(directory: Path | str, run: str, partition: int) -> Earlier:
    """Read the ledger and the state of earlier attempts.

    Raises:
        EMQError: one of their segments is damaged, so nobody can know which messages were published.
    """
    place = ledger.directory_of(directory, run)
    state = load_state.state_of(place, partition) if place.exists() else None
    segments = _segments(place, partition)
    attempt = 1 + max([-1 if state is None else state.attempt, *(attempt for _, attempt in segments)])
    begin_us, begun = (0, 0) if state is None else (state.begin_us, state.begun)
    if not segments:
        return Earlier(attempt, begin_us, begun, np.array([], dtype=np.int64), {}, {})
    tables, ends = [], dict[tuple[str, int, int], End]()
    for path, _ in segments:
        read = _read(path)
        for queue, end in _ends(read).items():
            if queue not in ends or ends[queue].offset <= end.offset:
                ends[queue] = end
        tables.append(read.drop_columns("id"))  # ids are long, and only the last ones count
    table = pa.concat_tables(tables)
    seqs = np.unique(table["seq"].to_numpy())
    written = tuple(sorted(Counter(attempt for _, attempt in segments).items()))
    return Earlier(attempt, begin_us, begun, seqs, ends, _counts(table), written)


def _segments(place: Path, partition: int) -> Sequence[tuple[Path, int]]:
    """Return the segments in the order of their writing, each with the number of its attempt."""
    named = ((path, ledger.SEGMENT.fullmatch(path.name)) for path in place.glob(f"part-{partition}-*.parquet"))
    found = sorted((int(name[2]), int(name[3]), path) for path, name in named if name is not None)
    return [(path, attempt) for attempt, _, path in found]


def _read(path: Path) -> pa.Table:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            return file.read(_COLUMNS)
    except (OSError, pa.ArrowException) as exc:
        raise errors.EMQError(
            f"{path} is damaged, so nobody knows which messages were published ({str(exc).splitlines()[0]}); "
            f"{load_state.REMEDY}"
        ) from exc


def _ends(table: pa.Table) -> dict[tuple[str, int, int], End]:
    placed = table.filter(pc.is_valid(table["offset"])).sort_by("offset")  # a stable sort
    last = placed.group_by(_QUEUE, use_threads=False).aggregate([("offset", "last"), ("id", "last")])
    names = zip(*(last[name].to_pylist() for name in _QUEUE), strict=True)
    ends = map(End, (offset + 1 for offset in last["offset_last"].to_pylist()), last["id_last"].to_pylist())
    return dict(zip(names, ends, strict=True))


def _counts(table: pa.Table) -> dict[str, dict[str, int]]:
    grouped = table.group_by(["topic", "outcome"]).aggregate([("seq", "count")])
    counts: dict[str, dict[str, int]] = {}
    for row in grouped.to_pylist():
        counts.setdefault(row["topic"], {})[row["outcome"]] = row["seq_count"]
    return counts
