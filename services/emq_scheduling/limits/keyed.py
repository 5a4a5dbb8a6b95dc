"""The accounts of limits by tenant and by key (`emq_scheduling.model.KeyLimit`).

The account of a key is made when a task of the key is next, and it is forgotten once nothing of it counts: nothing is
charged, and no task is in flight or waits for it. So the cost follows the keys that are awake, and a million keys that
were used once leave nothing.

Each limit has its accounts in the order of their last use, so that only those are looked at whose period is over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from emq_scheduling.limits.account import SAVED, Entry, Key, meter_for
from emq_scheduling.limits.limits import InFlightMeter, Meter
from emq_scheduling.limits.reserve import Reserve
from emq_scheduling.model import PERIODS_S, KeyLimit, Kind, Period, Pool

Id = tuple[str, tuple[str, ...]]
"""The name of a limit in the pool, and the values of its key."""

MARK = "\x1f"
"""Begins the names of these accounts in the database, and parts the values of their keys: no name or value has it."""

DROPS = 10_000
"""Most accounts that one look forgets, so that it takes some milliseconds."""

NO_IDS: tuple[Id, ...] = ()


class Counted(Protocol):
    """A task, as far as limits by key look at it."""

    @property
    def type(self) -> str: ...

    @property
    def tenant(self) -> str: ...

    @property
    def keys(self) -> Mapping[str, str] | None: ...


class KeyAccount:
    """The use of one limit by one key.

    Attributes:
        id: the limit and the key.
        unit: the name of the counted units.
        meter: counts them.
        reserve: of a limit per minute, hour or day, if its use is saved; else None.
        holds: tasks in flight, and bays of waiting tasks, that keep the account.
        is_saved: whether the database may have it.
        used_at: when it was last charged, in seconds since the epoch.
        is_shared: whether tasks of several priorities use it; None if nobody has looked since the last change.
        spread: what the more urgent of these leave to the others.
    """

    __slots__ = ("_book", "holds", "id", "is_saved", "is_shared", "meter", "reserve", "spread", "unit", "used_at")

    def __init__(self, at: Id, book: _Book, meter: Meter, *, saves: bool, now: float) -> None:
        self.id = at
        self.unit = book.plain.name
        self.meter = meter
        self.reserve = Reserve() if saves and book.of.per in SAVED else None
        self.holds = 0
        self.is_saved = False
        self.is_shared: bool | None = None
        self.spread: Any = None
        self.used_at = now
        self._book = book

    @property
    def name(self) -> str:
        """Its name in the database."""
        return MARK + MARK.join((self.id[0], *self.id[1]))

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Its meters."""
        own = (self.meter, self.unit)
        return (own,) if self.reserve is None else (own, (self.reserve, self.unit))

    @property
    def meters(self) -> dict[Key, Meter]:
        """The meter, as the account of a resource has its meters."""
        return {(self.unit, self._book.of.per): self.meter}

    @property
    def reserves(self) -> dict[Key, Reserve]:
        """The reserve, if there is one, as the account of a resource has its reserves."""
        return {} if self.reserve is None else {(self.unit, self._book.of.per): self.reserve}

    @property
    def per(self) -> Period:
        """The period of the limit."""
        return self._book.of.per

    def kind_of(self, _: Key) -> Kind | None:
        """Return how the limit counts; None in flight."""
        return self._book.plain.counts

    def next_at(self, units: float, now: float) -> float:
        """Return when the units fit if nothing else is charged; infinity if the end of a task or a save makes room."""
        if self.reserve is not None and not self.reserve.fits(units, now):
            return math.inf
        return self.meter.next_at(units, now)


class _Book:
    """The accounts of one limit, those that were used last at the end.

    Attributes:
        keeps_s: seconds from its last use after which an account may be empty.
        most_urgent: the priority of the most urgent type, if it counts types of several.
    """

    most_urgent: int | None = None

    def __init__(self, name: str, limit: KeyLimit) -> None:
        self.name = name
        self.accounts: dict[tuple[str, ...], KeyAccount] = {}
        self.set(limit)

    def set(self, limit: KeyLimit) -> None:
        self.of = limit
        self.plain = limit.limit(self.name, limit.amount)
        self.zone = limit.zone or "UTC"
        self.keeps_s = PERIODS_S.get(limit.per, 0.0)

    def is_same(self, limit: KeyLimit) -> bool:
        """Return whether a limit counts the same units of the same keys, so that its accounts stay."""
        return (limit.limit(self.name, 0.0).name, limit.per, limit.names) == (
            *(self.plain.name, self.of.per),
            self.of.names,
        )

    def follow(self, limit: KeyLimit, now: float) -> None:
        """Take over a changed limit of the same units and keys; the accounts keep their use."""
        kind = self.of.limit(self.name, 0.0).counts
        self.set(limit)
        for key, account in self.accounts.items():
            account.meter = meter_for(self.plain, self.zone, account.meter, kind, now)
            account.meter.set_amount(limit.amount_of(key), now)


