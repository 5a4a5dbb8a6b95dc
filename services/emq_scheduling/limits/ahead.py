"""Finds, with copies of the meters, when a task fits that must wait beyond the next change of a calendar."""

from __future__ import annotations

import math
from collections.abc import Set

from emq_scheduling.limits.account import Entry, Path
from emq_scheduling.limits.calendars import LOOK_AHEAD_DAYS
from emq_scheduling.limits.limits import InFlightMeter, Meter, Pace
from emq_scheduling.model import DEFAULT_COST, Costs

LOOK_AHEAD_S = LOOK_AHEAD_DAYS * 86_400.0


def earliest(path: Path, entries: tuple[Entry, ...], costs: Costs, now: float, after: Costs, others: Set[int]) -> float:
    """Return the earliest time at which a task fits, through the changes of limits until then.

    Args:
        path: of the task's resource.
        entries: those of its meters that count.
        after: what another task costs that is charged first.
        others: ids of the meters that it is charged to.

    Returns:
        the exact time if it is within a week; a later one may be too early: ask again then. Infinity if no hour of the
        week has room, or if only the end of a task in flight makes room.
    """
    copies: dict[int, Meter] = {}
    for meter, name in entries:
        copies[id(meter)] = meter.copy()
        if id(meter) in others:
            copies[id(meter)].charge(after.get(name, DEFAULT_COST), now)
    at, never = now, True
    while True:
        waits = [
            (copies[id(meter)].next_at(costs.get(name, DEFAULT_COST), at), copies[id(meter)], name)
            for meter, name in entries
            if at == now or not isinstance(meter, Pace)  # a pace follows changes, and delays by seconds
        ]
        found = max((until for until, _, _ in waits), default=at)
        never = never and found == math.inf
        change = min(account.changes_after(at) for account in path.accounts)
        if found < change:
            return found
        if change > now + LOOK_AHEAD_S:
            return math.inf if never else change
        if any(until == math.inf and isinstance(meter, InFlightMeter) for until, meter, _ in waits):
            return change if _changes_in_flight(path) else math.inf
        for account in path.accounts:
            if account.changes_after(at) == change:
                for key, amount in account.amounts_at(change).items():
                    if (made := copies.get(id(account.meters[key]))) is not None:
                        made.set_amount(amount, change)
        at = change


def _changes_in_flight(path: Path) -> bool:
    """Return whether a calendar changes limits in flight."""
    return any(account.is_changing("in_flight") for account in path.accounts)
