"""Forecasts of pools, by cases that can be solved by hand."""

from __future__ import annotations

import datetime
import math

import pytest

from emq_scheduling.forecast.fluid_plan import MOST_GROUPS, Plan
from emq_scheduling.forecast.prediction import forecast, predicted_waits
from emq_scheduling.model import Calendar, Hours, Limit, Pool, Resource, TaskType
from emq_scheduling.pools import rules
from emq_scheduling.records.snapshot import PoolState

AT = datetime.datetime(2026, 3, 4, 12, tzinfo=datetime.UTC).timestamp()  # a Wednesday

URGENT = TaskType(priority=0)
LATER = TaskType(priority=1)


def per_second(amount: float, name: str = "requests") -> Limit:
    return Limit(name, amount, "second")


def one(*limits: Limit, types: dict[str, TaskType] | None = None, **given: object) -> Pool:
    kinds = types or {"urgent": URGENT, "later": LATER}
    resource = Resource(limits=limits, takes={kind: {} for kind in kinds}, **given)  # type: ignore[arg-type]
    return checked(Pool("p", resources={"r": resource}, types=kinds))


def checked(pool: Pool) -> Pool:
    rules.check(pool)
    return pool


def waits(pool: Pool, waiting: dict[str, int], **state: object) -> dict[str, float]:
    return predicted_waits(pool, PoolState(AT, waiting, **state), AT)  # type: ignore[arg-type]


def near(seconds: float, part: float = 0.03) -> object:
    return pytest.approx(seconds, rel=part, abs=0.05)


def test_a_task_waits_for_those_before_it_and_for_the_more_urgent() -> None:
    assert waits(one(per_second(10)), {"urgent": 100, "later": 200}) == {"urgent": near(10), "later": near(30)}


def test_more_urgent_tasks_that_come_meanwhile_go_first_too() -> None:
    # 10 a second leave 5 to the backlog of 300 beside the 5 that come.
    found = waits(one(per_second(10)), {"urgent": 100, "later": 200}, arrivals={"urgent": 5.0})
    assert found == {"urgent": near(10), "later": near(60)}


def test_nobody_waits_where_there_is_room() -> None:
    assert waits(one(per_second(10)), {}) == {"urgent": pytest.approx(0, abs=1e-3), "later": pytest.approx(0, abs=1e-3)}


def test_a_task_that_never_starts_waits_for_ever() -> None:
    assert waits(one(per_second(10)), {"later": 1}, arrivals={"urgent": 11.0})["later"] == math.inf
    assert waits(one(per_second(10)), {}, closed={"r": "broken"}) == {"urgent": math.inf, "later": math.inf}
    assert waits(one(per_second(10), paused=True), {})["urgent"] == math.inf


def test_health_leaves_a_part_of_the_limits() -> None:
    assert waits(one(per_second(10)), {"urgent": 100}, factors={"r": 0.5})["urgent"] == near(20)


def test_a_limit_a_minute_lets_a_burst_go_and_then_waits() -> None:
    pool = one(per_second(10), Limit("requests", 300, "minute"), types={"urgent": URGENT})
    found = forecast(pool, PoolState(AT, {"urgent": 1000}))
    # 300 in the first 30 s of each minute: the last hundred begins at 180 s.
    assert found.drained_s == near(190)
    assert found.types["urgent"].p50_s == near(80)


def test_what_was_used_in_the_last_hour_comes_back_within_the_hour() -> None:
    pool = one(per_second(1000), Limit("requests", 3600, "hour"), types={"urgent": URGENT})
    used = {"r": {"requests/hour": 3600.0}}
    found = forecast(pool, PoolState(AT, {"urgent": 1800}, used=used))
    assert found.drained_s == near(1800)
    assert forecast(pool, PoolState(AT, {"urgent": 1800})).drained_s == near(1.8)


def test_a_quota_of_a_day_begins_again_at_midnight_of_its_zone() -> None:
    calendar = Calendar("Asia/Tokyo")  # midnight is at 15:00 UTC
    resource = Resource(limits=(per_second(100), Limit("requests", 1000, "day")), takes={"a": {}}, calendar="tokyo")
    pool = checked(Pool("p", resources={"r": resource}, types={"a": TaskType()}, calendars={"tokyo": calendar}))
    found = forecast(pool, PoolState(AT, {"a": 1500}, used={"r": {"requests/day": 200.0}}))
    assert found.types["a"].p50_s == near(7.5)
    assert found.drained_s == near(3 * 3600 + 7)


