"""Room that less urgent tasks leave to more urgent ones, limit by limit."""

from __future__ import annotations

import pytest

from emq_scheduling.choice.keeping import Keeping
from emq_scheduling.choice.spreads import MOST_OF_DAY, RELEASE
from emq_scheduling.limits.accounts import Accounts
from emq_scheduling.model import PERIODS_S, Limit, Period, Pool, Resource, TaskType

EACH = {"requests": 1.0}
NOON = 1_700_049_600.0  # 12:00 UTC


def keeping(amount: float, per: Period, now: float, limit: Limit | None = None, **levels: int) -> Keeping:
    types = {name: TaskType(priority=level) for name, level in levels.items()}
    resource = Resource(limits=(limit or Limit("requests", amount, per),), takes={name: {} for name in types})
    pool = Pool("p", resources={"r": resource}, types=types)
    return Keeping(pool, Accounts(pool, now), now)


def use(keep: Keeping, level: int, now: float, most: int = 10_000) -> int:
    """Start tasks of a level until none fits; return how many."""
    count = 0
    while count < most and keep.fits("r", EACH, now, level):
        keep.charge("r", EACH, now, level)
        count += 1
    return count


def test_the_most_urgent_use_all_at_once_and_so_does_a_single_level() -> None:
    assert use(keeping(50, "second", 1000.0, code=0, offer=2), 0, 1000.0) == 50
    assert use(keeping(50, "second", 1000.0, offer=2), 2, 1000.0) == 50


def test_of_a_second_the_less_urgent_leave_room_until_its_end() -> None:
    keep = keeping(50, "second", 1000.0, code=0, offer=2)
    used = sum(use(keep, 2, 1000.0 + step / 100) for step in range(int(100 * RELEASE)))
    assert 40 <= used <= 49
    assert used + use(keep, 2, 1000.0 + RELEASE + 0.001) == 50


def test_what_is_used_at_the_end_of_a_second_is_no_debt_in_the_next() -> None:
    keep = keeping(1000, "second", 1000.0, code=0, offer=2)
    use(keep, 0, 1000.0, most=500)
    assert use(keep, 2, 1000.0 + RELEASE + 0.001) == 500
    assert sum(use(keep, 2, 1001.0 + step / 50) for step in range(10)) > 150


@pytest.mark.parametrize("per", ["minute", "hour"])
def test_the_less_urgent_get_a_minute_and_an_hour_evenly_even_if_nobody_urgent_has_come(per: Period) -> None:
    keep = keeping(600, per, 1000.0, code=0, offer=2)
    assert use(keep, 2, 1000.0) <= 6, "the burst of half a second"
    period_s = int(PERIODS_S[per])
    used = [use(keep, 2, 1000.0 + tenth * period_s / 600) for tenth in range(1, 601)]
    assert max(used) <= 2
    assert sum(used) >= 585
    assert use(keep, 0, 1000.0 + period_s) >= 6, "a hundredth is left to the urgent"


def test_what_the_urgent_use_is_part_of_the_even_rate() -> None:
    keep = keeping(600, "minute", 1000.0, code=0, offer=2)
    assert use(keep, 0, 1000.0, most=300) == 300
    assert use(keep, 2, 1029.4) == 0
    assert use(keep, 2, 1029.6) > 0


def test_units_that_are_given_back_may_be_used_again() -> None:
    keep = keeping(600, "minute", 1000.0, code=0, offer=2)
    used = 0
    for quarter in range(480):
        now = 1000.0 + quarter / 4
        while keep.fits("r", {"requests": 6.0}, now, 2):
            keep.charge("r", {"requests": 6.0}, now, 2).end(now, {"requests": 2.0})
            used += 2
    assert used >= 0.97 * 1200


def test_a_single_level_uses_a_minute_at_once() -> None:
    assert use(keeping(60, "minute", 1000.0, offer=2), 2, 1000.0) == 60


def test_of_a_bucket_the_less_urgent_leave_a_hundredth() -> None:
    keep = keeping(600, "minute", 1000.0, Limit("requests", 600, "minute", "bucket", 200), code=0, offer=2)
    assert use(keep, 2, 1000.0) == 198
    assert use(keep, 0, 1000.0) == 2


@pytest.mark.parametrize("burst", [5, 500])
def test_a_burst_of_the_urgent_keeps_at_most_half_of_what_is_left_of_the_day(burst: int) -> None:
    keep = keeping(2000, "day", NOON, code=0, offer=2)
    assert use(keep, 0, NOON, most=burst) == burst
    used = use(keep, 2, NOON + 1)
    kept = 2000 - burst - used
    assert kept <= MOST_OF_DAY * 2000 / 2 + 1
    if burst == 500:
        assert kept >= MOST_OF_DAY * 2000 / 2 - 2, "half a day is left"
    assert use(keep, 0, NOON + 2) == kept, "the urgent get what was kept"


def test_what_was_kept_of_a_day_is_used_before_it_ends() -> None:
    keep = keeping(2000, "day", NOON, code=0, offer=2)
    use(keep, 0, NOON, most=500)
    used = use(keep, 2, NOON + 1)
    last = use(keep, 2, NOON + 43_100)
    assert 500 + used + last >= 1995
