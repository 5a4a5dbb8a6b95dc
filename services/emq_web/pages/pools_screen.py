"""A pool of resources: the limits, use and work of each resource, and the waits of each task type.

All data comes from the pool and from the snapshot that its owner writes once a second, so the cost does not depend on
the number of tasks. Figures of an old snapshot are not shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from emq_scheduling.model import KeyLimit, Limit, Pool, Resource, TaskType
from emq_scheduling.pools.catalog import Stored
from emq_scheduling.records.snapshot import KeyLimitView, LimitView, ResourceView, Snapshot, TypeView, limit_key
from emq_web.pages.rendering import number, wait
from emq_web.scheduling import verdicts
from emq_web.scheduling.verdicts import Verdict

SHOWN = 100
"""Most resources on a page."""

KEYS = 5
"""Keys with waiting tasks that a limit shows."""

DEEPEST = 6
"""Steps by which a resource below others is moved in."""

FULL = 0.99
"""The part of a limit from which it counts as used up."""

PERIODS = {
    "second": "a second",
    "minute": "a minute",
    "hour": "an hour",
    "day": "a day",
    "in_flight": "at the same time",
}
"""The period of a limit, in words."""


class LimitRow(NamedTuple):
    """Attributes:
    key: of the limit, such as "requests/second".
    amount: units that hold now; without a report, those of the pool.
    configured: units as the pool has them.
    used: units in the present period; None without a report.
    left: units that are left by the provider's word, if that is less; None for no such word.
    """

    key: str
    name: str
    per: str
    amount: float
    configured: float
    used: float | None
    left: float | None = None

    @property
    def part(self) -> float:
        """The part of the amount that is used, 0 to 1."""
        return min(1.0, (self.used or 0.0) / self.amount) if self.amount else 1.0

    @property
    def is_full(self) -> bool:
        return self.used is not None and self.part >= FULL


class ResourceRow(NamedTuple):
    """Attributes:
    depth: number of its parents, at most `DEEPEST`.
    view: None without a report.
    """

    name: str
    depth: int
    resource: Resource
    view: ResourceView | None

    @property
    def closed(self) -> str:
        """Why it starts nothing; empty if it is open."""
        return (self.view.closed if self.view else "") or ("paused" if self.resource.paused else "")

    @property
    def binds(self) -> str:
        """The limit that is fully used, in words; empty for none."""
        return _binding(self.view.binds) if self.view else ""

    @property
    def limits(self) -> list[LimitRow]:
        seen = {} if self.view is None else {(each.name, each.per): each for each in self.view.limits}
        return [_limit(each, seen.get((each.name, each.per))) for each in self.resource.limits]


class TypeRow(NamedTuple):
    """Attributes:
    view: None without a report.
    arrivals: tasks submitted in a second; None without a report.
    """

    name: str
    kind: TaskType
    view: TypeView | None
    arrivals: float | None

    @property
    def tenants(self) -> list[tuple[str, int]]:
        """The tenants with the most waiting tasks."""
        found = {} if self.view is None else self.view.tenants
        return sorted(found.items(), key=lambda item: -item[1])[:3]


class KeyLimitRow(NamedTuple):
    """Attributes:
    view: None without a report.
    """

    name: str
    limit: KeyLimit
    view: KeyLimitView | None

    @property
    def in_words(self) -> str:
        """The amount of each key."""
        limit = self.limit.limit(self.name, self.limit.amount)
        return f"{number(limit.amount)} {limit.name} {PERIODS[limit.per]}{limit.note}"

    @property
    def most(self) -> list[tuple[str, int, str]]:
        """The keys with the most waiting tasks, with the time that one more would wait."""
        if self.view is None:
            return []
        waits = self.view.waits
        return [
            (key, count, "over a day" if key in waits and waits[key] is None else wait(waits.get(key)))
            for key, count in list(self.view.most.items())[:KEYS]
        ]


class PoolNow(NamedTuple):
    """The data of a pool's page.

    Attributes:
        told: the snapshot if it is fresh, else None.
        last_at: seconds since the epoch of a snapshot that is too old to be shown; 0 for none.
        behind: the owner follows an older version of the pool.
        start, next: number of the first resource on the page, and of the one after its last; 0 if there is none.
    """

    name: str
    verdict: Verdict
    told: Snapshot | None
    last_at: float
    behind: bool
    types: list[TypeRow]
    key_limits: list[KeyLimitRow]
    resources: list[ResourceRow]
    start: int
    next: int
    total: int


def of(stored: Stored, snapshot: Snapshot | None, now: float, start: int = 0) -> PoolNow:
    """Combine a pool and its owner's snapshot.

    Args:
        now: seconds since the epoch.
        start: number of the first resource to show.
    """
    pool, verdict = stored.pool, verdicts.of(stored.pool, snapshot, now)
    told = snapshot if snapshot is not None and not snapshot.is_stale(now) else None
    views = {} if told is None else told.resources
    ordered = list(pool.tree())
    rows = [
        ResourceRow(name, min(depth, DEEPEST), pool.resources[name], views.get(name))
        for name, depth in ordered[start:][:SHOWN]
    ]
    after = start + SHOWN
    return PoolNow(
        pool.name,
        verdict,
        told,
        snapshot.at if snapshot is not None and told is None else 0.0,
        told is not None and told.version < stored.version,
        _types(pool, told),
        [KeyLimitRow(n, each, None if told is None else told.limits.get(n)) for n, each in pool.limits.items()],
        rows,
        start,
        after if after < len(ordered) else 0,
        len(ordered),
    )


def _limit(limit: Limit, view: LimitView | None) -> LimitRow:
    amount, used, left = (limit.amount, None, None) if view is None else (view.amount, view.used, view.left)
    return LimitRow(limit_key(limit), limit.name, PERIODS[limit.per] + limit.note, amount, limit.amount, used, left)


def _binding(text: str) -> str:
    """Return the binding limit in words: for "requests/second of acme", "requests a second of acme"."""
    for per, words in PERIODS.items():
        name, mark, rest = text.partition(f"/{per}")
        if mark:
            return f"{name} {words}{rest}"
    return text


def _types(pool: Pool, told: Snapshot | None) -> list[TypeRow]:
    views: Mapping[str, TypeView] = {} if told is None else told.types
    arrivals = {} if told is None else told.state.arrivals
    rows = []
    for name, kind in sorted(pool.types.items(), key=lambda item: item[1].priority):
        come = arrivals.get(name)
        come = None if come is None else round(come, 3)  # an average, which never quite comes down to 0
        rows.append(TypeRow(name, kind, views.get(name), come))
    return rows


class Choice(NamedTuple):
    """A limit of a resource, to choose from."""

    resource: str
    limit: Limit

    @property
    def key(self) -> str:
        return limit_key(self.limit)

    @property
    def in_words(self) -> str:
        return (
            f"{self.resource}: {number(self.limit.amount)} {self.limit.name} {PERIODS[self.limit.per]}{self.limit.note}"
        )


def choices(pool: Pool, most: int) -> Sequence[Choice]:
    """Return the limits of the pool's resources, in the order of the page."""
    found = (Choice(name, limit) for name, _ in pool.tree() for limit in pool.resources[name].limits)
    return [choice for choice, _ in zip(found, range(most), strict=False)]
