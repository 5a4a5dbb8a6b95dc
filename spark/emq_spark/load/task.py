"""One task of a load: it publishes the messages of one partition at their times, and writes their ledger.

A task may die and be tried again. Before each slice (the messages of a short stretch of time) the task notes that it is
about to publish the slice (`emq_spark.load.state`). The segments of the ledger hold the outcomes of messages. The next
attempt makes the same messages again and uses note and ledger:

- A message in a segment is done, whatever its outcome.
- A message after the last noted slice was not published.
- Any other message is in doubt, and the attempt looks for the message in the queues. A message that is there was
  published; a message that is not there is published now. If the queues cannot tell (the message may be consumed and
  trimmed already, or went to a slot), the outcome stays unknown and the message is not published again.

An attempt publishes nothing if the queues are not those of the ledger any more (`emq_spark.load.incarnations`).
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import uvloop
from aiolimiter import AsyncLimiter

from emq import App
from emq.runtime.settings import Settings
from emq_spark.load import earlier_attempts, ledger, state
from emq_spark.load import sender as load_sender
from emq_spark.load.batch import Batch, Source
from emq_spark.load.incarnations import Incarnations
from emq_spark.load.ledger import Part
from emq_spark.load.plan import Plan
from emq_spark.load.recorder import Place, Recorder
from emq_spark.load.replay import Replayed, Survey
from emq_spark.load.synthetic import Synthetic

CATCH_UP = 2
"""Highest pace at which a late load catches up, as a multiple of its planned pace."""

SEGMENT_S = 5.0
"""Seconds, roughly, of a partition's messages in one segment; when a task dies, these messages may be in doubt."""

SEGMENT_ROWS = (500, 200_000)
"""Least and most messages in a segment."""

COLLECTED = (50_000, 20, 50)
"""Thresholds of Python's garbage collector in a task: a slice has some hundred thousand objects without cycles, and the
default thresholds examine them often. A message takes 6.4 us of CPU instead of 8.3."""

FOUND_TAKES_S = 0.5
"""Seconds after which the last calls of a dead task have arrived at the store."""


@dataclass(frozen=True)
class Job:
    """The description of a load that Spark sends to all partitions.

    Attributes:
        plan: the plan with its duration, unless it replays a whole file.
        settings: settings of store and database.
        directory: directory of the ledgers.
        run, seed, partitions: id, seed and number of partitions of the run.
        paced: publish at the plan's times; if False, as fast as possible.
        survey: survey of the file, for a replay.
    """

    plan: Plan
    settings: Settings
    directory: str
    run: str
    seed: int
    partitions: int
    paced: bool = True
    survey: Survey = field(default_factory=Survey)

    def source(self, partition: int) -> Source:
        """Return the source of a partition's messages."""
        plan = self.plan
        if plan.replay is not None:
            return Replayed(plan.replay, plan.duration_s, self.survey, self.run, partition, self.partitions)
        return Synthetic(plan, self.seed, self.run, partition, self.partitions, paced=self.paced)


class Done(msgspec.Struct, frozen=True):
    """The report of a partition that has ended.

    Attributes:
        part: the partition's entry in the summary of the run.
        rows: messages that the partition had to publish.
        first_us, last_us: begin of the first slice and end of the last one, microseconds since the epoch.
        counts: messages by topic and outcome, including those of earlier attempts.
        earlier: messages that earlier attempts had dealt with.
        errors: number of messages by error text.
        late_s: seconds by which the latest slice was late.
        stopped: True if somebody stopped the load before every message was published.
    """

    part: Part
    rows: int
    first_us: int
    last_us: int
    counts: dict[str, dict[str, int]]
    errors: dict[str, int]
    earlier: int = 0
    late_s: float = 0.0
    stopped: bool = False


