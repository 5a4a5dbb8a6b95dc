"""The messages that are still in the store after the host has stopped, listed by id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from emq import App
from emq.groups.offset_tracker import OffsetTracker
from emq.observe import dead_letters
from emq.offsets.checkpoints import Checkpoint
from emq.runtime import errors
from emq.storage import message
from emq.storage.answers import served
from emq.storage.log_store import Read
from emq.topics.model import Topic

_PAGE = 2_000


class Leftovers(NamedTuple):
    """Ids of the messages in the store.

    Attributes:
        queued: ids of unfinished messages in queues: the host never started them, or they were in flight when the host
            stopped.
        delayed: ids of messages that wait for their time in lanes, retries among them.
        dead: ids of dead letters.
    """

    queued: frozenset[str]
    delayed: frozenset[str]
    dead: frozenset[str]


async def find(app: App, topics: Sequence[Topic]) -> Leftovers:
    """List the messages of these log topics in the store. No host may run, because this function takes the groups over.

    Raises:
        StoreUnavailable, DatabaseUnavailable: the store or the database does not reply; try again.
    """
    epoch = await app.database.next_generation(app.settings.environment, app.clock.now_us())
    queues = [queue for t in topics for queue in t.all_queues()]
    lanes = [t.group(group) for t in topics for group in range(t.groups)]
    dead = [letter.uid for topic in topics async for letter in dead_letters.find(app.store, topic)]
    return Leftovers(
        frozenset(await _queued(app, queues, epoch)), frozenset(await _delayed(app, lanes, epoch)), frozenset(dead)
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
            found.update(message.decode(body).uid for body in unfinished)
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