def test_limits_in_flight_take_turns_with_the_time_that_tasks_take() -> None:
    pool = one(Limit("calls", 4, "in_flight"), types={"a": TaskType(duration_s=20.0)})
    assert forecast(pool, PoolState(AT, {"a": 100})).drained_s == near(480, 0.05)  # 25 rounds, the last starts then
    assert waits(pool, {"a": 40}, durations={"a": 10.0})["a"] == near(100, 0.1)
    busy = PoolState(AT, {"a": 4}, used={"r": {"calls/in_flight": 4.0}})
    assert forecast(pool, busy).drained_s == near(20, 0.1)  # they end one after the other


def test_short_tasks_leave_their_places_in_flight_to_others_within_a_step() -> None:
    kinds = {"a": TaskType(priority=0, duration_s=0.1), "b": TaskType(priority=1, duration_s=0.1)}
    pool = one(Limit("calls", 10, "in_flight"), types=kinds)
    found = forecast(pool, PoolState(AT, {"b": 5_000}, arrivals={"a": 50.0}))
    assert found.drained_s == near(100)  # 100 a second, less the 50 of the more urgent type


def test_a_parent_shares_its_room_among_those_below() -> None:
    takes: dict[str, dict[str, float]] = {"a": {}}
    resources = {
        "account": Resource(limits=(per_second(12),)),
        "small": Resource(parent="account", limits=(per_second(4),), takes=takes),
        "large": Resource(parent="account", limits=(per_second(100),), takes=takes),
        "free": Resource(limits=(per_second(8),), takes=takes),
    }
    pool = checked(Pool("p", resources=resources, types={"a": TaskType()}))
    found = forecast(pool, PoolState(AT, {"a": 2000}))
    assert found.drained_s == near(100)
    assert found.starts == {"small": near(400), "large": near(800), "free": near(800)}
    assert found.utilisation == {"small": near(1), "large": near(0.08), "free": near(1)}


def test_nested_limits_of_several_levels_leave_nothing_idle() -> None:
    takes: dict[str, dict[str, float]] = {"a": {}}
    resources = {
        "provider": Resource(limits=(per_second(10),)),
        "narrow": Resource(parent="provider", limits=(per_second(2),)),
        "wide": Resource(parent="provider", limits=(per_second(50),)),
        **{f"n{i}": Resource(parent="narrow", limits=(per_second(5),), takes=takes) for i in range(3)},
        **{f"w{i}": Resource(parent="wide", limits=(per_second(5),), takes=takes) for i in range(2)},
    }
    found = forecast(checked(Pool("p", resources=resources, types={"a": TaskType()})), PoolState(AT, {"a": 1000}))
    assert found.drained_s == near(100)
    assert sum(found.starts.values()) == near(1000)


def test_cheaper_resources_go_first_and_equal_ones_by_weight() -> None:
    def resource(**given: float) -> Resource:
        return Resource(limits=(per_second(10),), takes={"a": {}}, **given)  # type: ignore[arg-type]

    resources = {"dear": resource(price=2.0), "light": resource(weight=1.0), "heavy": resource(weight=3.0)}
    pool = checked(Pool("p", resources=resources, types={"a": TaskType()}))
    found = forecast(pool, PoolState(AT, {"a": 300}, arrivals={"a": 4.0}), 1000.0)
    busy_s = 300 / 26
    assert found.drained_s == near(busy_s)
    steady = forecast(pool, PoolState(AT, {"a": 4}, arrivals={"a": 4.0}), 1.0).starts
    assert steady["dear"] == 0
    assert steady["heavy"] == near(3 * steady["light"])


def test_the_costs_of_the_binding_limit_count() -> None:
    tokens = Limit("tokens", 6000, "minute")
    pool = one(per_second(10), tokens, types={"a": TaskType(costs={"tokens": 50.0}), "b": TaskType(priority=2)})
    used = {"r": {"tokens/minute": 6000.0}}
    assert waits(pool, {"a": 240}, used=used)["a"] == near(120, 0.1)  # 2 a second by tokens


def test_whole_tasks_do_not_fill_a_limit_that_their_costs_do_not_divide() -> None:
    pool = one(per_second(5), types={"a": TaskType(costs={"requests": 2.0})})
    assert waits(pool, {"a": 100})["a"] == near(50)


