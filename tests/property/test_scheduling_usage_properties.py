"""Owners that crash at any time, with saves that fail or whose outcome nobody knows: no period is over its limit."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emq_scheduling.limits.accounts import Accounts
from emq_scheduling.limits.usage import SavedUse, Usage
from emq_scheduling.model import Kind, Limit, Period, Pool, Resource

PERIODS_MS: dict[Period, int] = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}

kinds = st.sampled_from(
    [
        *((per, kind, None) for per in PERIODS_MS for kind in ("rolling", "calendar", "bucket")),
        *((per, "bucket", burst) for per in PERIODS_MS for burst in (3, 40)),
    ]
)

events = st.lists(
    st.tuples(
        st.sampled_from(["start", "start", "save", "save", "unsaved", "doubtful", "crash", "crash", "fill", "undo"]),
        st.one_of(st.integers(0, 3_000), st.integers(0, 25_000), st.integers(0, 1_500_000)),
        st.integers(1, 3),
        st.integers(0, 12),
    ),
    min_size=4,
    max_size=40,
)


class World:
    """A database, and the owner that a pool has at the time.

    Attributes:
        starts: milliseconds and units of each start by all owners.
    """

    def __init__(self, limit: Limit) -> None:
        self._pool = Pool("p", resources={"a": Resource(limits=(limit,))})
        self._saved: dict[str, SavedUse] = {}
        self.starts: list[tuple[int, int]] = []
        self.own(0)

    def own(self, ms: int) -> None:
        """Let a new owner take over; the former one has crashed."""
        self._accounts = Accounts(self._pool, ms / 1000, saves=True)
        self._accounts.begin(ms / 1000)
        self._usage = Usage(self._accounts)
        self._usage.restore(self._saved, ms / 1000)

    def start(self, ms: int, units: int, n: int) -> None:
        for _ in range(n):
            if self._accounts.charge("a", {"requests": units}, ms / 1000):
                self.starts.append((ms, units))

    def undo(self, ms: int, units: int) -> None:
        """Let a task be charged, and not start."""
        if charge := self._accounts.charge("a", {"requests": units}, ms / 1000):
            charge.undo(ms / 1000)

    def save(self, ms: int, units: int, n: int, *, is_written: bool, is_known: bool) -> None:
        """Save, while tasks start."""
        plan = self._usage.plan(ms / 1000)
        self.start(ms, units, n)
        if is_written:
            self._saved |= plan
        if is_known and is_written:
            self._usage.saved(plan)
        else:
            self._usage.doubtful(plan)


@given(kinds, st.integers(6, 30), events)
@settings(deadline=None, max_examples=500, suppress_health_check=[HealthCheck.too_slow])
def test_no_period_is_over_its_limit_across_owners(
    counts: tuple[Period, Kind, float | None], amount: int, steps: list[tuple[str, int, int, int]]
) -> None:
    (per, kind, burst), ms = counts, 0
    world = World(Limit("requests", amount, per, kind, burst))
    for what, gap_ms, units, n in steps:
        ms += gap_ms * {"minute": 1, "hour": 60, "day": 60}[per]
        if what == "start":
            world.start(ms, units, n)
        elif what == "undo":
            world.undo(ms, units)
        elif what == "crash":
            world.own(ms)
        elif what == "fill":
            for _ in range(6):
                world.save(ms, units, 30, is_written=True, is_known=True)
        else:
            is_written = what == "save" or (what == "doubtful" and n % 2 == 0)
            world.save(ms, units, n, is_written=is_written, is_known=what == "save")
    if kind == "bucket":
        for earlier, (began, _) in enumerate(world.starts):
            used = 0
            for at, units in world.starts[earlier:]:
                used += units
                assert used <= (burst or amount) + (at - began) * amount / PERIODS_MS[per] + 1e-6
        return
    for began, _ in world.starts:
        first = began // PERIODS_MS[per] * PERIODS_MS[per] if kind == "calendar" else began
        assert sum(units for at, units in world.starts if 0 <= at - first < PERIODS_MS[per]) <= amount
