"""The messages that are still in the store after the host has stopped, listed by id."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from emq import App
from emq.groups.offset_tracker import OffsetTracker
from emq.offsets.checkpoints import Checkpoint
from emq.runtime import errors
from emq.storage import message
from emq.storage.answers import served
from emq.storage.log_store import Read
from emq.storage.slot_store import Recover, SortedStore
from emq.topics.model import Kind, Topic

_PAGE = 2_000


class Leftovers(NamedTuple):
    """Ids of the messages in the store.

    Attributes:
        queued: ids of unfinished messages in log queues and of ready ones in slots: the host never started them, or
            they were in flight when the host stopped.
        delayed: ids of messages that wait for their time, in lanes (retries among them) or slots.
        dead: ids of dead letters.
    """

    queued: frozenset[str]
    delayed: frozenset[str]
    dead: frozenset[str]


async def find(app: App, topics: Sequence[Topic]) -> Leftovers:
    """List the messages of these topics in the store. No host may run, because this function takes the groups over.

    Raises:
        StoreUnavailable, DatabaseUnavailable: the store or the database does not reply; try again.
    """
    epoch = await app.database.next_generation(app.settings.environment, app.clock.now_us())
    queues = [queue for t in topics for queue in t.all_queues()]
    lanes = [t.group(group) for t in topics for group in range(t.groups)]
    ready, later, dead = await _in_slots(app.store.sorted, [t for t in topics if t.is_sorted], epoch)
    return Leftovers(
        frozenset(await _queued(app, queues, epoch) | ready),
        frozenset(await _delayed(app, lanes, epoch) | later),
        frozenset(await _dead(app, lanes) | dead),
    )


async def _queued(app: App, queues: Sequence[str], epoch: int) -> set[str]:
    saved = await app.checkpoints.load(queues)
    found: set[str] = set()
    for queue, bounds in zip(queues, served(await app.store.log.bounds(queues)), strict=True):
        checkpoint = saved.get(queue, Checkpoint(queue, 0, bounds.head))
        progress = OffsetTracker(checkpoint.watermark, checkpoint.finished)
        position = checkpoint.watermark
        while position < bounds.tail:
            [batch] = await app.store.log.read([Read(queue, position, _PAGE, epoch)])
            if isinstance(batch, errors.EMQError):
                raise batch
            unfinished = (b for o, b in zip(batch.offsets, batch.bodies, strict=True) if not progress.is_finished(o))
            found.update(_ids(unfinished))
            position = batch.next
            if batch.exhausted:
                break
    return found


async def _delayed(app: App, lanes: Sequence[str], epoch: int) -> set[str]:
    """Return the ids of all lane entries that wait; first let entries that the stopped host had claimed wait again."""
    served(await app.store.lanes.recover([(lane, epoch) for lane in lanes]))
    found: set[str] = set()
    for lane in lanes:
        skip = 0
        while page := await app.store.lanes.waiting(lane, skip, _PAGE):
            found.update(entry.id for entry in page)
            skip += len(page)
    return found


async def _dead(app: App, lanes: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for lane in lanes:
        after = (0, "")
        while page := await app.store.lanes.dead(lane, after, _PAGE):
            found.update(letter.id for letter in page)
            after = (page[-1].dead_ms, page[-1].id)
    return found


async def _in_slots(store: SortedStore, topics: Sequence[Topic], epoch: int) -> tuple[set[str], set[str], set[str]]:
    """Return the ids of the slots' members: ready, waiting for their time, and dead. A member determines its id."""
    ready: set[str] = set()
    later: set[str] = set()
    dead: set[str] = set()
    now_ms = int(time.time() * 1000)
    for topic, index in ((t, i) for t in topics for i in range(t.slots)):
        slot = topic.slot(index)
        [back] = served(await store.recover([Recover(slot, epoch)], now_ms))
        if isinstance(back, errors.NotOwner):
            raise back
        skip = 0
        while page := await store.waiting(slot, skip, _PAGE):
            for member, score, *_ in page:
                by_time = topic.kind is not Kind.PRIORITY
                (later if by_time and score > now_ms else ready).add(message.slot_id(index, member))
            skip += len(page)
        after = (0, b"")
        while letters := await store.dead(slot, after, _PAGE):
            dead.update(message.slot_id(index, letter.member) for letter in letters)
            after = (letters[-1].dead_ms, letters[-1].member)
    return ready, later, dead


def _ids(bodies: Iterable[bytes]) -> Iterable[str]:
    return (message.decode(body).uid for body in bodies)
