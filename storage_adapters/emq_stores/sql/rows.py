"""Finds the rows of groups and queues, makes missing ones, and locks them in one order."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from emq.runtime import errors
from emq.storage.durability import Durability
from emq.storage.log_store import new_incarnation
from emq.storage.names import group_of
from emq_stores import refusals
from emq_stores.sql.backend import Transaction
from emq_stores.sql.damage import MOST, damaged

NEVER = math.inf
"""Rank that arms an empty lane or slot: every entry comes before it."""


KNOWN = 200_000
"""Most names of rows, of groups and of queues each, that an instance remembers before it forgets all."""


@dataclass(slots=True, eq=False)
class Group:
    """A locked row of `store_groups`, for a group with its lane or for a slot; change it, then call `save_groups`.

    Attributes:
        armed: the instance that claimed last, until it was woken; else None.
        armed_rank: an entry before this wakes the instance: a due time in a lane, a member's rank in a slot.
        fold: in a slot: the fold of its last add, for members that are rolled back onto a twin; None means "latest".
        waiting: in a slot: the number of waiting members; to count them at each bounded add would cost too much.
        sealed: 1 if adds of producers are refused.
    """

    name: str
    id: int
    epoch: int
    armed: str | None
    armed_rank: float | None
    fold: str | None
    waiting: int
    sealed: int
    _read: tuple[object, ...] = field(init=False)

    def __post_init__(self) -> None:
        if type(self.epoch) is not int or type(self.waiting) is not int or not -MOST < self.waiting < MOST:
            raise damaged(
                f"lane or slot {self.name!r}",
                f"its row in store_groups has the epoch {_shown(self.epoch)} and says that {_shown(self.waiting)} wait",
                "write numbers there, such as 0",
            )
        self._read = self.columns

    @property
    def columns(self) -> tuple[object, ...]:
        """The columns that a transaction may change."""
        return self.epoch, self.armed, self.armed_rank, self.fold, self.waiting, self.sealed

    @property
    def changed(self) -> bool:
        """True if the columns differ from the row as it was read."""
        return self.columns != self._read

    def refuses(self, epoch: int) -> errors.NotOwner | None:
        """Return the error for the owner of `epoch` if the row has a higher epoch; else None."""
        return refusals.not_owner(f"group {self.name.rstrip('/')!r}", epoch, self.epoch) if epoch < self.epoch else None

    def fence(self, epoch: int) -> errors.NotOwner | None:
        """Set the group's epoch to `epoch`, or return the error if the row has a higher one."""
        if stale := self.refuses(epoch):
            return stale
        self.epoch = epoch
        return None

    def arm(self, instance: str, rank: float | None) -> None:
        """Arm the row for `instance`, which knows all entries before `rank`; None if no entry waits."""
        self.armed = instance
        self.armed_rank = NEVER if rank is None or rank != rank else rank  # NaN: a damaged member's, who never runs

    def comes(self, transaction: Transaction, rank: float) -> None:
        """Note that an entry of `rank` waits now; wake the armed instance if the entry is before its `armed_rank`."""
        # With a damaged rank (NaN, on SQLite NULL), it is better to wake too often than too seldom.
        if self.armed is not None and not (self.armed_rank is not None and rank >= self.armed_rank):
            transaction.wake(self.armed, self.name)
            self.armed = self.armed_rank = None


@dataclass(slots=True, eq=False)
class Queue:
    """A row of `store_queues`. If it is locked, you may change it; then call `save_queues`.

    Attributes:
        epoch: the group's epoch, if the row was read without a lock; else -1.
    """

    name: str
    id: int
    head: int
    tail: int
    sealed: int
    layout: int
    incarnation: int
    armed: str | None
    epoch: int = -1

    def __post_init__(self) -> None:
        if type(self.head) is not int or type(self.tail) is not int or not 0 <= self.head <= self.tail < MOST:
            raise damaged(
                f"queue {self.name!r}",
                f"its row in store_queues has the head {_shown(self.head)} and the tail {_shown(self.tail)}",
                "set the head to the lowest msg_offset of its store_messages and the tail to one more than the highest",
            )

    @property
    def held(self) -> int:
        return self.tail - self.head


