"""What is still in the store after the host has stopped, listed by message id."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from emq import errors, message
from emq.app import App
from emq.model import Topic
from emq.offsets.checkpoints import Checkpoint
from emq.offsets.tracker import OffsetTracker
from emq.storage import Claim, Read

_PAGE = 2_000
_FAR_FUTURE_MS = 1 << 52


class Leftovers(NamedTuple):
    """Message ids.

    Attributes:
        queued: not finished in the log queues: never started, or in flight when the host stopped.
        delayed: waiting in the retry slots for their next attempt.
        dead: dead letters.
    """

    queued: frozenset[str]
    delayed: frozenset[str]
    dead: frozenset[str]


async def find(app: App, topics: Sequence[Topic]) -> Leftovers:
    """List what the store holds of these topics. No host may run: reading takes the groups over.

    Raises:
        StoreUnavailable, DatabaseUnavailable: try again.
    """
    epoch = await app.database.next_generation(app.settings.environment)
    queues = [queue for t in topics for group in range(t.groups) for queue in t.queues(group)]
    slots = [t.group(group) for t in topics for group in range(t.groups)]
    return Leftovers(
        frozenset(await _queued(app, queues, epoch)),
        frozenset(await _delayed(app, slots, epoch)),
        frozenset(await _dead(app, slots)),
    )


async def _queued(app: App, queues: Sequence[str], epoch: int) -> set[str]:
    saved = await app.checkpoints.load(queues)
    found: set[str] = set()
    for queue, bounds in zip(queues, await app.store.log.bounds(queues), strict=True):
        checkpoint = saved.get(queue, Checkpoint(queue, 0, bounds.head))
        progress = OffsetTracker(checkpoint.watermark, checkpoint.finished)
        position = checkpoint.watermark
        while position < bounds.tail:
            [batch] = await app.store.log.read([Read(queue, position, _PAGE, epoch)])
            if isinstance(batch, errors.NotOwner):
                raise batch
            unfinished = (b for o, b in zip(batch.offsets, batch.bodies, strict=True) if not progress.is_finished(o))
            found.update(_ids(unfinished))
            position = batch.next
            if batch.exhausted:
                break
    return found


async def _delayed(app: App, slots: Sequence[str], epoch: int) -> set[str]:
    """Claiming is the way to see what waits; with the host gone it stays claimed until the next one recovers it."""
    await app.store.lanes.recover([(slot, epoch) for slot in slots])
    found: set[str] = set()
    pending = list(slots)
    while pending:
        answers = await app.store.lanes.claim([Claim(slot, _PAGE, epoch) for slot in pending], _FAR_FUTURE_MS)
        more = []
        for slot, claimed in zip(pending, answers, strict=True):
            if isinstance(claimed, errors.NotOwner):
                raise claimed
            found.update(id_ for id_, _ in claimed.entries)
            if claimed.next_due_ms is not None:
                more.append(slot)
        pending = more
    return found


async def _dead(app: App, slots: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for slot in slots:
        after = (0, "")
        while page := await app.store.lanes.dead(slot, after, _PAGE):
            found.update(letter.id for letter in page)
            after = (page[-1].dead_ms, page[-1].id)
    return found


def _ids(bodies: Iterable[bytes]) -> Iterable[str]:
    return (message.decode(body).id for body in bodies)
