"""Room that less urgent tasks leave to more urgent ones, limit by limit."""

from __future__ import annotations

import pytest

from emq_scheduling.choice.keeping import MOST_OF_DAY, RELEASE, Keeping
from emq_scheduling.limits.accounts import Accounts
from emq_scheduling.model import Limit, Period, Pool, Resource, TaskType

EACH = {"requests": 1.0}
NOON = 1_700_049_600.0  # 12:00 UTC


def keeping(amount: float, per: Period, now: float, **levels: int) -> Keeping:
    types = {name: TaskType(priority=level) for name, level in levels.items()}
    resource = Resource(limits=(Limit("requests", amount, per),), takes={name: {} for name in types})
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


def test_a_minute_is_shared_only_where_the_urgent_came_lately() -> None:
    assert use(keeping(60, "minute", 1000.0, code=0, offer=2), 2, 1000.0) == 60
    keep = keeping(60, "minute", 1000.0, code=0, offer=2)
    assert use(keep, 0, 1000.0, most=6) == 6
    assert use(keep, 2, 1001.0) <= 2, "spread over the minute"


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
