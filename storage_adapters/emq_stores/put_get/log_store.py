"""The log store made of PUT and GET(i)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from emq.runtime import errors
from emq.runtime.environment import Environment
from emq.storage.durability import Durability
from emq.storage.log_store import Batch, Bounds, Put, Read, Trim, messages_lost, queue_sealed
from emq.storage.marks import Mark, digest
from emq.storage.names import group_of
from emq_stores import refusals
from emq_stores.memory.wakeups import Wakeups
from emq_stores.put_get.client import Options, PutGetClient
from emq_stores.put_get.deadline import DeadlineClient
from emq_stores.put_get.limits import QueueLimits
from emq_stores.put_get.polls import Polls
from emq_stores.put_get.probe import Prober, QueueProbe, gather

_FIRST_CHUNK = 4
_LARGEST_CHUNK = 64

MOST_SEALED = 10_000
"""Most sealed queues that an instance remembers. The instance shows all messages of a queue that it has forgotten."""

Refusal = errors.NotOwner | errors.MessagesLost


class PutGetLogStore:
    """`emq.storage.log_store.LogStore` on a `PutGetClient`; the package's docstring lists its limits.

    A read GETs a few offsets at once, then twice as many, as long as all are there. At a missing offset the read ends
    and arms the queue. A message above the missing offset shows that the offset is a hole and not the tail. A later
    chunk, a poll, or a put through this instance may find such a message. Readers pass a missing offset below such a
    message `hole_grace_s` after it was first missed.

    Args:
        client: the storage; it names this instance's queues `<environment>/<queue>`.
        environment: the environment whose queues to serve.
        options: see `Options`.

    Attributes:
        polls: finds news of exhausted queues; somebody must `run` it.
        forgets_seals: see `emq.storage.log_store.LogStore`.
    """

    forgets_seals = True

    def __init__(self, client: PutGetClient, environment: Environment, options: Options | None = None) -> None:
        self._options = options or Options()
        self.first_offset = self._options.first_offset
        self.max_queue_qps: float | None = self._options.max_queue_qps
        self.wakeups = Wakeups()
        self._client: PutGetClient = DeadlineClient(client, self._options.answer_s)
        self._prefix = f"{environment}/"
        self._limits = QueueLimits(self._options.max_queue_qps)
        self._prober = Prober(self._client, self._options, self._limits)
        self.polls = Polls(self._prober, self._options, self._prefix, self._state, self.wakeups)
        self._known: dict[str, QueueProbe] = {}
        self._epochs: dict[str, int] = {}
        self._sealed: dict[str, None] = {}

    async def put(
        self, puts: Sequence[Put], durability: Durability = Durability.ACCEPTED
    ) -> list[Sequence[int] | errors.EMQError]:
        """See `LogStore.put`. Not atomic: with an `OutcomeUnknown` as its answer, a part of that put may be stored."""
        by_queue: dict[str, list[int]] = {}
        for index, put in enumerate(puts):
            by_queue.setdefault(put.queue, []).append(index)
        answers: dict[int, Sequence[int] | errors.EMQError] = {}

        async def put_in_order(indexes: Iterable[int]) -> None:
            for index in indexes:
                answers[index] = await self._put(puts[index])

        await gather(put_in_order(indexes) for indexes in by_queue.values())
        return [answers[index] for index in range(len(puts))]

    async def _put(self, put: Put) -> Sequence[int] | errors.EMQError:
        if put.max_length is not None:
            return errors.InvalidTopic(
                f"queue {put.queue!r}: max_length {put.max_length} cannot be kept by a store of PUT and GET only; "
                "remove it from the topic"
            )
        if put.ids:
            return errors.InvalidTopic(
                f"queue {put.queue!r}: a store of PUT and GET only cannot keep dedupe_s {put.remember_ms / 1000:g}; "
                "remove it from the topic"
            )
        name, known = self._prefix + put.queue, self._state(put.queue)
        offsets: list[int] = []
        async with known.lock:
            if known.sealed or (put.layout is not None and put.layout < known.layout):
                return queue_sealed(put.queue, known.layout)
            try:
                for body in put.bodies:
                    await self._limits.acquire(name)
                    offsets.append(await self._client.put(name, body))
            except errors.EMQError as exc:
                if not offsets:
                    return exc
                return errors.OutcomeUnknown(f"queue {put.queue!r}: {len(offsets)} of {len(put.bodies)} stored; {exc}")
            finally:
                if offsets:
                    known.reach = max(known.reach, offsets[-1] + 1)
                    self.polls.wake(put.queue)
        return offsets

    async def get(self, queue: str, offset: int) -> bytes | None:
        """See `LogStore.get`."""
        known = self._state(queue)
        return None if offset < known.head else await self._prober.get(self._prefix + queue, known, offset)

    async def read(self, reads: Sequence[Read], max_bytes: int = 8 << 20) -> list[Batch | Refusal]:
        """See `LogStore.read`. `exhausted` may also stand for an undecided hole; a wake-up comes once it is decided.

        A mark costs one GET. Without a mark, a start beyond the tail is not reported.
        """
        refused = await gather(self._refusal(read) for read in reads)
        left = [max(max_bytes, 1)]
        missing = await gather(
            self._fetch(read, left) if stale is None else _nothing() for read, stale in zip(reads, refused, strict=True)
        )
        answers: list[Batch | Refusal] = []
        left_bytes = max(max_bytes, 1)
        for read, stale, missed in zip(reads, refused, missing, strict=True):
            if stale is not None:
                answers.append(stale)
                continue
            batch = self._take(read, missed, left_bytes)
            left_bytes -= sum(map(len, batch.bodies))
            answers.append(batch)
        return answers

    async def _refusal(self, read: Read) -> Refusal | None:
        if read.epoch is None:
            return None
        if stale := refusals.fence(self._epochs, group_of(read.queue), read.epoch):
            return stale
        if read.mark is not None and await self._lacks(read.queue, read.mark):
            return messages_lost(read.queue, read.mark.offset, None)
        return None

    async def _lacks(self, queue: str, mark: Mark) -> bool:
        """Return True if the mark's message is gone; then forget all about the queue."""
        known = self._state(queue)
        if mark.offset < known.head:
            return False
        body = await self._prober.get(self._prefix + queue, known, mark.offset)
        if body is not None and digest(body) == mark.digest:
            return False
        known.start_again(self.first_offset)
        return True

    async def _fetch(self, read: Read, left: list[int]) -> set[int]:
        """Fetch up to `limit` bodies from `start` on into `known.ahead`, unless `left[0]` bytes are used up before.

        Return the offsets that are missing. Bodies that this read does not hand out stay for the next read.
        """
        name, known = self._prefix + read.queue, self._state(read.queue)
        position = max(read.start, known.head)
        known.forget_below(position)
        missing: set[int] = set()
        grace_s = self._options.hole_grace_s
        end, chunk = position + read.limit, _FIRST_CHUNK
        while position < end and left[0] > 0:
            size = min(end - position, max(chunk, known.reach - position), _LARGEST_CHUNK)
            lost = await self._prober.fetch(name, known, range(position, position + size))
            left[0] -= sum(len(known.ahead.get(at, b"")) for at in range(position, position + size))
            missing.update(lost)
            if any(not known.is_hole(offset, grace_s) for offset in lost):
                break
            # Holes do not count towards the limit.
            end += len(lost)
            position += size
            chunk *= 2
        if missing and not known.surveyed and known.reach <= min(missing):
            # This queue is new here. Later, polls look at the window bit by bit.
            known.surveyed = True
            lowest = min(missing)
            window = range(lowest, lowest + self._options.hole_window + 1)
            missing.update(await self._prober.fetch(name, known, window))
            if lowest in known.ahead:
                missing.discard(lowest)
        return missing

    def _take(self, read: Read, missing: set[int], max_bytes: int) -> Batch:
        """Hand out the bodies from `start` on, until `max_bytes` are used up; arm the queue at a missing offset."""
        known = self._state(read.queue)
        offsets: list[int] = []
        bodies: list[bytes] = []
        position = max(read.start, known.head)
        exhausted = False
        while len(bodies) < read.limit and max_bytes > 0:
            if position in known.ahead:
                body = known.ahead.pop(position)
                offsets.append(position)
                bodies.append(body)
                max_bytes -= len(body)
            elif position not in missing or not known.is_hole(position, self._options.hole_grace_s):
                exhausted = position in missing
                break
            position += 1
        if exhausted and read.epoch is not None:
            self.polls.arm(read.queue, position)
        return Batch(offsets, bodies, position, exhausted)

    async def bounds(self, queues: Sequence[str]) -> list[Bounds]:
        """See `LogStore.bounds`. Probes the tail with some twenty GETs a queue; the head is this instance's own.

        PUT and GET have no place for a number of the queue's own: the queue's first message stands for it, since the
        message has an id of its own and nothing leaves the storage. While there is none, the incarnation is 0.
        """
        asked = [(queue, self._state(queue)) for queue in queues]
        tails = await gather(self._prober.tail(self._prefix + queue, known) for queue, known in asked)
        firsts = await gather(
            self._prober.get(self._prefix + queue, known, self.first_offset) for queue, known in asked
        )
        return [
            Bounds(known.head, max(known.head, tail), 0 if first is None else 1 + int(digest(first), 16))
            for (_, known), tail, first in zip(asked, tails, firsts, strict=True)
        ]

    async def trim(self, trims: Sequence[Trim]) -> list[bool | Refusal]:
        """See `LogStore.trim`. Nothing leaves the storage: this instance only stops showing the messages below."""
        return [await self._trim(trim) for trim in trims]

    async def _trim(self, trim: Trim) -> bool | Refusal:
        if trim.epoch is not None and (stale := refusals.fence(self._epochs, group_of(trim.queue), trim.epoch)):
            return stale
        known = self._state(trim.queue)
        if trim.mark is not None and await self._lacks(trim.queue, trim.mark):
            return messages_lost(trim.queue, trim.mark.offset, None)
        async with known.lock:
            if trim.upto > known.reach or trim.seal:
                tail = await self._prober.tail(self._prefix + trim.queue, known)
                known.head = max(known.head, min(trim.upto, tail))
                known.sealed = known.sealed or (bool(trim.seal) and known.head >= tail)
            else:
                known.head = max(known.head, trim.upto)
            if trim.seal is False:
                known.sealed = False
            self._note_sealed(trim.queue, known)
            known.layout = max(known.layout, trim.layout or 0)
            known.forget_below(known.head)
            return known.sealed

    async def close(self) -> None:
        """End the watcher. The caller who made the client closes the client."""
        self.wakeups.close()

    def _note_sealed(self, queue: str, known: QueueProbe) -> None:
        """Stop the polls of a sealed queue; above `MOST_SEALED`, forget the queue that was sealed first."""
        self._sealed.pop(queue, None)
        if not known.sealed:
            return
        self._sealed[queue] = None
        self.polls.stop(queue)
        if len(self._sealed) > MOST_SEALED:
            oldest = next(iter(self._sealed))
            del self._sealed[oldest]
            self._known.pop(oldest, None)
            self._epochs.pop(group_of(oldest), None)

    def _state(self, queue: str) -> QueueProbe:
        known = self._known.get(queue)
        if known is None:
            known = self._known[queue] = QueueProbe(self.first_offset)
        return known


async def _nothing() -> set[int]:
    return set()
