"""The log queues of the SQL store."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import repeat

import sqlalchemy as sa

from emq.runtime import errors
from emq.storage.answers import Failure
from emq.storage.durability import Durability
from emq.storage.log_store import Batch, Bounds, Put, Read, Trim, fresh_places, messages_lost, queue_sealed, spread
from emq.storage.marks import digest
from emq.storage.names import group_of
from emq_stores import refusals
from emq_stores.sql.backend import Backend, Transaction, share_of
from emq_stores.sql.damage import damaged
from emq_stores.sql.published_ids import PublishedIds
from emq_stores.sql.rows import KnownRows, Queue, save_groups, save_queues

FIRST_OFFSET = 1

Refusal = errors.NotOwner | errors.MessagesLost

Span = tuple[int, int, int, int]
"""A queue's id, the offsets [first, end) to read from the queue, and the queue's tail."""


class SqlLog:
    """`emq.storage.log_store.LogStore` in a database; every call is one transaction, unless a row is damaged."""

    first_offset = FIRST_OFFSET

    def __init__(self, backend: Backend, known: KnownRows, max_queue_qps: float | None) -> None:
        self.max_queue_qps = max_queue_qps
        self._backend = backend
        self._known = known

    async def put(
        self, puts: Sequence[Put], durability: Durability = Durability.ACCEPTED
    ) -> list[Sequence[int] | errors.EMQError]:
        """See `LogStore.put`."""
        try:
            return await self._backend.of_each("put to queue", puts, _queue, self._put, durability=durability)
        except errors.StoreFull as full:
            return [full] * len(puts)

    def _put(self, transaction: Transaction, puts: Sequence[Put]) -> Sequence[Sequence[int] | errors.EMQError]:
        with_ids = [put for put in puts if put.ids]
        bounded = (name for put in puts if put.max_length is not None for name in put.siblings)
        groups, queues = self._known.lock(
            transaction, (group_of(put.queue) for put in with_ids), [*(put.queue for put in puts), *bounded]
        )
        asked = [(groups[group_of(put.queue)].id, id_) for put in with_ids for id_ in put.ids]
        published = PublishedIds(transaction, asked, self._backend.now_ms())
        before = {name: (queue.head, queue.tail) for name, queue in queues.items()}
        answers: list[Sequence[int] | errors.EMQError] = []
        rows: list[tuple[int, int, bytes]] = []
        changed: dict[str, Queue] = {}
        for put in puts:
            queue = queues[put.queue]
            bodies, group_id = put.bodies, groups[group_of(put.queue)].id if put.ids else 0
            fresh = fresh_places(put.ids, partial(published.is_remembered, group_id)) if put.ids else {}
            if put.ids:
                bodies = [put.bodies[place] for place in fresh.values()]
            if refusal := _refusal(put, len(bodies), queues):
                answers.append(refusal)
                continue
            published.remember(group_id, fresh, put.remember_ms)
            offsets = range(queue.tail, queue.tail + len(bodies))
            answers.append(spread(offsets, fresh.values(), len(put.bodies)))
            if not offsets:
                continue
            rows += zip(repeat(queue.id), offsets, bodies)
            queue.tail = offsets.stop
            changed[put.queue] = queue
            if queue.armed is not None:
                transaction.wake(queue.armed, put.queue)
                queue.armed = None
        try:
            transaction.write("messages_add", rows)
        except sa.exc.IntegrityError as exc:
            raise damaged(
                f"queue {puts[0].queue!r}",
                f"messages lie at or behind its tail {before[puts[0].queue][1]}",
                "set its tail in store_queues to one more than the highest msg_offset of its store_messages",
            ) from exc
        dropped = [(q.id, before[name][0], q.head) for name, q in changed.items() if q.head > before[name][0]]
        transaction.write("messages_drop", dropped)
        save_queues(transaction, changed.values())
        published.save()
        return answers

    async def get(self, queue: str, offset: int) -> bytes | None:
        """See `LogStore.get`."""
        found = await self._backend.run(lambda t: t.rows("message_get", queue=queue, msg_offset=offset), read_only=True)
        return bytes(found[0][0]) if found else None

    async def read(self, reads: Sequence[Read], max_bytes: int = 8 << 20) -> list[Batch | Refusal | Failure]:
        """See `LogStore.read`."""
        answers: dict[int, Batch | Refusal | Failure] = {}
        owned = {index: read for index, read in enumerate(reads) if read.epoch is not None}
        observed = {index: read for index, read in enumerate(reads) if read.epoch is None}
        found = await self._backend.of_each(
            "read queue",
            [*owned.values()],
            _queue,
            lambda t, some: self._read(t, some, share_of(max_bytes, some, owned)),
        )
        answers.update(zip(owned, found, strict=True))
        left_bytes = max_bytes - sum(len(body) for batch in found if isinstance(batch, Batch) for body in batch.bodies)
        seen = await self._backend.of_each(
            "observe queue",
            [*observed.values()],
            _queue,
            lambda t, some: _observe(t, some, share_of(left_bytes, some, observed)),
            read_only=True,
        )
        answers.update(zip(observed, seen, strict=True))
        return [answers[index] for index in range(len(reads))]

    def _read(self, transaction: Transaction, asked: Sequence[Read], max_bytes: int) -> Sequence[Batch | Refusal]:
        reads = [(read, read.epoch or 0) for read in asked]
        queues = self._known.find_queues(transaction, [read.queue for read, _ in reads])
        self._raise(transaction, [(r, epoch) for r, epoch in reads if epoch > queues[r.queue].epoch], queues)
        lost = _lost(transaction, [read for read, _ in reads], queues)
        spans: list[Span] = []
        for index, (read, epoch) in enumerate(reads):
            queue = queues[read.queue]
            first = max(read.start, queue.head)
            end = first if epoch < queue.epoch or index in lost else min(first + read.limit, queue.tail)
            spans.append((queue.id, first, end, queue.tail))
        batches = _fetch(transaction, spans, max_bytes)
        answers: list[Batch | Refusal] = [*batches]
        unarmed: dict[int, tuple[int, int, int]] = {}
        for index, ((read, epoch), batch) in enumerate(zip(reads, batches, strict=True)):
            queue = queues[read.queue]
            if epoch < queue.epoch:
                answers[index] = refusals.not_owner(f"group {group_of(read.queue)!r}", epoch, queue.epoch)
            elif index in lost:
                answers[index] = lost[index]
            elif batch.exhausted and queue.armed != transaction.instance:
                unarmed[index] = (queue.id, queue.tail, epoch)
        if unarmed:
            armed = {row[0] for row in transaction.rows("queues_arm", rows=[*unarmed.values()])}
            for index, (id_, *_) in unarmed.items():
                if id_ not in armed:
                    # A put came in between, so there is more to read.
                    answers[index] = batches[index]._replace(exhausted=False)
        return answers

    def _raise(self, transaction: Transaction, higher: Sequence[tuple[Read, int]], queues: dict[str, Queue]) -> None:
        """Write epochs that are higher than their group's to the table and to `queues`."""
        if not higher:
            return
        groups = self._known.lock_groups(transaction, (group_of(read.queue) for read, _ in higher))
        for read, epoch in higher:
            groups[group_of(read.queue)].fence(epoch)
        save_groups(transaction, groups.values())
        for name, queue in queues.items():
            if group := groups.get(group_of(name)):
                queue.epoch = group.epoch

    async def bounds(self, queues: Sequence[str]) -> list[Bounds | Failure]:
        """See `LogStore.bounds`."""
        return await self._backend.of_each("look at queue", queues, str, _bounds, read_only=True)

    async def trim(self, trims: Sequence[Trim]) -> list[bool | Refusal | Failure]:
        """See `LogStore.trim`. A seal is on disk when this returns: a seal that a crash undoes would lose messages."""
        sealing = any(trim.seal is not None or trim.layout is not None for trim in trims)
        durability = Durability.FSYNCED if sealing else Durability.ACCEPTED
        return await self._backend.of_each("trim queue", trims, _queue, self._trim, durability=durability)

    def _trim(self, transaction: Transaction, trims: Sequence[Trim]) -> Sequence[bool | Refusal]:
        fenced = (group_of(trim.queue) for trim in trims if trim.epoch is not None or trim.seal)
        groups, queues = self._known.lock(transaction, fenced, (trim.queue for trim in trims))
        before = {name: (queue.head, queue.sealed, queue.layout) for name, queue in queues.items()}
        lost = _lost(transaction, trims, queues)
        answers: list[bool | Refusal] = []
        for index, trim in enumerate(trims):
            if trim.epoch is not None and (stale := groups[group_of(trim.queue)].fence(trim.epoch)):
                answers.append(stale)
                continue
            if index in lost:
                answers.append(lost[index])
                continue
            queue = queues[trim.queue]
            queue.head = max(queue.head, min(trim.upto, queue.tail))
            if trim.seal is False or (trim.seal and not queue.held):
                queue.sealed = int(trim.seal)
            if queue.sealed and trim.seal:
                transaction.rows("ids_drop", group=groups[group_of(trim.queue)].id)
            queue.layout = max(queue.layout, trim.layout or 0)
            answers.append(bool(queue.sealed))
        save_groups(transaction, groups.values())
        changed = [queue for name, queue in queues.items() if (queue.head, queue.sealed, queue.layout) != before[name]]
        transaction.write("messages_drop", [(q.id, before[q.name][0], q.head) for q in changed])
        save_queues(transaction, changed)
        return answers


