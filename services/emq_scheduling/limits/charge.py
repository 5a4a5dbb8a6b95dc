"""The charges of one task to all limits that count it; see `emq_scheduling.limits.accounts`."""

from __future__ import annotations

import math
from typing import Protocol

from emq_scheduling.limits.account import GATE, Path
from emq_scheduling.limits.keyed import Counted, KeyAccount, KeyedAccounts
from emq_scheduling.limits.limits import InFlightMeter, Meter
from emq_scheduling.model import DEFAULT_COST, Costs, Period


class Charging(Protocol):
    """The accounts that made a charge: `emq_scheduling.limits.accounts.Accounts`."""

    keyed: KeyedAccounts

    def tell(
        self,
        resource: str,
        limit: str,
        left: float,
        reset_s: float,
        now: float,
        per: Period | None,
        of: str | None,
        since: float,
    ) -> None: ...

    def forget(self, charge: Charge) -> bool: ...


class Charge:
    """The charges of a task. End it, once; until then its units in flight are held.

    Attributes:
        resource: where it runs.
        ends_at: when it will probably end; infinity if nobody knows.
        keyed: the accounts of limits by key that count it.
    """

    __slots__ = (
        "_accounts",
        "_charged_at",
        "_entries",
        "_in_flight",
        "_task",
        "_units",
        "ends_at",
        "keyed",
        "resource",
    )

    def __init__(
        self,
        accounts: Charging,
        path: Path,
        units: list[float],
        now: float,
        ends_at: float,
        task: Counted | None,
        keyed: tuple[KeyAccount, ...],
    ) -> None:
        self._accounts = accounts
        self._entries = path.entries
        self._in_flight = path.in_flight
        self._units = units
        self._charged_at = now
        self._task = task
        self.resource = path.accounts[0].name
        self.ends_at = ends_at
        self.keyed = keyed
        if keyed:
            self._entries += tuple(entry for each in keyed for entry in each.entries)
            self._in_flight += _flights(keyed)
            for each in keyed:
                accounts.keyed.charged(each, now)
        for meter, _ in self._in_flight:
            meter.hold(self)

    def tell(self, limit: str, left: float, reset_s: float, now: float, per: Period | None, of: str | None) -> None:
        """Take over what the provider says is left of a limit that counts the task; see `Accounts.tell`."""
        self._accounts.tell(self.resource, limit, left, reset_s, now, per, of, self._charged_at)

    def units_of(self, meter: Meter) -> float:
        """Return the charge to a meter."""
        found = (units for (each, _), units in zip(self._entries, self._units, strict=True) if each is meter)
        return next(found, 0.0)

    def settle(self, actual: Costs, now: float) -> None:
        """Charge the real use of the task instead of its estimate.

        A difference above the estimate is charged now, even above the limits, as debt; one below is given back to the
        period in which the task started. May be called again with later figures.

        Args:
            actual: units by limit name, in all; limits without a name keep their charge. A negative figure counts as 0;
                one that is not finite is ignored.
        """
        for index, (meter, name) in enumerate(self._entries):
            if name not in actual or not math.isfinite(actual[name]):
                continue
            units = max(0.0, actual[name])
            more = units - self._units[index]
            self._units[index] = units
            if more > 0:
                meter.owe(more, now)
            elif more < 0:
                meter.refund(-more, self._charged_at, now)
        for each in self.keyed:
            self._accounts.keyed.touch(each)

    def end(self, now: float, actual: Costs | None = None) -> None:
        """Give back the task's units in flight, and settle it if `actual` is given. A second call does nothing."""
        if not self._accounts.forget(self):
            return
        if actual:
            self.settle(actual, now)
        for meter, _ in self._in_flight:
            meter.refund(self.units_of(meter), self._charged_at, now)
            meter.release(self)
        self._release()

    def undo(self, now: float) -> None:
        """Give back everything: the task did not start. After `end` or `undo` this does nothing."""
        if not self._accounts.forget(self):
            return
        for (meter, _), units in zip(self._entries, self._units, strict=True):
            meter.refund(units, self._charged_at, now)
        for each, _ in self._in_flight:
            each.release(self)
        self._release()

    def _release(self) -> None:
        for each in self.keyed:
            self._accounts.keyed.released(each)

    def rebind(self, path: Path | None, now: float) -> None:
        """Hold the units in flight under changed limits: under new ones, too, and no longer under those that are gone.

        Limits with periods that are new to the task do not count it: it started before them.

        Args:
            path: of its resource; None if that is gone, so that only limits by key may have changed for it.
        """
        keyed = self._accounts.keyed.rebound(self.keyed, self._task, now)
        own = self._in_flight[: len(self._in_flight) - len(_flights(self.keyed))] if path is None else path.in_flight
        flights = own + _flights(keyed)
        if self._in_flight == flights:
            return
        for each in keyed:
            each.holds += 1
        self._release()
        self.keyed = keyed
        costs = {name: units for (_, name), units in zip(self._entries, self._units, strict=True)}
        held = {id(meter) for meter, _ in self._in_flight}
        in_flight = tuple((meter, name) for meter, name in flights if name != GATE or id(meter) in held)
        for meter, _ in self._in_flight:
            meter.refund(self.units_of(meter), self._charged_at, now)  # it may limit others still, as a former parent
            meter.release(self)
        kept = [
            (entry, units)
            for entry, units in zip(self._entries, self._units, strict=True)
            if not isinstance(entry[0], InFlightMeter)
        ]
        for meter, name in in_flight:
            units = costs.get(name, DEFAULT_COST)
            meter.owe(units, now)
            meter.hold(self)
            kept.append(((meter, name), units))
        self._in_flight = in_flight
        self._entries = tuple(entry for entry, _ in kept)
        self._units = [units for _, units in kept]


def _flights(keyed: tuple[KeyAccount, ...]) -> tuple[tuple[InFlightMeter, str], ...]:
    """Return the meters of limits in flight."""
    return tuple((each.meter, each.unit) for each in keyed if isinstance(each.meter, InFlightMeter))
