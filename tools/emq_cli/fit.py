"""Whether a store and a database that come from two copies fit together. Changes nothing in either.

The checkpoints of the database say how far hosts had come in the store, and have *marks*: messages that hosts had read
(`emq.storage.marks`). A store that lacks a mark's message is older than the database. Hosts go back by the same marks
when they take a group over (`emq.offsets.rewinding`), so what is counted here is what they will do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import sqlalchemy as sa

from emq.app import App
from emq.database import tables
from emq.offsets import orphans
from emq.offsets.checkpoints import Checkpoint
from emq.offsets.orphans import Orphan
from emq.storage import identity
from emq.storage.answers import served
from emq.storage.log_store import Batch, Bounds, LogStore, Read
from emq.storage.marks import Mark, digest

TOGETHER = 1_000
"""Queues in one call of the store."""


class Fit(msgspec.Struct):
    """How a store and a database fit together.

    Attributes:
        store: the store's identity; None if no host has ever had it.
        expected: the identity of the store that the last host of the database had; None if there was none.
        is_known: the database has progress of this store, or of no store.
        queues: those with a checkpoint.
        waiting: their messages that hosts will deliver. Those that were finished after the copy of the database was
            made are among them.
        behind: queues that lack messages that hosts had read: the store is the older copy.
        missing: messages that these queues lack; at least one each.
        lost: those of them that were not finished.
        orphans: messages of topics or groups that the database does not know; None if the store cannot tell.
    """

    store: str | None = None
    expected: str | None = None
    is_known: bool = True
    queues: int = 0
    waiting: int = 0
    behind: int = 0
    missing: int = 0
    lost: int = 0
    orphans: Sequence[Orphan] | None = None

    @property
    def fits(self) -> bool:
        """Return whether hosts go on as after a stop: nothing is missing, and nothing is unknown."""
        return self.is_known and not self.behind and not self.orphans


async def look(app: App, progress: Callable[[int, int], None]) -> Fit:
    """Compare the store and the database of an open app.

    Args:
        progress: is told how many queues of how many were looked at.

    Raises:
        StoreUnavailable, DatabaseUnavailable: try again.
    """
    saved = await app.checkpoints.load_all()
    known = await app.database.run(lambda c: _stores(c, app.checkpoints.environment), read_only=True)
    found = Fit(await identity.find(app.store.lanes), next(iter(known), None), queues=len(saved))
    found.is_known = not known or found.store in known
    names = sorted(saved)
    for start in range(0, len(names), TOGETHER):
        progress(start, len(names))
        part = {name: saved[name] for name in names[start : start + TOGETHER]}
        bounds = dict(zip(part, served(await app.store.log.bounds([*part])), strict=True))
        _count(found, part, bounds, await _unconfirmed(app.store.log, part, bounds))
    if orphans.can_find(app.store):
        found.orphans = await orphans.find(app.store, {topic.name: topic for topic in await app.catalog.list()})
    return found


def _stores(connection: sa.Connection, environment: str) -> list[str]:
    """Return the identities of the stores that hosts had, the last one first."""
    known = tables.stores.c
    query = sa.select(known.identity).where(known.environment == environment).order_by(known.number.desc())
    return [*connection.execute(query).scalars()]


def _count(
    found: Fit, saved: Mapping[str, Checkpoint], bounds: Mapping[str, Bounds], unconfirmed: Mapping[str, int]
) -> None:
    for name, checkpoint in saved.items():
        head, tail, _ = bounds[name]
        if (upto := unconfirmed.get(name)) is not None:
            found.behind += 1
            found.missing += max(1, checkpoint.next_unread - tail)
            found.lost += checkpoint.unfinished(tail, max(tail, checkpoint.next_unread))
            checkpoint = checkpoint.rewound(upto, ())
        found.waiting += checkpoint.unfinished(head, tail)


async def _unconfirmed(log: LogStore, saved: Mapping[str, Checkpoint], bounds: Mapping[str, Bounds]) -> dict[str, int]:
    """Return the queues that lack what hosts had read, with the first offset that none of their marks confirms."""
    upto = {n: bounds[n].head for n, c in saved.items() if not c.marks and c.watermark > bounds[n].tail}
    doubtful = {name: checkpoint.marks for name, checkpoint in saved.items() if checkpoint.marks}
    while doubtful:
        there = {n: left[0] for n, left in doubtful.items() if bounds[n].head <= left[0].offset < bounds[n].tail}
        others = await _others(log, there)
        after: dict[str, tuple[Mark, ...]] = {}
        for name, left in doubtful.items():
            if left[0].offset < bounds[name].tail and name not in others:
                if len(left) < len(saved[name].marks):
                    upto[name] = left[0].offset + 1
            elif left[1:]:
                after[name] = left[1:]
            else:
                upto[name] = bounds[name].head
        doubtful = after
    return upto


async def _others(log: LogStore, wanted: Mapping[str, Mark]) -> set[str]:
    """Return the queues that have another message at the mark's offset. A hole there proves nothing."""
    found: set[str] = set()
    left = dict(wanted)
    while left:
        reads = [Read(name, mark.offset, 1, None) for name, mark in left.items()]
        for read, batch in zip(reads, served(await log.read(reads)), strict=True):
            assert isinstance(batch, Batch), batch  # nothing refuses an observer
            if batch.next == read.start and not batch.exhausted:
                continue  # the bodies before it were large enough for one call
            mark = left.pop(read.queue)
            if batch.offsets and batch.offsets[0] == mark.offset and digest(batch.bodies[0]) != mark.digest:
                found.add(read.queue)
    return found