def _queue(each: Put | Read | Trim) -> str:
    return each.queue


def _bounds(transaction: Transaction, names: Sequence[str]) -> Sequence[Bounds]:
    rows = transaction.rows("queues_find", names=sorted(set(names)))
    found = {queue.name: Bounds(queue.head, queue.tail, queue.incarnation) for queue in (Queue(*row) for row in rows)}
    return [found.get(name, Bounds(FIRST_OFFSET, FIRST_OFFSET)) for name in names]


def _refusal(put: Put, count: int, queues: dict[str, Queue]) -> errors.EMQError | None:
    """Return the error for a put that the queue refuses, else None; drop the oldest messages if the put allows it."""
    queue = queues[put.queue]
    if queue.sealed or (put.layout is not None and put.layout < queue.layout):
        return queue_sealed(put.queue, queue.layout)
    if put.max_length is None or not count:  # a repeat takes no room
        return None
    held = sum(queues[name].held for name in {put.queue, *put.siblings})
    excess = held + count - put.max_length
    if excess <= 0:
        return None
    if put.drop_oldest and excess <= queue.held:
        queue.head += excess
        return None
    return refusals.full(f"group {group_of(put.queue)!r}", held, put.max_length, count)


def _lost(
    transaction: Transaction, asked: Sequence[Read | Trim], queues: dict[str, Queue]
) -> dict[int, errors.MessagesLost]:
    """Return the errors for requests whose owner has seen messages that are lost, by the number of the request."""
    found: dict[int, errors.MessagesLost] = {}
    wanted: dict[int, tuple[int, int]] = {}
    for number, each in enumerate(asked):
        queue, mark = queues[each.queue], each.mark
        beyond = isinstance(each, Read) and each.start > queue.tail
        if beyond or (mark is not None and mark.offset >= queue.tail):
            found[number] = messages_lost(each.queue, mark.offset if mark else queue.tail, queue.tail)
        elif mark is not None and mark.offset >= queue.head:
            wanted[number] = queue.id, mark.offset
    places = sorted(set(wanted.values()))
    fronts = {places[index]: bytes(front) for index, front in transaction.each("messages_fronts", places)}
    for number, place in wanted.items():
        each = asked[number]
        # A missing row below the tail is a hole, which proves nothing.
        if each.mark is not None and place in fronts and digest(fronts[place]) != each.mark.digest:
            found[number] = messages_lost(each.queue, each.mark.offset, queues[each.queue].tail)
    return found