def run(job: Job, partition: int) -> Done:
    """Publish a partition; return when every message has its outcome.

    Raises:
        EMQError: store or database was out of reach at the beginning, a later attempt has taken over, or the queues
            do not show any more what earlier attempts have published.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(*COLLECTED)  # Spark's worker lives on after the task
    try:
        return uvloop.run(Task(job, partition).run())
    finally:
        gc.set_threshold(*thresholds)


class Task:
    """One attempt at a partition."""

    def __init__(self, job: Job, partition: int) -> None:
        self._job = job
        self._source = job.source(partition)
        self._place = ledger.directory_of(job.directory, job.run)
        self._earlier = earlier_attempts.of(job.directory, job.run, partition)
        self._state = state.State(
            partition, self._earlier.attempt, self._earlier.begin_us, self._earlier.begun, pid=os.getpid()
        )
        self._writer = ledger.Writer(
            job.directory, job.run, partition, self._earlier.attempt, segment_rows(self._source.per_s, job.paced)
        )
        self._recorder = Recorder(
            self._writer, {queue: end.offset for queue, end in self._earlier.ends.items()}, self._earlier.counts
        )
        self._limiter: AsyncLimiter | None = None
        self._latest_s = 0.0
        # The first array loads pandas, which takes a second; the load should not lose that second later.
        pa.array([None, "text"], pa.string())

    async def run(self) -> Done:
        """See `run`."""
        self._save()
        # A limiter belongs to one event loop.
        self._limiter = AsyncLimiter(CATCH_UP, self._source.step_s) if self._job.paced else None
        stopped = False
        async with App(options=self._job.settings, trail=self._recorder) as app:
            # Connecting may take a while, which does not count as part of the load.
            topics = await load_sender.learn(app)
            self._save(begin_us=self._earlier.begin_us or time.time_ns() // 1000)
            incarnations = Incarnations(app, self._place, self._state.partition, self._state.attempt)
            await incarnations.begin(topics, self._earlier)
            sender = load_sender.Sender(app, self._recorder, topics, incarnations, self._state.begin_us)
            first_us = time.time_ns() // 1000
            slices = enumerate(self._source.slices())
            begun = (slice_.batches for _, slice_ in itertools.islice(slices, self._earlier.begun))
            await self._clear_up(sender, [left for batches in begun if (left := self._earlier.left(batches))])
            for number, slice_ in slices:
                late_s = await self._until(slice_.end_s, len(slice_.batches))
                if stopped := state.is_stopping(self._place):
                    break
                if slice_.batches:
                    self._save(begun=number + 1, late_s=late_s)
                    await sender.send(slice_.batches)
                    self._recorder.flush()
        return self._done(first_us, stopped=stopped)

    def _done(self, first_us: int, *, stopped: bool) -> Done:
        source, counts, earlier = self._source, self._recorder.counts, len(self._earlier.seqs)
        achieved = (self._recorder.rows - earlier) / max(time.time() - first_us / 1e6, 1e-6)
        part = self._writer.close(round(source.per_s, 3), round(achieved, 3))
        part = msgspec.structs.replace(part, earlier=self._earlier.segments)
        self._save(ended=True)
        return Done(
            part=part,
            rows=source.rows,
            first_us=first_us,
            last_us=time.time_ns() // 1000,
            counts={topic: dict(counter) for topic, counter in counts.items()},
            errors=dict(self._recorder.errors),
            earlier=earlier,
            late_s=self._latest_s,
            stopped=stopped,
        )

    async def _until(self, end_s: float, batches: int) -> float:
        """Wait for a slice's time; return the seconds by which the slice is late."""
        if self._limiter is None:
            return 0.0
        due_s = self._state.begin_us / 1e6 + end_s
        # Slices of a replay may be far apart, and a stop must not wait for the next one.
        while (wait_s := due_s - time.time()) > 0 and not state.is_stopping(self._place):  # noqa: ASYNC110
            await asyncio.sleep(min(wait_s, 1.0))
        if batches:
            await self._limiter.acquire()
        late_s = max(0.0, time.time() - due_s)
        self._latest_s = max(self._latest_s, late_s)
        return late_s

    async def _clear_up(self, sender: load_sender.Sender, doubtful: Sequence[Sequence[Batch]]) -> None:
        """Look for messages that an earlier attempt left in doubt, and publish those that are not in the queues.

        The task looks for all messages and notes the found ones before it publishes any. A later attempt looks only
        behind the offsets in the ledger, and messages published now lie behind all that were found.

        Args:
            doubtful: the doubtful messages of each slice, in order.
        """
        if not doubtful:
            return
        await asyncio.sleep(FOUND_TAKES_S)
        batches = list(itertools.chain.from_iterable(doubtful))
        places, doubts = await sender.look(batches, [id_ for batch in batches for id_ in batch.ids])
        absent = [
            [rest for batch in slice_ if (rest := self._settled(sender, batch, places, doubts))] for slice_ in doubtful
        ]
        for slice_ in absent:
            await sender.send(slice_)
            self._recorder.flush()

    def _settled(
        self,
        sender: load_sender.Sender,
        batch: Batch,
        seen: Mapping[str, Place],
        doubtful: Collection[tuple[str, int]],
    ) -> Batch | None:
        """Note the found messages of a batch and those of unknown outcome; return those still to be published."""
        ids = sender.ids_of(batch)
        sender.close_found(batch, ids, seen)
        places = [i for i, id_ in enumerate(ids) if id_ not in seen]
        if not places:
            return None
        rest = batch.only(places)
        if not sender.unclear(rest, doubtful):
            return rest
        text = "a task that died may have published it, and it is not in its queue any more"
        unknown = [ids[i] for i in places]
        self._recorder.close(rest, unknown, ledger.UNKNOWN, sent_us=self._state.begin_us, error=text)
        return None

    def _save(self, **changes: Any) -> None:
        counts = self._recorder.counts.values()
        failed = sum(c[ledger.REFUSED] + c[ledger.UNKNOWN] for c in counts)
        self._state = msgspec.structs.replace(self._state, rows=self._recorder.rows, failed=failed, **changes)
        state.save(self._place, self._state)


def segment_rows(per_s: float, paced: bool) -> int:
    """Return the messages for one segment of the ledger of a partition that publishes `per_s` messages a second."""
    least, most = SEGMENT_ROWS
    return max(least, min(most, round(per_s * SEGMENT_S))) if paced else most