class KeyedAccounts:
    """The accounts of all limits by key of a pool.

    Args:
        saves: True if `emq_scheduling.limits.usage` saves the counts.

    Attributes:
        touched: by name, accounts whose use may have to be saved.
        short: by name, those for which a task waits until they are saved.
        gone: names of accounts that were forgotten, and may be in the database.
        roomy: accounts that were given room by a save.
    """

    def __init__(self, *, saves: bool) -> None:
        self.touched: dict[str, KeyAccount] = {}
        self.short: dict[str, KeyAccount] = {}
        self.gone: dict[str, None] = {}
        self.roomy: dict[KeyAccount, None] = {}
        self._saves = saves
        self._books: dict[str, _Book] = {}
        self._former: dict[str, _Book] = {}  # of limits that are gone, whose use still counts if they come back
        self._by_type: dict[str, tuple[_Book, ...]] = {}
        self._limits: Mapping[str, KeyLimit] = {}
        self._emptied_at = -math.inf

    def begin(self, now: float) -> None:
        """Take buckets and rolling seconds for used up as of now: a former owner of the pool may have used them."""
        self._emptied_at = now

    def follow(self, pool: Pool, now: float) -> None:
        """Take over a changed pool. Lower amounts count at once; what is used and in flight is kept."""
        before, self._limits = self._limits, pool.limits
        for name in before:
            book = self._books[name]
            limit = pool.limits.get(name)
            if limit is None or not book.is_same(limit):
                self._close(self._books.pop(name))
            elif limit != before[name]:
                book.follow(limit, now)
        for name, limit in pool.limits.items():
            if name not in self._books:
                self._books[name] = self._opened(name, limit, now)
        counted = {
            kind: tuple(book for book in self._books.values() if book.of.counts_type(kind)) for kind in pool.types
        }
        self._by_type = {kind: books for kind, books in counted.items() if books}
        if self._books:
            self._follow_types(pool)

    def _opened(self, name: str, limit: KeyLimit, now: float) -> _Book:
        """Return the accounts of a new limit: those that it had, if it was gone for less than its period."""
        book = self._former.pop(name, None)
        if book is not None and book.is_same(limit):
            book.follow(limit, now)
            return book
        for account in () if book is None else book.accounts.values():
            self._forget(account)
        return _Book(name, limit)

    def _close(self, book: _Book) -> None:
        """Leave out the accounts of a limit that is gone; those by time are kept, in case it comes back."""
        for account in book.accounts.values():
            (self._forget if book.of.per == "in_flight" else self._rest)(account)
        if book.of.per != "in_flight":
            self._former[book.name] = book

    def _follow_types(self, pool: Pool) -> None:
        for book in self._books.values():
            priorities = {kind.priority for name, kind in pool.types.items() if book.of.counts_type(name)}
            book.most_urgent = min(priorities) if len(priorities) > 1 else None
        for account in self.all():
            account.is_shared = account.spread = None

    def ids(self, task: Counted) -> tuple[Id, ...]:
        """Return the accounts that count a task; they may not exist yet."""
        books = self._by_type.get(task.type)
        if books is None:
            return NO_IDS
        return tuple((book.name, book.of.key_of(task.tenant, task.keys)) for book in books)

    def open(self, at: Id, now: float) -> KeyAccount:
        """Return an account, which may be new."""
        book = self._books[at[0]]
        account = book.accounts.get(at[1])
        if account is None:
            account = book.accounts[at[1]] = self._made(book, at, now)
        return account

    def fits(self, account: KeyAccount, units: float, now: float) -> bool:
        """Return whether a task that costs these units may start now."""
        if not account.meter.fits(units, now):
            return False
        if account.reserve is None or account.reserve.fits(units, now):
            return True
        self.short[account.name] = account
        return False

    def charged(self, account: KeyAccount, now: float) -> None:
        """A task was charged to an account, and holds it until `released`."""
        account.holds += 1
        account.used_at = now
        book = self._books.get(account.id[0])
        if book is not None and book.accounts.pop(account.id[1], None) is not None:
            book.accounts[account.id[1]] = account  # the last one now
        self.touch(account)

    def released(self, account: KeyAccount) -> None:
        """A task that was charged to an account has ended."""
        account.holds -= 1

    def rebound(self, keyed: tuple[KeyAccount, ...], task: Counted | None, now: float) -> tuple[KeyAccount, ...]:
        """Return the accounts that hold a task in flight under changed limits.

        Args:
            keyed: those that were charged at its start; those of limits by time stay.
        """
        found = [each for each in keyed if not isinstance(each.meter, InFlightMeter)]
        for at in NO_IDS if task is None else self.ids(task):
            if self._limits[at[0]].per == "in_flight":
                found.append(self.open(at, now))
        return tuple(found)

    def touch(self, account: KeyAccount) -> None:
        """The use of an account may have to be saved, unless its limit is gone, as under tasks that still run."""
        book = self._books.get(account.id[0])
        if book is None or book.accounts.get(account.id[1]) is not account:
            return
        if self._saves and not isinstance(account.meter, InFlightMeter):
            self.touched[account.name] = account

    def sweep(self, now: float) -> None:
        """Forget accounts of which nothing counts any more: call this about once a second."""
        self._former = {name: book for name, book in self._former.items() if book.accounts}
        books = [*self._books.values(), *self._former.values()]
        for book in books:
            left, looked = DROPS // len(books), []  # each its part, or full ones would leave the others none
            for account in book.accounts.values():
                if left <= 0 or account.used_at + book.keeps_s > now >= account.used_at:
                    break
                looked.append(account)
                left -= 1
            for account in looked:
                if account.holds or account.meter.used(now) > 0:
                    account.used_at = now
                    del book.accounts[account.id[1]]
                    book.accounts[account.id[1]] = account
                else:
                    del book.accounts[account.id[1]]
                    self._forget(account)

    def most_urgent(self, account: KeyAccount) -> int | None:
        """Return the priority of the most urgent type that an account counts; None if nothing is kept for that.

        That is so for types of equal priority, for limits in flight, and for those by the second.
        """
        book = self._books.get(account.id[0])
        if book is None or book.of.per in ("in_flight", "second"):
            return None
        return book.most_urgent

    def counts(self) -> dict[str, int]:
        """Return how many accounts each limit has."""
        return {name: len(book.accounts) for name, book in self._books.items()}

    def account(self, name: str) -> KeyAccount:
        """Return the account of this name in the database. Raises `KeyError` if there is none."""
        limit, *key = name[1:].split(MARK)
        return self._books[limit].accounts[tuple(key)]

    def restored(self, name: str, now: float) -> KeyAccount | None:
        """Return the account of a name that a former owner saved; None if no limit has it any more."""
        limit, *key = name[1:].split(MARK)
        book = self._books.get(limit)
        if book is None or len(key) != len(book.of.names):
            self.gone[name] = None
            return None
        account = self.open((limit, tuple(key)), now)
        account.is_saved = True
        return account

    def has(self, name: str) -> bool:
        """Return whether there is an account of this name."""
        limit, *key = name[1:].split(MARK)
        return limit in self._books and tuple(key) in self._books[limit].accounts

    def saved(self, name: str) -> None:
        """The use of an account and its reserve are in the database, so that tasks of the key may start."""
        if self.has(name) and (account := self.account(name)).holds:
            self.roomy[account] = None

    def unsaved(self, name: str) -> None:
        """The use of an account may not be in the database: save it again."""
        if self.has(name):
            self.touch(self.account(name))

    def all(self) -> Iterator[KeyAccount]:
        """Yield all accounts."""
        for book in self._books.values():
            yield from book.accounts.values()

    def _made(self, book: _Book, at: Id, now: float) -> KeyAccount:
        is_emptied = book.of.per == "second" and book.plain.counts != "calendar" and self._emptied_at > -math.inf
        since = self._emptied_at if is_emptied else now
        meter = meter_for(book.plain, book.zone, None, None, since)
        if (amount := book.of.amount_of(at[1])) != book.plain.amount:
            meter.set_amount(amount, since)
        if is_emptied:
            meter.charge(meter.room(since), since)
        return KeyAccount(at, book, meter, saves=self._saves, now=now)

    def _rest(self, account: KeyAccount) -> None:
        """Neither save an account nor let tasks wait for it."""
        name = account.name
        self.touched.pop(name, None)
        self.short.pop(name, None)
        self.roomy.pop(account, None)

    def _forget(self, account: KeyAccount) -> None:
        self._rest(account)
        if account.is_saved:
            self.gone[account.name] = None