def _observe(transaction: Transaction, reads: Sequence[Read], max_bytes: int) -> Sequence[Batch]:
    """Read without any change; not even make a row for a queue that was never used."""
    names = sorted({read.queue for read in reads})
    queues = {row[0]: Queue(*row) for row in transaction.rows("queues_find", names=names)}
    spans: list[Span] = []
    for read in reads:
        if (queue := queues.get(read.queue)) is None:
            first = max(read.start, FIRST_OFFSET)
            spans.append((0, first, first, FIRST_OFFSET))
        else:
            first = max(read.start, queue.head)
            spans.append((queue.id, first, min(first + read.limit, queue.tail), queue.tail))
    return _fetch(transaction, spans, max_bytes)


def _fetch(transaction: Transaction, spans: Sequence[Span], max_bytes: int) -> list[Batch]:
    """Return the messages of each span; cut the spans short at `max_bytes`."""
    found: dict[int, tuple[list[int], list[bytes]]] = {}
    cut = len(spans)
    filled = [number for number, span in enumerate(spans) if span[1] < span[2]]
    asked = [spans[number][:3] for number in filled]
    for index, offset, body in transaction.each("messages_read", asked, max_bytes=max_bytes):
        number = filled[index]
        if number not in found:
            found[number] = ([], [])
        offsets, bodies = found[number]
        offsets.append(offset)
        bodies.append(body)
        max_bytes -= len(body)
        if max_bytes <= 0:
            cut = number
            break
    batches = []
    for number, (id_, first, end, tail) in enumerate(spans):
        if first >= end or number > cut:
            batches.append(Batch((), (), first, first >= tail))
            continue
        offsets, bodies = found.get(number, ([], []))
        if not bodies and end < tail:  # only holes, as below a damaged tail, where there may be very many of them
            following = transaction.rows("messages_next", queue_id=id_, first=end)[0][0]
            end = tail if following is None else min(following, tail)
        if number == cut:
            end = offsets[-1] + 1
        dense = len(bodies) == end - first
        batches.append(Batch(range(first, end) if dense else offsets, bodies, end, end >= tail))
    return batches