class KnownRows:
    """Names whose rows exist, unless somebody drops them.

    A transaction makes all rows that it needs, in the order of their names, before it locks any: so two transactions
    that make the same rows never wait for each other. The few that are missing after all are made behind the locks;
    if that is a deadlock, the database undoes one of the transactions, and it is carried out again.
    """

    def __init__(self) -> None:
        self._groups: set[str] = set()
        self._queues: set[str] = set()

    def lock_groups(self, transaction: Transaction, names: Iterable[str]) -> dict[str, Group]:
        """Lock and return the groups' rows; make missing ones."""
        return self.lock(transaction, names, ())[0]

    def lock(
        self, transaction: Transaction, groups: Iterable[str], queues: Iterable[str]
    ) -> tuple[dict[str, Group], dict[str, Queue]]:
        """Lock and return the rows of groups, then those of queues; make missing ones first."""
        names, queue_names = sorted(set(groups)), sorted(set(queues))
        unknown = [name for name in queue_names if name not in self._queues]
        self.add_groups(transaction, {*names, *map(group_of, unknown)} - self._groups)
        self._add_queues(transaction, unknown)
        found = _rows(transaction, "groups_lock", names, self.add_groups)
        locked = _all({row[0]: Group(*row) for row in found}, names, "lane or slot")
        found = _rows(transaction, "queues_lock", queue_names, self.add_queues)
        return locked, _all({row[0]: Queue(*row) for row in found}, queue_names, "queue")

    def find_queues(self, transaction: Transaction, names: Iterable[str]) -> dict[str, Queue]:
        """Return the queues' rows with their groups' epochs, without a lock; make missing ones."""
        wanted = sorted(set(names))
        found = _rows(transaction, "queues_find", wanted, self.add_queues)
        return _all({row[0]: Queue(*row) for row in found}, wanted, "queue")

    def add_groups(self, transaction: Transaction, names: Collection[str]) -> None:
        """Make the missing rows of these groups."""
        if names:
            self._remember(self._groups, names, transaction.rows("groups_add", names=sorted(names)))

    def add_queues(self, transaction: Transaction, names: Collection[str]) -> None:
        """Make the missing rows of these queues, and those of their groups."""
        self.add_groups(transaction, {group_of(name) for name in names})
        self._add_queues(transaction, names)

    def _add_queues(self, transaction: Transaction, names: Collection[str]) -> None:
        if names:
            with_groups = [(name, group_of(name)) for name in sorted(names)]
            made = transaction.rows("queues_add", names=with_groups, incarnation=new_incarnation())
            self._remember(self._queues, names, made)

    def forget(self, names: Iterable[str]) -> None:
        """Forget names whose rows a transaction drops. Other instances find out, and make the rows anew."""
        for name in names:
            self._groups.discard(name)
            self._queues.discard(name)

    def _remember(self, known: set[str], names: Collection[str], made: Iterable[Any]) -> None:
        """Remember names but for those of rows made now: the transaction may be undone, and none else sees them yet.

        If there are too many, forget all: names in use are soon remembered again.
        """
        if len(known) + len(names) > KNOWN:
            known.clear()
        known.update(set(names).difference(name for (name,) in made))


Row = TypeVar("Row", Group, Queue)


def _rows(
    transaction: Transaction, statement: str, names: list[str], add: Callable[[Transaction, Collection[str]], None]
) -> Sequence[Any]:
    """Run a statement for rows of these names; if some are missing, make them and run the statement again."""
    found = transaction.rows(statement, names=names) if names else ()
    if len(found) < len(names):
        add(transaction, names)
        found = transaction.rows(statement, names=names)
    return found


def _all(found: dict[str, Row], wanted: Sequence[str], what: str) -> dict[str, Row]:
    if len(found) < len(wanted):
        missing = next(name for name in wanted if name not in found)
        raise damaged(
            f"{what} {missing!r}",
            "its row, or that of its group, cannot be found, nor made",
            "correct its name in store_queues or store_groups and its group_id",
        )
    return found


def _shown(value: object) -> str:
    return repr(value)[:40]


def save_groups(transaction: Transaction, groups: Iterable[Group]) -> None:
    """Write the changed rows back; they are locked."""
    transaction.write("groups_save", [(*group.columns, group.id) for group in groups if group.changed])


def save_queues(transaction: Transaction, queues: Collection[Queue]) -> None:
    """Write locked rows back."""
    transaction.write("queues_save", [(q.head, q.tail, q.sealed, q.layout, q.armed, q.id) for q in queues])


def durability_of(settles: Iterable[Any]) -> Durability:
    """Return FSYNCED for settles with a seal, else ACCEPTED: a seal that a crash undoes would lose messages."""
    return Durability.FSYNCED if any(settle.verdict.is_of_all for settle in settles) else Durability.ACCEPTED
