"""Records the outcome of each message of a load in the ledger."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np

from emq.storage import message
from emq.trail import events
from emq.trail.sink import NullTrail
from emq_spark.load import ledger
from emq_spark.load.batch import Batch

ERRORS = 50
"""Most different error texts that are counted one by one."""


class Place(NamedTuple):
    """The place of a message: group and priority of its queue, its offset there, the time of its publish, its uid."""

    group: int
    priority: int
    offset: int
    sent_us: int
    uid: str


class _Stretch(NamedTuple):
    """Messages with the same values in all these fields."""

    rows: int
    topic: str
    group: int | None
    priority: int | None
    sent_us: int
    answered_us: int | None
    outcome: str
    error: str | None


class Recorder(NullTrail):
    """The trail of a load's producer; it writes the producer's records to the ledger, with the messages' numbers.

    Announce messages with `expect` before they are published. A message that the producer then records counts as
    published or merged. `missing` returns the messages that the producer did not record; pass their outcome to `close`.

    Attributes:
        counts: by topic, the number of messages with each outcome.
        errors: number of messages by text of a refusal or doubt.
        ends: by (topic, group, priority) of the queues written to, the offset after the last known one.
    """

    enabled = True

    def __init__(
        self,
        writer: ledger.Writer,
        ends: dict[tuple[str, int, int], int] | None = None,
        counts: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        """Args:
        writer: writer of the ledger.
        ends, counts: initial values, from earlier attempts.
        """
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        for topic, outcomes in (counts or {}).items():
            self.counts[topic].update(outcomes)
        self.errors: Counter[str] = Counter()
        self.ends = ends if ends is not None else {}
        self._writer = writer
        self._open: dict[str, int] = {}
        self._doubted: dict[str, str] = {}
        self._twins: dict[tuple[str, str], deque[tuple[int, str | None]]] = {}
        self._stretches: list[_Stretch] = []
        self._seqs: list[int] = []
        self._ids: list[str | None] = []
        self._offsets: list[int | None] = []
        self._keys: list[str | None] = []
        self._due_ms: list[int | None] = []

    @property
    def rows(self) -> int:
        """Number of messages with a noted outcome, `unknown` included."""
        return sum(counter.total() for counter in self.counts.values())

    # --------------------------------------------------------------------------------- messages before their publish

    def expect(self, batch: Batch, ids: Sequence[str], *, slots: bool) -> None:
        """Announce messages.

        Args:
            ids: ids of the messages.
            slots: True if the messages go to slots, where an id may be repeated.
        """
        if not slots:
            self._open.update(zip(ids, batch.seqs, strict=True))
            return
        for id_, seq, key in zip(ids, batch.seqs, batch.keys or repeat(None), strict=batch.keys is not None):
            self._twins.setdefault((batch.topic, id_), deque()).append((seq, key))

    def missing(self, batch: Batch, ids: Sequence[str], *, slots: bool) -> list[int]:
        """Return the places in the batch of those messages that no producer recorded."""
        if not slots:
            return [i for i, id_ in enumerate(ids) if id_ in self._open] if self._open else []
        waiting = {seq for id_ in set(ids) for seq, _ in self._twins.get((batch.topic, id_), ())}
        return [i for i, seq in enumerate(batch.seqs) if seq in waiting]

    def close(
        self,
        batch: Batch,
        ids: Sequence[str],
        outcome: str,
        *,
        sent_us: int,
        answered_us: int | None = None,
        error: str | None = None,
        found: Sequence[Place] | None = None,
    ) -> None:
        """Note the outcome of messages that no producer recorded.

        Args:
            outcome: one of `emq_spark.load.ledger.OUTCOMES`.
            sent_us: begin of the publish, microseconds since the epoch, for messages that were not found.
            found: place of each message that was found in a queue.
        """
        for id_, seq in zip(ids, batch.seqs, strict=True):
            if self._open.pop(id_, None) is None and (twins := self._twins.get((batch.topic, id_))):
                self._twins[batch.topic, id_] = deque(twin for twin in twins if twin[0] != seq)
        if error is not None:
            self.errors[error if error in self.errors or len(self.errors) < ERRORS else "other errors"] += len(batch)
        keys = batch.keys or [None] * len(batch)
        if found is None:
            stretch = _Stretch(len(batch), batch.topic, None, None, sent_us, answered_us, outcome, error)
            is_told = outcome == ledger.UNKNOWN
            doubted = [self._doubted.pop(id_, id_) if is_told else None for id_ in ids]
            self._take(stretch, batch.seqs, doubted, None, keys, None)
            return
        for i, (group, priority, offset, published_us, uid) in enumerate(found):
            stretch = _Stretch(1, batch.topic, group, priority, published_us, answered_us, outcome, error)
            self._take(stretch, batch.seqs[i : i + 1], [uid], [offset], keys[i : i + 1], None)

    # ------------------------------------------------------------------------------------- records of the producer

    def record(self, event: events.Record) -> None:
        if isinstance(event, events.Published):
            self._published(event)
        elif isinstance(event, events.Merged):
            self._merged(event)
        elif isinstance(event, events.Doubted):
            self._doubted.update(zip(map(message.label, event.ids), event.ids, strict=True))

    def _published(self, e: events.Published) -> None:
        ids, place = e.ids, (e.topic, e.group, e.priority)
        stretch = _Stretch(len(ids), *place, e.published_us, e.time_us, ledger.PUBLISHED, None)
        if e.offsets:
            self.ends[place] = e.offsets[-1] + 1
        if message.label(ids[0]) in self._open:
            # Without the nonce, as `message.label` returns them: the load chose all ids.
            seqs = [self._open.pop(uid.rpartition(message.MARK)[0] or uid) for uid in ids]
            self._take(stretch, seqs, ids, e.offsets, e.keys or [None] * len(ids), e.due_ms)
            return
        if (e.topic, ids[0]) not in self._twins:
            return  # recorded already: its group was retired, and the message moved to another group's lane
        twins = [self._twins[e.topic, id_].popleft() for id_ in ids]
        self._take(stretch, [seq for seq, _ in twins], ids, e.offsets, [key for _, key in twins], e.due_ms)

    def _merged(self, e: events.Merged) -> None:
        twins = [self._twins[e.topic, id_].popleft() for id_ in e.ids]
        stretch = _Stretch(len(e.ids), e.topic, e.group, 0, e.published_us, e.time_us, ledger.MERGED, None)
        self._take(stretch, [seq for seq, _ in twins], e.ids, None, [key for _, key in twins], None)

    # ---------------------------------------------------------------------------------------------- to the ledger

    def _take(
        self,
        stretch: _Stretch,
        seqs: Sequence[int],
        ids: Sequence[str | None],
        offsets: Sequence[int] | None,
        keys: Sequence[str | None],
        due_ms: Sequence[int] | None,
    ) -> None:
        nothing = [None] * stretch.rows
        self.counts[stretch.topic][stretch.outcome] += stretch.rows
        self._stretches.append(stretch)
        self._seqs += seqs
        self._ids += ids
        self._offsets += nothing if offsets is None else offsets
        self._keys += keys
        self._due_ms += nothing if due_ms is None else due_ms

    def flush(self) -> None:
        """Pass the noted messages to the ledger. Each announced message must have its outcome by then."""
        self._twins = {name: twins for name, twins in self._twins.items() if twins}
        assert not self._open, f"nothing was told of {min(self._open)}"
        assert not self._twins, f"nothing was told of {min(self._twins)}"
        self._doubted.clear()
        if not self._stretches:
            return
        rows, *columns = zip(*self._stretches, strict=True)
        spread: dict[str, Any] = {
            name: values[0] if len(set(values)) == 1 else _spread(values, rows)
            for name, values in zip(_Stretch._fields[1:], columns, strict=True)
        }
        each: dict[str, Any] = {
            "seq": self._seqs,
            "id": self._ids,
            "offset": self._offsets,
            "key": self._keys if any(self._keys) else None,
            "due_ms": self._due_ms if any(self._due_ms) else None,
        }
        self._writer.append(len(self._seqs), {**spread, **each})
        self._stretches, self._seqs, self._ids, self._offsets, self._keys, self._due_ms = [], [], [], [], [], []


def _spread(values: Sequence[Any], rows: Sequence[int]) -> Any:
    """Repeat each value for each row of its stretch."""
    if all(type(value) is int for value in values):
        return np.repeat(values, rows)
    return list(chain.from_iterable(map(repeat, values, rows)))
