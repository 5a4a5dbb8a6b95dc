"""The incarnations of the queues that a partition publishes to, in files beside the ledger.

    _queues-<partition>-<attempt>.json    what this attempt has learned

An offset in the ledger has a meaning only in the queue that gave it. So an attempt notes the incarnation of each queue
before its first publish to the queue, or right after that publish if the store had not made the queue yet. The next
attempt compares, and fails if the queues are not those of the ledger any more:

- A queue has another incarnation: its store was emptied or replaced.
- A queue ends before an offset in the ledger, or has another message there: its store came back as it was before.
- A topic was deleted and made again: its queues go on with their offsets, without the messages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from emq import App
from emq.storage.answers import FAILURES
from emq.storage.log_store import Bounds
from emq.storage.names import QueueName
from emq.topics.model import Topic
from emq_spark.load import state as load_state
from emq_spark.load.earlier_attempts import Earlier, End
from emq_spark.source.lookup import FIRST, check_same, unsure
from emq_spark.source.messages import bounds_of
from emq_spark.source.notes import Tail
from emq_spark.source.progress import bodies_at
from emq_spark.source.rows import decoded


class Learned(msgspec.Struct, frozen=True):
    """What one attempt has learned, with what it knew from those before it.

    Attributes:
        catalog: version of the catalog when the partition's first attempt began.
        made: incarnation by queue; 0 if the store had not made the queue yet.
    """

    catalog: int
    made: Mapping[str, int]


class Incarnations:
    """The incarnations of queues that a partition knows. Call `begin` before anything else.

    Args:
        place: directory of the run's ledger.
        partition, attempt: those of the task.
    """

    def __init__(self, app: App, place: Path, partition: int, attempt: int) -> None:
        self._app = app
        self._path = place / f"_queues-{partition}-{attempt}.json"
        self._earlier = [place / f"_queues-{partition}-{number}.json" for number in range(attempt)]
        self._catalog = 0
        self._made: dict[str, int] = {}
        self._groups: dict[str, int] = {}

    async def begin(self, topics: Mapping[str, Topic], earlier: Earlier) -> None:
        """Take over from the attempts before this one.

        Args:
            topics: all topics by name.
            earlier: what the ledger has from these attempts.

        Raises:
            EMQError: the queues do not show any more what had been published to them; load under another run id.
        """
        self._catalog = await self._app.catalog.version()
        for path in self._earlier:
            if (learned := load_state.read(path, Learned)) is not None:
                self._catalog = min(self._catalog, learned.catalog)
                self._add({queue: made for queue, made in learned.made.items() if not self._made.get(queue)})
        await self._check_topics({*earlier.counts, *self._groups})
        ends = {topics[name].queue(*at): end for (name, *at), end in earlier.ends.items() if name in topics}
        await self._check_queues(ends)
        self._save()

    def tail(self, queue: str, offset: int) -> Tail:
        """Return an offset of a queue with the queue's incarnation; 0 if that is not known."""
        return Tail(offset, self._made.get(queue, 0))

    def groups_of(self, topic: str) -> int:
        """Return the number of groups that the topic had when the partition published to it, 0 if it did not yet.

        A topic that has shrunk since has fewer groups.
        """
        return self._groups.get(topic, 0)

    async def expect(self, queues: Iterable[str]) -> None:
        """Note the incarnations of queues before the first publish to them."""
        await self._learn([queue for queue in queues if queue not in self._made])

    async def note(self, queues: Iterable[str]) -> None:
        """Note the incarnations of queues that the store has made with a publish."""
        await self._learn([queue for queue in queues if not self._made.get(queue)])

    async def _learn(self, queues: list[str]) -> None:
        if not queues:
            return
        # A store that is away fails the publish, too, which is tried again. The incarnation is noted at the next one.
        with contextlib.suppress(*FAILURES):
            bounds = await bounds_of(self._app.store.log, queues)
            self._add({queue: found.incarnation for queue, found in bounds.items()})
            self._save()

    def _add(self, made: Mapping[str, int]) -> None:
        self._made.update(made)
        for name in map(QueueName.parse, made):
            self._groups[name.topic] = max(self._groups.get(name.topic, 0), name.group + 1)

    def _save(self) -> None:
        load_state.write(self._path, Learned(self._catalog, self._made))

    async def _check_topics(self, topics: Iterable[str]) -> None:
        changes = await self._app.catalog.changed_names(self._catalog)
        if again := set(topics).intersection(changes.deleted):
            raise unsure(f"topic {min(again)!r} was deleted since it was published to", load_state.REMEDY)

    async def _check_queues(self, ends: Mapping[str, End]) -> None:
        bounds = await bounds_of(self._app.store.log, sorted({*self._made, *ends}))
        check_same(bounds, {queue: self.tail(queue, FIRST) for queue in self._made}, load_state.REMEDY)
        for queue, end in ends.items():
            if (tail := bounds[queue].tail) < end.offset:
                text = f"queue {queue!r} has lost its messages from offset {tail} to {end.offset - 1}"
                raise unsure(f"{text} since they were published", load_state.REMEDY)
        await self._check_last(ends, bounds)

    async def _check_last(self, ends: Mapping[str, End], bounds: Mapping[str, Bounds]) -> None:
        """Compare the last message in the ledger with the one in its queue, where the queue has not trimmed it yet."""
        last = {queue: end.offset - 1 for queue, end in ends.items() if bounds[queue].head < end.offset}
        async for queue, body in bodies_at(self._app.store.log, last):
            if decoded([body])[0].uid not in ("", ends[queue].uid):  # none: it cannot be read
                text = f"queue {queue!r} has another message at offset {last[queue]} than was published there"
                raise unsure(f"{text}: its store came back as it was before", load_state.REMEDY)