def test_types_of_one_priority_go_by_age() -> None:
    pool = one(per_second(10), types={"a": LATER, "b": LATER})
    found = forecast(pool, PoolState(AT, {"a": 100, "b": 300}, arrivals={"a": 1.0, "b": 3.0}))
    assert found.types["a"].p50_s == near(found.types["b"].p50_s, 0.1)


def test_a_share_is_guaranteed_to_a_less_urgent_type() -> None:
    types = {"urgent": URGENT, "later": TaskType(priority=1, share=0.2)}
    found = forecast(one(per_second(10), types=types), PoolState(AT, {"urgent": 800, "later": 100}))
    assert found.types["later"].p99_s == near(50)
    assert found.types["urgent"].p99_s == near(89, 0.03)


def test_near_deadlines_go_first() -> None:
    types = {"urgent": URGENT, "later": TaskType(priority=1, near_priority=0, longest_wait_s=40.0, duration_s=1.0)}
    found = forecast(one(per_second(10), types=types), PoolState(AT, {"urgent": 1000, "later": 50}))
    assert found.types["later"].p50_s == near(32.5, 0.1)  # three quarters of its time have passed after 30 s


def test_tasks_expire() -> None:
    found = forecast(one(per_second(10), types={"a": TaskType(ttl_s=20.0)}), PoolState(AT, {"a": 1000}))
    assert found.types["a"].started == near(200)
    assert found.types["a"].expired == near(800)
    assert found.drained_s == near(20, 0.06)


def test_calendars_change_amounts() -> None:
    calendar = Calendar("UTC", (Hours("13:00", "14:00", amounts={"requests": 1}),))
    resource = Resource(limits=(per_second(2),), takes={"a": {}}, calendar="c")
    pool = checked(Pool("p", resources={"r": resource}, types={"a": TaskType()}, calendars={"c": calendar}))
    # 2 a second until 13:00, 1 until 14:00, then 2 again.
    assert forecast(pool, PoolState(AT, {"a": 7200 + 3600 + 3600})).drained_s == near(3600 + 3600 + 1800, 0.005)


def test_types_wait_for_their_hours_in_the_zone_of_the_pool() -> None:
    kind = TaskType(hours=(Hours("14:00", "15:00"),))
    pool = one(per_second(10), types={"a": kind})
    berlin = checked(Pool("p", zone="Europe/Berlin", resources=pool.resources, types=pool.types))
    assert waits(pool, {"a": 10})["a"] == near(2 * 3600)
    assert waits(berlin, {"a": 10})["a"] == near(3600)


def test_a_forecast_ends_although_more_comes_than_can_be_done() -> None:
    found = forecast(one(per_second(10)), PoolState(AT, {"later": 10}, arrivals={"urgent": 20.0}), 100.0)
    assert found.drained_s is None
    assert found.over_s == pytest.approx(100)
    assert found.types["later"].left == pytest.approx(10)
    assert found.types["urgent"].left == near(1000)


def test_a_type_that_no_resource_takes_does_not_disturb_the_others() -> None:
    pool = one(per_second(10))
    odd = Pool("p", resources=pool.resources, types={**pool.types, "odd": URGENT})
    found = waits(odd, {"odd": 5, "urgent": 100})
    assert found == {"odd": math.inf, "urgent": near(10), "later": near(10)}


def test_a_thousand_different_resources_are_predicted_as_a_few_groups() -> None:
    """Of a thousand resources under 20 accounts, no two are equal."""
    kinds = "abcde"
    resources = {f"account-{i}": Resource(limits=(per_second(100 + i),)) for i in range(20)}
    for i in range(1000):
        takes: dict[str, dict[str, float]] = {kinds[i % 5]: {}, kinds[(i // 5) % 5]: {}}
        resources[f"r-{i}"] = Resource(parent=f"account-{i % 20}", limits=(per_second(10 + i / 1000),), takes=takes)
    pool = checked(Pool("p", resources=resources, types={k: TaskType(priority=n) for n, k in enumerate(kinds)}))
    assert len(Plan(pool).groups) <= MOST_GROUPS
    found = predicted_waits(pool, PoolState(AT, dict.fromkeys(kinds, 20_000), dict.fromkeys(kinds, 50.0)), AT)
    assert 0 < found["a"] < found["e"] < math.inf
    # The accounts let 2,190 a second start. The last type waits for all 100,000, and for what comes before.
    assert found["e"] == pytest.approx(100_000 / (2190 - 4 * 50), rel=0.15)
