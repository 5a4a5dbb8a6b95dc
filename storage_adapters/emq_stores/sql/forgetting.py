"""Forgets groups of topics that are gone; see `emq.storage.store.Store`."""

from __future__ import annotations

from collections.abc import Sequence

from emq.storage.store import Ended
from emq_stores.sql.backend import Transaction
from emq_stores.sql.rows import Group, KnownRows, Queue, save_groups


def forgotten(transaction: Transaction, known: KnownRows, ended: Sequence[Ended]) -> list[Sequence[int] | None]:
    """Forget those groups that are sealed and empty, and have the mark; mark those that have none."""
    names = sorted({name for each in ended for name in _rows_of(each)})
    groups = {row[0]: Group(*row) for row in transaction.rows("groups_end", names=names)}
    names = sorted({name for each in ended for name in each.queues})
    queues = {row[0]: Queue(*row) for row in transaction.rows("queues_lock", names=names)}
    busy = {row[0] for row in transaction.rows("groups_busy", ids=[group.id for group in groups.values()])}
    answers: list[Sequence[int] | None] = [None] * len(ended)
    gone: list[Ended] = []
    for place, each in enumerate(ended):
        rows = [groups.get(name) for name in _rows_of(each)]
        there = [queues.get(name) for name in each.queues]
        if not all(row is not None and row.sealed and row.id not in busy for row in rows):
            continue
        if not all(queue is not None and queue.sealed and not queue.held for queue in there):
            continue
        if all(row is not None and row.epoch == each.mark for row in rows):
            answers[place] = [queue.tail for queue in there if queue is not None]
            gone.append(each)
        for row in rows:
            if row is not None:
                row.epoch = each.mark
    save_groups(transaction, groups.values())
    _drop(
        transaction,
        [queues[name] for each in gone for name in each.queues],
        [groups[name] for each in gone for name in _rows_of(each)],
    )
    known.forget(name for each in gone for name in (*_rows_of(each), *each.queues))
    return answers


def _rows_of(ended: Ended) -> list[str]:
    """Return the names of the rows of the lane and the slot."""
    return [ended.lane, *(() if ended.slot is None else (ended.slot.address,))]


def _drop(transaction: Transaction, queues: Sequence[Queue], groups: Sequence[Group]) -> None:
    ids = [(group.id,) for group in groups]
    transaction.write("queues_forget", [(queue.id,) for queue in queues])
    transaction.write("entries_clear", ids)
    transaction.write("ids_clear", ids)
    transaction.rows("groups_forget", ids=[group.id for group in groups])
