"""Keeps the use of limits per minute, hour and day through a crash or a change of the pool's owner.

**Reserve ahead.** A save holds the use of a limit and a reserve of a few seconds' use beyond. Until the next save only
the reserve may be used. So the database counts all use before a crash already: the next owner charges the saved use,
and the reserve as if just used, and no period is over its limit. In exchange, a crash loses the rest of the reserve,
and a task without room in the reserve waits for the next save. Saves run in the background, about once a second, and at
once if a task waits for one.

The reserve follows the use: `RESERVE_S` seconds of the latest rate or of the limit's average rate, two of the largest
tasks, and twice as much as before if it was not enough.

**Keys.** The account of a key is saved in the same way, in a row of its own. Only those are looked at that were charged
since, or for which a task waits. Once an account is forgotten, its row is deleted.

Of limits per second only debt is saved: a new owner starts nothing in its first second of the clock, and takes rolling
seconds and buckets for used up. This is the pure part;
`emq_scheduling.limits.usage_keeper` reads and writes the database.
"""

from __future__ import annotations

import itertools
import math

import msgspec

from emq_scheduling.limits.account import Account, Key
from emq_scheduling.limits.accounts import Accounts
from emq_scheduling.limits.keyed import MARK, KeyAccount
from emq_scheduling.limits.limits import BucketMeter, PeriodMeter, WindowMeter
from emq_scheduling.limits.reserve import Reserve
from emq_scheduling.model import PERIODS_S, Kind

RESERVE_S = 3.0
"""Seconds of use that a reserve lasts."""

LARGEST = 2.0
"""Number of the largest tasks that fit into a reserve."""

LEAST_S = 1.0
"""Shortest time in which a rate is measured: a save that comes soon after another one sees bursts."""

FADE_S = 10.0
"""Time in which a former rate counts half."""

REFRESH_S = 15.0
"""Time after which a limit is saved even if its reserve is large enough, so that less of it is lost."""

AT_ONCE = 100
"""Resources that one save holds at most, so that planning it takes milliseconds."""

KEYS_AT_ONCE = 1_000
"""Keys that one save holds at most."""

ALL_S = 1.0
"""Seconds between looks at all keys that were charged; between these, only those are saved for which tasks wait."""

TOLD_S = 2.0
"""Least seconds between saves of a limit only because of what its provider says is left."""

DEBT_S = 1.0
"""Debt of a limit per second is saved if it will be paid this many seconds later than the saved debt."""

BUCKET = 5
"""Cells that are saved as one, which leaves the window with the last of them."""


class SavedLimit(msgspec.Struct, frozen=True, array_like=True):
    """One limit of a resource.

    Attributes:
        held: units in the window, each with the time at which they leave it; the first to leave first.
        debt: units that are charged when there is room.
        reserve: units that may have been used since.
        kind: how it counted.
        full: of a bucket: the units that it held when full.
        per_s: of a bucket: the units that came each second. These three are None if an older EMQ saved it.
        left: units that a provider said are left, and until when; None if nobody said that.
    """

    held: tuple[tuple[float, float], ...]
    debt: float
    reserve: float
    kind: Kind | None = None
    full: float | None = None
    per_s: float | None = None
    left: tuple[float, float] | None = None


class SavedUse(msgspec.Struct, frozen=True):
    """The use of a resource at a time, in seconds since the epoch; limits by name and period ("tokens/minute")."""

    at: float
    limits: dict[str, SavedLimit]


