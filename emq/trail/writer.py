"""Writing the trail: the event loop appends to lists, a thread turns them into columns and segments."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from emq.runtime import errors, plurals
from emq.runtime.clock import Clock
from emq.storage.message import Message
from emq.trail import columns, events, schema, segments
from emq.trail.options import TrailOptions, TrailStatistics

logger = logging.getLogger(__name__)

_CHUNK_ROWS = 4096
"""Events to convert at once. Converting holds the interpreter, and the event loop must not wait for long."""


class Trail:
    """The ledger of one producer or host, as Parquet segments in a directory that many may share.

    Open with `Trail.open`. Record as in any `emq.trail.TrailSink`, from one thread. Each call adds a few fields, or a
    publish as it is, to the end of a list. A thread takes full lists (and, every `rotate_s`, the begun one), turns them
    into columns, and writes segments. The number of waiting events is bounded: if the disk does not keep up, the trail
    drops and counts events, and keeps the count in the next segment's metadata. Delivery is never held up.
    """

    enabled = True

    def __init__(self, directory: Path, source: str, clock: Clock, run_us: int, options: TrailOptions) -> None:
        self._directory = directory
        self._source = source
        self._clock = clock
        self._run_us = run_us
        self._options = options
        chunk_rows = min(_CHUNK_ROWS, options.rotate_rows, options.max_pending // 2)
        self._chunk_rows = chunk_rows
        self._chunk_values = chunk_rows * columns.WIDTH
        self._room = options.max_pending - chunk_rows

        # The recording thread owns these lists; the writing thread only cuts off their front, under the lock.
        self._values: list[Any] = []
        self._batches: list[events.Batch] = []
        self._batched = 0

        # The condition's lock guards these fields; nobody holds the lock during conversion or writing.
        self._state = threading.Condition()
        self._chunks: deque[columns.Chunk] = deque()
        self._handed = 0
        self._dropped = 0
        self._asked = 0
        self._answered = 0
        self._early = False
        self._closed = False

        # The writing thread owns these fields.
        self._tables: list[Any] = []
        self._rows = 0
        self._seq = 0
        self._written = 0
        self._disk_errors = 0
        self._complained = False
        self._thread = threading.Thread(target=self._run, name=f"trail-{source}", daemon=True)

    @classmethod
    def open(cls, directory: Path | str, source: str, clock: Clock, options: TrailOptions | None = None) -> Trail:
        """Start a run of `source` in `directory`; make the directory if it does not exist.

        Writes an empty first segment, so that a run that crashes before its first events is noticed. Blocks until the
        segment is written.

        Args:
            source: id of the host or producer; up to 100 letters, digits and `._:@+-`, a letter or digit first.
            clock: gives the times in the names of the run's files.

        Raises:
            InvalidSettings: the source's name is not fit for a file name, or the directory cannot be written.
        """
        if not segments.SOURCE.fullmatch(source):
            raise errors.InvalidSettings(
                f"trail source {source!r} must be 1 to 100 letters, digits and ._:@+- and begin with a letter or digit"
            )
        directory = Path(directory)
        run_us = round(clock.now() * 1e6)
        while (directory / segments.Header(source, run_us, 0, 0, 0).name).exists():
            run_us += 1
        trail = cls(directory, source, clock, run_us, options or TrailOptions())
        try:
            directory.mkdir(parents=True, exist_ok=True)
            trail._write_segment(schema.table(source, {}, 0), closed=False)
        except OSError as exc:
            raise errors.InvalidSettings(
                f"trail directory {str(directory)!r} cannot be written ({exc}); name another or correct its permissions"
            ) from exc
        trail._thread.start()
        return trail

    # -------------------------------------------------------------------------------------------------- recording

    def record(self, event: events.Record) -> None:
        if isinstance(event, events.Batch):
            self._batches.append(event)
            self._batched += len(event.ids)
        else:
            self._values.extend(columns.row(event))
        if self._batched >= self._chunk_rows or len(self._values) >= self._chunk_values:
            self._hand_over()
        if isinstance(event, events.Owned) and not self._early:
            with self._state:
                self._early = True
                self._state.notify_all()

    def started(self, m: Message, epoch: int) -> None:
        values = self._values
        values.extend(
            (
                events.STARTED,
                m.started_us,
                m.topic,
                m.group,
                m.priority,
                m.offset,
                m.expires_us or None,
                m.uid,
                m.key,
                m.attempt,
                epoch,
                m.published_us,
                m.ready_us,
                None,
                None,
            )
        )
        if len(values) >= self._chunk_values:
            self._hand_over()

    def settled(self, m: Message, now_us: int) -> None:
        values = self._values
        values.extend(
            (
                events.SETTLED,
                now_us,
                m.topic,
                m.group,
                m.priority,
                m.offset,
                None,
                m.uid,
                m.key,
                m.attempt,
                None,
                None,
                None,
                None,
                None,
            )
        )
        if len(values) >= self._chunk_values:
            self._hand_over()

    def _hand_over(self) -> None:
        """Give the begun lists to the writing thread, or drop them if too many events wait already."""
        values, batches = self._values, self._batches
        with self._state:
            self._values, self._batches, self._batched = [], [], 0
            rows = len(values) // columns.WIDTH + sum(len(batch.ids) for batch in batches)
            if self._closed or self._handed + rows > self._room:
                self._dropped += rows
            else:
                self._handed += rows
                self._chunks.append(columns.Chunk(values, batches, rows))
                self._state.notify_all()

    # ---------------------------------------------------------------------------------------------------- control

    def statistics(self) -> TrailStatistics:
        """Return the counts of this moment."""
        with self._state:
            begun = len(self._values) // columns.WIDTH + sum(len(batch.ids) for batch in self._batches)
            pending = self._handed + begun
            recorded = self._written + pending + self._dropped
            return TrailStatistics(recorded, self._written, pending, self._dropped, self._seq, self._disk_errors)

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until all events recorded before are in segments (or dropped); return False after `timeout_s` seconds.

        Blocks: do not call it on an event loop's thread.
        """
        with self._state:
            if self._closed:
                return self._await_answer(timeout_s)
            self._asked += 1
            self._state.notify_all()
            return self._await_answer(timeout_s)

    def close(self, timeout_s: float = 30.0) -> bool:
        """Write the events that are left and the closing marker, without which the trail counts as cut short.

        Blocks: call it in a thread of its own if an event loop runs. Later events are dropped. Safe to repeat.

        Returns:
            False if the disk took longer than `timeout_s` seconds; the process may exit, the marker is then missing.
        """
        with self._state:
            if not self._closed:
                self._closed = True
                self._asked += 1
                self._state.notify_all()
            return self._await_answer(timeout_s)

    def _await_answer(self, timeout_s: float) -> bool:
        asked = self._asked
        return self._state.wait_for(lambda: self._answered >= asked, timeout_s)

    # ------------------------------------------------------------------------------------------ the writing thread

    def _run(self) -> None:
        """Convert chunks as they come; write a segment when it is full, `rotate_s` old, asked for, or the last.

        The thread converts chunks one by one and keeps the columns until the segment is due. Events count as pending
        until their segment is written. If this thread ever died, the trail would drop events at `max_pending`, and the
        closing marker would be missing. So the proof would be void rather than wrong.
        """
        closed = False
        while not closed:
            deadline = time.monotonic() + self._options.rotate_s
            due = False
            while not due:
                with self._state:
                    self._state.wait_for(
                        lambda: bool(self._chunks) or self._early or self._asked > self._answered,
                        deadline - time.monotonic(),
                    )
                    asked, closed = self._asked, self._closed
                    if self._early:
                        self._early = False
                        deadline = min(deadline, time.monotonic() + self._options.early_s)
                due = asked > self._answered or time.monotonic() >= deadline
                if due:
                    self._take_begun()
                self._convert()
            self._write(closed)
            with self._state:
                self._answered = asked
                self._state.notify_all()

    def _take_begun(self) -> None:
        """Queue the lists that the recording thread has begun.

        The recording thread may append to the lists meanwhile. This method copies and cuts off only the values that
        were there on entry. Each of these list operations is atomic, and the lock keeps `_hand_over` out between them.
        """
        with self._state:
            values = self._values[: len(self._values)]
            del self._values[: len(values)]
            batches = self._batches[: len(self._batches)]
            del self._batches[: len(batches)]
            rows = len(values) // columns.WIDTH + sum(len(batch.ids) for batch in batches)
            if rows:
                self._handed += rows
                self._chunks.append(columns.Chunk(values, batches, rows))

    def _convert(self) -> None:
        while True:
            with self._state:
                if not self._chunks:
                    return
                chunk = self._chunks.popleft()
            self._convert_chunk(chunk)
            if self._rows >= min(self._options.rotate_rows, self._room // 2):
                self._write(closed=False)

    def _convert_chunk(self, chunk: columns.Chunk) -> None:
        """Convert events; drop only events that do not fit the columns, such as one with too large a number."""
        if not chunk.rows:
            return
        try:
            self._tables.extend(columns.tables(self._source, chunk))
            self._rows += chunk.rows
        except Exception as exc:  # the thread must go on, whatever a message holds
            if chunk.rows == 1:
                self._drop(1, exc)
                return
            for half in columns.halves(chunk):
                self._convert_chunk(half)

    def _write(self, closed: bool) -> None:
        if not self._rows and not closed:
            return
        tables, rows, self._rows, self._tables = self._tables, self._rows, 0, []
        try:
            table = pa.concat_tables([schema.table(self._source, {}, 0), *tables])
            self._write_segment(table, closed)
        except Exception as exc:  # of the disk or of Arrow; the thread must go on
            self._disk_errors += 1
            self._drop(rows, exc)
            return
        self._complained = False
        with self._state:
            self._written += rows
            self._handed -= rows

    def _write_segment(self, table: Any, closed: bool) -> None:
        now_us = round(self._clock.now() * 1e6)
        times = pc.min_max(table["time_us"])
        first_us = times["min"].as_py() or now_us
        last_us = times["max"].as_py() or now_us
        header = segments.Header(self._source, self._run_us, self._seq, first_us, last_us, self._dropped, closed)
        segments.write(self._directory, header, table)
        self._seq += 1

    def _drop(self, rows: int, exc: Exception) -> None:
        with self._state:
            self._handed -= rows
            self._dropped += rows
        if not self._complained:
            self._complained = True
            logger.error("trail of %s dropped %s, more may follow: %s", self._source, plurals.count(rows, "event"), exc)
