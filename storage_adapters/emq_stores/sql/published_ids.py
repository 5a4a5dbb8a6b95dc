"""The ids of publishes that groups remember, so that a repeated publish stores nothing twice."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from emq_stores.sql.backend import Transaction
from emq_stores.sql.texts import stored

FORGOTTEN = 2
"""Most ids that a group forgets for each id it learns, so that no call has much to forget."""


class PublishedIds:
    """The ids that some groups remember, as one transaction sees and changes them.

    Args:
        asked: rows of groups in `store_groups` by their id there, all locked, and the ids to look for.
        now_ms: the time on SQLite; on PostgreSQL the server's clock counts.
    """

    def __init__(self, transaction: Transaction, asked: Collection[tuple[int, str]], now_ms: int) -> None:
        self._transaction = transaction
        self._known: set[tuple[int, str]] = set()
        self._added: list[tuple[int, str, int]] = []
        if not asked:
            return
        self._now_ms = now_ms if transaction.is_sqlite else transaction.rows("now_ms")[0][0]
        rows = [(group_id, stored(id_)) for group_id, id_ in asked]
        found = transaction.rows("ids_find", rows=rows, now_ms=self._now_ms)
        self._known = {(group_id, id_) for group_id, id_ in found}

    def is_remembered(self, group_id: int, id_: str) -> bool:
        return (group_id, stored(id_)) in self._known

    def remember(self, group_id: int, ids: Iterable[str], for_ms: int) -> None:
        for id_ in map(stored, ids):
            self._known.add((group_id, id_))
            self._added.append((group_id, id_, self._now_ms + for_ms))

    def save(self) -> None:
        """Write the ids that were added; forget some whose time is over."""
        self._transaction.write("ids_add", self._added)
        for group_id in {group_id for group_id, _, _ in self._added}:
            most = FORGOTTEN * len(self._added)
            self._transaction.rows("ids_forget", group=group_id, now_ms=self._now_ms, most=most)