class Usage:
    """The use of the limits of a pool, as it is saved.

    Args:
        accounts: made with `saves=True`. Nothing starts under a limit per minute, hour or day before the first save.

    Attributes:
        has_more: whether the last plan left out accounts that must be saved: save again soon.
    """

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._watched: list[Reserve] = []
        self._paid_at: dict[str, dict[str, float]] = {}  # when the saved debt of limits per second is paid
        self._rows: dict[str, float] = {}  # resources that the database may have, and until when that counts
        self._all_at = -math.inf  # the last look at all keys
        self.has_more = False

    def restore(self, saved: dict[str, SavedUse], now: float) -> None:
        """Charge a former owner's saved use, by resource, and its reserves, before anything starts."""
        keyed = self._accounts.keyed
        self._rows = {name: _until(use) for name, use in saved.items() if not name.startswith(MARK)}
        accounts: dict[str, Account | KeyAccount] = {}
        for name in [name for name in saved if name.startswith(MARK)]:
            if (kept := keyed.restored(name, now)) is not None:
                accounts[name] = kept
        accounts |= {name: self._accounts.account(name) for name in self._accounts.names()}
        for name, account in accounts.items():
            for key, meter in account.meters.items():
                limit = saved[name].limits.get(_written(key)) if name in saved else None
                if limit is not None and isinstance(meter, PeriodMeter):
                    _restore(meter, account.kind_of(key), limit, saved[name].at, now)
                    meter.charge(limit.reserve, now)
                    if limit.left is not None and isinstance(account, Account) and limit.left[1] > now:
                        left, until = limit.left
                        left = max(0.0, left - limit.reserve)
                        self._accounts.tell(name, key[0], left, until - now, now, key[1], name)
                if isinstance(account, Account) and key[1] == "second" and account.kind_of(key) != "calendar":
                    meter.charge(meter.room(now), now)  # only its debt is saved, and the rest may be used up

    def is_short(self) -> bool:
        """Return True if a task waits for a save."""
        return bool(self._accounts.keyed.short) or any(reserve.asked for reserve in self._watched)

    def plan(self, now: float) -> dict[str, SavedUse]:
        """Return the resources to save now, because a limit of them needs it.

        At most `AT_ONCE`, and `KEYS_AT_ONCE` accounts of keys, first those for which tasks wait. Call `saved` or
        `doubtful` with it before the next `plan`.
        """
        due: dict[str, bool] = {}
        self._watched = []
        for name in self._accounts.names():
            reserves = self._reserves(name)
            self._watched += reserves.values()
            if self._needs(name, reserves, now):
                due[name] = any(reserve.asked for reserve in reserves.values())
        chosen = sorted(due, key=due.__getitem__, reverse=True)[:AT_ONCE]
        chosen += self._keys(now)
        self.has_more = len(due) > AT_ONCE or bool(self._accounts.keyed.short)
        found = {}
        for name in chosen:
            limits = {_written(key): self._planned(name, key, now) for key in self._reserves(name)}
            use = found[name] = SavedUse(now, limits | self._debts(name, now))
            if not name.startswith(MARK):
                self._rows[name] = _until(use)
        return found

    def _needs(self, name: str, reserves: dict[Key, Reserve], now: float) -> bool:
        """Return whether a limit of an account must be saved."""
        if any(self._is_due(reserve, now) or self._is_told(name, key, now) for key, reserve in reserves.items()):
            return True
        return any(
            self._paid(name, key, limit.debt, now) > self._paid_at.get(name, {}).get(key, now) + DEBT_S
            for key, limit in self._debts(name, now).items()
        )

    def _keys(self, now: float) -> list[str]:
        """Return the accounts of keys to save now: first those for which tasks wait."""
        keyed = self._accounts.keyed
        chosen = dict.fromkeys(itertools.islice(keyed.short, KEYS_AT_ONCE))
        if not self._all_at <= now < self._all_at + ALL_S:
            self._all_at = now
            for name, account in list(keyed.touched.items()):
                if len(chosen) >= KEYS_AT_ONCE:
                    break
                reserve = account.reserve
                if self._needs(name, {}, now) if reserve is None else self._is_due(reserve, now):
                    chosen[name] = None
                elif reserve is None or not reserve.charged:
                    del keyed.touched[name]
        for name in chosen:
            keyed.short.pop(name, None)
            keyed.touched.pop(name, None)
            keyed.account(name).is_saved = True
        return list(chosen)

    def gone(self, now: float) -> list[str]:
        """Return the names of accounts whose rows are to be deleted; call `deleted` once they are."""
        keyed = self._accounts.keyed
        for name in list(keyed.gone):
            if keyed.has(name):  # it was used again since, or its limit came back
                keyed.account(name).is_saved = True  # as the row is still there
                del keyed.gone[name]
        over = self._rows.items()
        resources = [name for name, until in over if until <= now and not self._accounts.counts(name)]
        return [*itertools.islice(keyed.gone, KEYS_AT_ONCE), *resources[:AT_ONCE]]

    def deleted(self, names: list[str]) -> None:
        """The rows of these accounts are deleted."""
        for name in names:
            self._accounts.keyed.gone.pop(name, None)
            self._rows.pop(name, None)
            self._paid_at.pop(name, None)

    def final(self, now: float) -> dict[str, SavedUse]:
        """Return the use of all accounts, without reserves, to save once nothing starts any more."""
        found = {}
        names = self._accounts.names()
        names += [account.name for account in self._accounts.keyed.all() if account.meter.used(now) > 0]
        for name in names:
            limits = {_written(key): self._saved_limit(name, key, 0.0, now) for key in self._reserves(name)}
            limits |= self._debts(name, now)
            if limits:
                found[name] = SavedUse(now, limits)
        return found

    def saved(self, plan: dict[str, SavedUse]) -> None:
        """The plan is in the database."""
        for name, use in plan.items():
            reserves = self._reserves(name)
            for key, reserve in reserves.items():
                if _written(key) in use.limits:
                    reserve.saved(reserve.course.planned)
                    reserve.course.saved_at = use.at
            debts = use.limits.keys() - {_written(key) for key in reserves}
            self._paid_at[name] = {each: self._paid(name, each, use.limits[each].debt, use.at) for each in debts}
            if not debts:
                del self._paid_at[name]
            if name.startswith(MARK):
                self._accounts.keyed.saved(name)

    def doubtful(self, plan: dict[str, SavedUse]) -> None:
        """The plan may or may not be in the database."""
        for name, use in plan.items():
            for key, reserve in self._reserves(name).items():
                if _written(key) in use.limits:
                    reserve.doubtful(reserve.course.planned)
            if name.startswith(MARK):
                self._accounts.keyed.unsaved(name)

    def _account(self, name: str) -> Account | KeyAccount:
        """Return an account. Raises `KeyError` if it was removed or forgotten."""
        return self._accounts.keyed.account(name) if name.startswith(MARK) else self._accounts.account(name)

    def _reserves(self, name: str) -> dict[Key, Reserve]:
        try:
            return self._account(name).reserves
        except KeyError:  # it was removed since the plan
            return {}

    def _debts(self, name: str, now: float) -> dict[str, SavedLimit]:
        """Return the account's limits per second with debt, which may outlast a change of the owner, too."""
        found = {}
        for key, meter in self._account(name).meters.items():
            if key[1] == "second" and isinstance(meter, PeriodMeter) and meter.debt > 0:
                meter.used(now)  # pays what has been paid until now
                if meter.debt > 0:
                    found[_written(key)] = self._saved_limit(name, key, 0.0, now)
        return found

    def _paid(self, name: str, written: str, debt: float, now: float) -> float:
        """Return when debt of a limit per second will be paid."""
        try:
            meters = self._account(name).meters
        except KeyError:  # it was removed since the plan
            return now
        meter = next((meter for key, meter in meters.items() if _written(key) == written), None)
        return now if meter is None else now + debt / max(meter.amount, 1e-9)

    @staticmethod
    def _is_due(reserve: Reserve, now: float) -> bool:
        course = reserve.course
        if reserve.asked or course.saved_at == -math.inf:
            return True
        if not reserve.charged and reserve.left >= 0:
            return False
        return reserve.left < course.chunk / 2 or not course.saved_at <= now < course.saved_at + REFRESH_S

    def _is_told(self, name: str, key: Key, now: float) -> bool:
        """Return whether a provider has said since the last save that less is left than is counted."""
        account = self._account(name)
        quote = account.quotes.get(key) if isinstance(account, Account) else None
        saved_at = account.reserves[key].course.saved_at
        if quote is None or quote.told_at <= saved_at or saved_at <= now < saved_at + TOLD_S:
            return False
        return quote.room(now) < account.meters[key].room(now)

    def _planned(self, name: str, key: Key, now: float) -> SavedLimit:
        account = self._account(name)
        reserve = account.reserves[key]
        course, amount = reserve.course, account.meters[key].amount
        passed_s = now - course.planned_at
        if 0 < passed_s < math.inf:
            course.rate = max(reserve.charged / max(passed_s, LEAST_S), course.rate * math.exp2(-passed_s / FADE_S))
        usual = amount / PERIODS_S[key[1]]
        largest = max(reserve.largest, reserve.asked, 1.0)
        chunk = max(RESERVE_S * max(course.rate, usual), LARGEST * largest)
        course.chunk = max(chunk, 2 * course.chunk) if reserve.asked else chunk
        course.planned_at = now
        limit = self._saved_limit(name, key, course.chunk, now)
        course.planned = limit.reserve
        reserve.planned(course.planned)
        return limit

    def _saved_limit(self, name: str, key: Key, reserve: float, now: float) -> SavedLimit:
        account = self._account(name)
        meter = account.meters[key]
        if not isinstance(meter, PeriodMeter):
            return SavedLimit((), 0.0, reserve)
        held = meter.held(now, BUCKET)
        made = SavedLimit(
            tuple(held),
            meter.debt,
            min(reserve, meter.room_by(now + RESERVE_S, now)),
            account.kind_of(key),
        )
        if isinstance(meter, BucketMeter):
            made = msgspec.structs.replace(made, full=meter.most, per_s=meter.per_s)
        if isinstance(account, Account) and key in account.quotes:
            made = msgspec.structs.replace(made, left=account.quotes[key].left(now))
        return made


def _restore(meter: PeriodMeter, kind: Kind | None, limit: SavedLimit, at: float, now: float) -> None:
    """Count what was saved at a time as used, also if the limit has been changed since."""
    if limit.kind not in (None, kind):
        meter.owe(sum(units for until, units in limit.held if until > now) + limit.debt, now)
    elif isinstance(meter, BucketMeter):
        full = meter.most if limit.full is None else limit.full
        per_s = meter.per_s if limit.per_s is None else min(meter.per_s, limit.per_s)  # nobody knows when it changed
        missing = sum(units for _, units in limit.held) + limit.debt + max(0.0, meter.most - full)
        meter.owe(max(0.0, missing - max(0.0, now - at) * per_s), now)
    elif isinstance(meter, WindowMeter):
        meter.restore(list(limit.held), limit.debt, at, now)


def _until(use: SavedUse) -> float:
    """Return when the saved use of a resource counts no more, but for its debt."""
    return use.at + max((PERIODS_S[written.rpartition("/")[2]] for written in use.limits), default=0.0)


def _written(key: Key) -> str:
    return f"{key[0]}/{key[1]}"
