"""Accounts: all limits of a resource and its parents are charged together or not at all."""

import math

from emq_scheduling.limits.accounts import PROBE_FACTOR, Charge, First
from emq_scheduling.model import Calendar, Hours, Limit, Pool, Resource
from support.roomy_accounts import Accounts

NOW = 1_000_000.0


def limit(text: str) -> Limit:
    """Return the limit of a text such as "requests 10 second"."""
    name, amount, per = text.split()
    return Limit(name, float(amount), per)  # type: ignore[arg-type]


def resource(*limits: str, parent: str | None = None, paused: bool = False) -> Resource:
    return Resource(parent=parent, limits=tuple(limit(each) for each in limits), paused=paused)


def accounts(**resources: Resource) -> Accounts:
    return Accounts(Pool("sms", resources=resources), NOW)


def charged(of: Accounts, name: str, costs: dict[str, float], now: float, ends_at: float = math.inf) -> Charge:
    """Start a task that fits."""
    charge = of.charge(name, costs, now, ends_at)
    assert charge is not None
    return charge


def starts(of: Accounts, name: str, now: float, n: int = 1_000, **costs: float) -> int:
    return sum(of.charge(name, costs, now) is not None for _ in range(n))


def test_a_task_is_charged_to_the_resource_and_its_parents() -> None:
    of = accounts(
        provider=resource("requests 8 second"),
        account=resource("requests 6 second", parent="provider"),
        a=resource("requests 4 second", parent="account"),
        b=resource("requests 4 second", parent="account"),
        c=resource("requests 4 second", parent="provider"),
    )
    assert [starts(of, name, NOW) for name in "abc"] == [4, 2, 2]
    assert of.used(NOW)["provider"] == {"requests/second": 8}


def test_a_task_that_one_limit_has_no_room_for_is_charged_to_none() -> None:
    of = accounts(
        account=resource("tokens 100 minute"), a=resource("requests 10 second", "slots 5 in_flight", parent="account")
    )
    assert not of.fits("a", {"tokens": 101}, NOW)
    assert of.charge("a", {"tokens": 101}, NOW) is None
    assert of.used(NOW) == {"account": {"tokens/minute": 0}, "a": {"requests/second": 0, "slots/in_flight": 0}}


def test_costs_are_one_of_each_limit_that_they_do_not_name() -> None:
    of = accounts(a=resource("requests 10 second", "tokens 1000 minute"))
    assert of.charge("a", {"tokens": 300, "unknown": 5}, NOW)
    assert of.used(NOW)["a"] == {"requests/second": 1, "tokens/minute": 300}
    assert of.room("a", {"tokens": 300}, NOW) == 2
    assert of.room("a", {}, NOW) == 9


def test_next_at_is_the_time_of_the_last_limit_to_have_room() -> None:
    of = accounts(account=resource("tokens 100 minute"), a=resource("requests 2 second", parent="account"))
    of.charge("a", {"tokens": 90}, NOW)
    assert of.next_at("a", {"tokens": 10}, NOW) == NOW
    assert of.next_at("a", {"tokens": 11}, NOW + 1) == NOW + 61
    assert of.next_at("a", {"tokens": 101}, NOW) == math.inf
    of.charge("a", {"tokens": 1}, NOW)
    assert of.next_at("a", {"tokens": 1}, NOW + 0.25) == NOW + 1


def test_earliest_tells_whether_another_task_would_delay_one() -> None:
    of = accounts(
        account=resource("tokens 100 minute"),
        a=resource("requests 5 second", parent="account"),
        b=resource("requests 5 second", parent="account"),
    )
    of.charge("a", {"tokens": 60}, NOW)
    large = {"tokens": 80.0}
    assert of.next_at("a", large, NOW + 1) == NOW + 61
    assert of.expected_at("a", large, NOW + 1, First("a", {"tokens": 20})) == NOW + 61
    assert of.expected_at("a", large, NOW + 1, First("a", {"tokens": 21})) == NOW + 62


def test_a_higher_actual_is_debt_of_every_limit_of_its_name() -> None:
    of = accounts(account=resource("tokens 100 minute"), a=resource("tokens 50 minute", parent="account"))
    charge = charged(of, "a", {"tokens": 40}, NOW)
    charge.end(NOW + 2, {"tokens": 120})
    assert of.used(NOW + 2) == {"account": {"tokens/minute": 120}, "a": {"tokens/minute": 120}}
    # 40 at 0, and of the debt 10 at 2, 40 at 61, 10 at 63, 20 at 122
    assert of.next_at("a", {"tokens": 20}, NOW + 2) == NOW + 122
    assert of.next_at("a", {"tokens": 30}, NOW + 2) == NOW + 124
    assert of.next_at("a", {"tokens": 31}, NOW + 2) == NOW + 183


def test_a_lower_actual_is_given_back() -> None:
    of = accounts(a=resource("tokens 100 minute"))
    charge = charged(of, "a", {"tokens": 100}, NOW)
    charge.settle({"tokens": 60}, NOW + 1)
    charge.settle({"tokens": 70}, NOW + 2)
    charge.end(NOW + 3)
    assert of.used(NOW + 3)["a"] == {"tokens/minute": 70}


def test_units_in_flight_come_back_once() -> None:
    of = accounts(account=resource("slots 3 in_flight"), a=resource("slots 2 in_flight", parent="account"))
    first, _ = charged(of, "a", {}, NOW), charged(of, "a", {}, NOW)
    assert of.charge("a", {}, NOW) is None
    first.end(NOW + 1)
    first.end(NOW + 1)
    first.undo(NOW + 1)
    assert of.used(NOW + 1) == {"account": {"slots/in_flight": 1}, "a": {"slots/in_flight": 1}}


def test_a_start_that_did_not_happen_is_undone() -> None:
    of = accounts(a=resource("requests 1 second", "slots 1 in_flight", "quota 1 day"))
    charge = charged(of, "a", {}, NOW)
    charge.undo(NOW + 0.5)
    assert of.charge("a", {}, NOW + 0.6) is not None


def test_nothing_starts_in_the_second_in_which_an_owner_begins() -> None:
    of = accounts(a=resource("requests 10 second"))
    of.begin(NOW + 0.3)
    assert not of.fits("a", {}, NOW + 0.9)
    assert of.charge("a", {}, NOW + 0.9) is None
    assert of.room("a", {}, NOW + 0.9) == 0
    assert of.next_at("a", {}, NOW + 0.9) == NOW + 1
    assert starts(of, "a", NOW + 1) == 10


def test_nothing_starts_below_a_paused_resource() -> None:
    of = accounts(account=resource(paused=True), a=resource("requests 1 second", parent="account"))
    assert not of.fits("a", {}, NOW)
    assert of.charge("a", {}, NOW) is None
    assert of.room("a", {}, NOW) == 0
    assert of.next_at("a", {}, NOW) == math.inf


def test_relatives_share_a_limit() -> None:
    of = accounts(
        provider=resource(),
        x=resource("requests 6 second", parent="provider"),
        y=resource(parent="provider"),
        x1=resource("requests 4 second", parent="x"),
        x2=resource(parent="x"),
        y1=resource(parent="y"),
    )
    assert set(of.relatives("x1")) == {"x", "x1", "x2"}
    assert of.relatives("y1") == ["y1"]
    assert of.relatives("unknown") == []
    assert of.names() == ["provider", "x", "y", "x1", "x2", "y1"]
    assert [(whose, key) for whose, key, _ in of.meters("x1")] == [
        ("x1", ("requests", "second")),
        ("x", ("requests", "second")),
    ]


def test_a_changed_pool_counts_at_once_and_keeps_what_was_used() -> None:
    of = accounts(a=resource("requests 10 minute"), b=resource("requests 10 minute"))
    assert starts(of, "a", NOW, 8) == 8
    of.follow(Pool("sms", resources={"a": resource("requests 5 minute", "tokens 3 second")}), NOW + 1)
    assert of.room("a", {}, NOW + 1) == 0
    assert of.next_at("a", {}, NOW + 1) == NOW + 61
    assert of.room("a", {}, NOW + 61) == 3
    assert list(of.used(NOW)) == ["a"]


def test_tasks_in_flight_count_under_changed_limits() -> None:
    of = accounts(old=resource("slots 9 in_flight"), a=resource(parent="old"), b=resource(parent="old"))
    running = [charged(of, "a", {"slots": 2}, NOW) for _ in range(2)]
    pool = Pool(
        "sms",
        resources={
            "old": resource("slots 9 in_flight"),
            "new": resource("slots 5 in_flight", "requests 5 minute"),
            "a": resource("slots 6 in_flight", parent="new"),
            "b": resource(parent="old"),
        },
    )
    of.follow(pool, NOW)
    held = {"old": 0.0, "new": 4.0, "a": 4.0}
    assert {name: used["slots/in_flight"] for name, used in of.used(NOW).items() if used} == held
    for charge in running:
        charge.end(NOW + 1, {"requests": 0})
    assert of.used(NOW + 1)["new"] == {"slots/in_flight": 0, "requests/minute": 0}


def test_tasks_of_a_removed_resource_end_quietly() -> None:
    of = accounts(a=resource("slots 1 in_flight", "requests 1 second"))
    charge = charged(of, "a", {}, NOW)
    of.follow(Pool("sms"), NOW)
    charge.end(NOW + 1, {"requests": 5})


def test_health_lowers_what_a_resource_gets_below_its_limits() -> None:
    of = accounts(
        account=resource("requests 100 second"),
        a=resource("requests 10 second", "slots 8 in_flight", parent="account"),
    )
    of.set_factor("a", 0.5, NOW)
    assert starts(of, "a", NOW, slots=0) == 5
    assert of.next_at("a", {"slots": 0}, NOW) == NOW + 1
    assert starts(of, "a", NOW + 1, requests=0) == 4
    of.set_factor("a", 1, NOW + 1)
    assert starts(of, "a", NOW + 1) == 4
    assert of.factor("a") == 1


def test_a_lowered_resource_still_starts_what_costs_more_than_its_second() -> None:
    of = accounts(a=resource("tokens 60000 minute"))
    of.set_factor("a", 0.5, NOW)
    times = [second for second in range(60) if of.charge("a", {"tokens": 2_000}, NOW + second)]
    assert times == list(range(0, 60, 4))


def test_a_factor_of_zero_lets_nothing_start_below_it() -> None:
    of = accounts(account=resource("requests 10 second"), a=resource(parent="account"))
    of.set_factor("account", 0, NOW)
    assert not of.fits("a", {}, NOW)
    assert of.next_at("a", {}, NOW) == math.inf
    of.set_factor("account", 0.1, NOW)
    assert of.room("a", {}, NOW) == 1


def by_day(
    amounts: dict[str, float], *limits: str, start: str = "08:00", end: str = "20:00", zone: str = "UTC"
) -> Pool:
    """Return a pool of a resource "a" below "up", whose calendar sets amounts in some hours."""
    calendar = Calendar(zone, (Hours(start, end, amounts=amounts),))
    a = Resource(parent="up", limits=tuple(limit(each) for each in limits), calendar="hours")
    return Pool("sms", resources={"up": resource(), "a": a}, calendars={"hours": calendar})


MIDNIGHT = 1_785_542_400.0  # 2026-08-01 in UTC
EIGHT, TWENTY = MIDNIGHT + 8 * 3_600, MIDNIGHT + 20 * 3_600


def test_the_calendar_changes_limits_at_the_minute() -> None:
    of = Accounts(by_day({"requests": 10}, "requests 2 second"), MIDNIGHT)
    assert starts(of, "a", EIGHT - 0.1) == 2
    assert starts(of, "a", EIGHT) == 10
    assert of.amounts(EIGHT)["a"] == {"requests/second": 10}
    assert starts(of, "a", TWENTY - 0.1) == 10
    assert of.room("a", {}, TWENTY) == 2
    assert of.amounts(TWENTY + 86_400 - 0.1)["a"] == {"requests/second": 10}


def test_next_at_looks_beyond_the_next_changes() -> None:
    of = Accounts(by_day({"requests": 10}, "requests 0 second"), MIDNIGHT)
    assert of.next_at("a", {}, MIDNIGHT) == EIGHT
    assert of.next_at("a", {}, TWENTY) == EIGHT + 86_400
    assert of.next_at("a", {"requests": 11}, MIDNIGHT) == math.inf
    of = Accounts(by_day({"requests": 10}, "requests 0 second"), MIDNIGHT)
    assert of.charge("a", {"requests": 10}, TWENTY - 0.5) is not None
    assert of.next_at("a", {"requests": 1}, TWENTY - 0.5) == EIGHT + 86_400
    of = Accounts(by_day({"requests": 10}, "requests 0 second"), MIDNIGHT)
    assert of.expected_at("a", {"requests": 5}, TWENTY - 1.5, First("a", {"requests": 6})) == TWENTY - 1
    assert of.expected_at("a", {"requests": 5}, TWENTY - 0.5, First("a", {"requests": 6})) == EIGHT + 86_400


def test_next_at_needs_the_window_free_and_the_hours_open() -> None:
    of = Accounts(by_day({"tokens": 0}, "tokens 100 hour", start="08:00", end="08:30"), MIDNIGHT)
    assert of.charge("a", {"tokens": 100}, EIGHT - 2_700) is not None
    assert of.next_at("a", {"tokens": 1}, EIGHT - 60) == EIGHT + 1_800, "the hour is over at 08:16"
    late = Accounts(by_day({"tokens": 0}, "tokens 100 hour", start="08:00", end="08:10"), MIDNIGHT)
    assert late.charge("a", {"tokens": 100}, EIGHT - 2_700) is not None
    assert late.next_at("a", {"tokens": 1}, EIGHT - 60) == EIGHT + 960, "the hours are over at 08:10"


def test_a_days_quota_ends_at_midnight_in_the_zone_of_the_calendar() -> None:
    of = Accounts(by_day({"quota": 5}, "quota 3 day", zone="Asia/Tokyo", start="00:00", end="12:00"), MIDNIGHT)
    tokyo_midnight = MIDNIGHT + 15 * 3_600
    assert starts(of, "a", tokyo_midnight - 1) == 3
    assert of.next_at("a", {}, tokyo_midnight - 1) == tokyo_midnight
    assert starts(of, "a", tokyo_midnight) == 5
    assert of.room("a", {}, tokyo_midnight + 12 * 3_600) == 0
    assert of.next_at("a", {}, tokyo_midnight + 12 * 3_600) == tokyo_midnight + 86_400


def test_debt_is_paid_by_the_amounts_that_hold_at_the_time() -> None:
    of = Accounts(by_day({"tokens": 0}, "tokens 10 second"), MIDNIGHT)
    charge = charged(of, "a", {"tokens": 10}, EIGHT - 2)
    charge.end(EIGHT - 2, {"tokens": 35})
    assert of.next_at("a", {"tokens": 1}, EIGHT - 2) == TWENTY + 1, "10 at 07:59:59, 10 at 20:00:00, 5 at 20:00:01"
    assert of.used(EIGHT + 86_300)["a"] == {"tokens/second": 0}
    twin = Accounts(by_day({"tokens": 0}, "tokens 10 second"), MIDNIGHT)
    charge = charged(twin, "a", {"tokens": 10}, EIGHT - 2)
    charge.end(EIGHT - 2, {"tokens": 35})
    assert not twin.fits("a", {"tokens": 6}, TWENTY + 1), "also when nobody asked in between"
    assert twin.fits("a", {"tokens": 5}, TWENTY + 1)


def test_a_full_resource_is_looked_at_again_when_its_calendar_lets_more_in_flight() -> None:
    of = Accounts(by_day({"slots": 5}, "slots 2 in_flight", "requests 9 second"), MIDNIGHT)
    assert starts(of, "a", MIDNIGHT) == 2
    assert of.next_at("a", {}, MIDNIGHT) == EIGHT
    assert of.room("a", {}, EIGHT) == 3
    other = Accounts(by_day({"requests": 5}, "slots 2 in_flight", "requests 9 second"), MIDNIGHT)
    assert starts(other, "a", MIDNIGHT) == 2
    assert other.next_at("a", {}, MIDNIGHT) == math.inf


def test_a_resource_that_is_tried_out_gets_one_task_at_a_time() -> None:
    of = accounts(account=resource("requests 10 second"), a=resource(parent="account"), b=resource(parent="account"))
    before = charged(of, "a", {}, NOW)
    of.set_factor("a", PROBE_FACTOR, NOW)
    probe = charged(of, "a", {}, NOW)
    assert of.charge("a", {}, NOW) is None
    assert of.charge("b", {}, NOW) is not None
    before.end(NOW + 1)
    assert not of.fits("a", {}, NOW + 1), "the probe is still running"
    probe.end(NOW + 2)
    assert of.room("a", {}, NOW + 2) == 1


def test_a_resource_without_limits_gets_a_part_of_what_ran() -> None:
    of = accounts(account=resource("requests 100 second"), a=resource(parent="account"))
    running = [charged(of, "a", {}, NOW) for _ in range(20)]
    of.set_factor("a", PROBE_FACTOR, NOW)
    of.set_factor("a", 0.1, NOW + 1)
    assert starts(of, "a", NOW + 1) == 2
    of.set_factor("a", 0.5, NOW + 2)
    assert starts(of, "a", NOW + 2) == 8
    for charge in running:
        charge.end(NOW + 3)
    assert not of.fits("a", {}, NOW + 3)
    of.set_factor("a", 1, NOW + 3)
    assert of.room("a", {}, NOW + 3) == 100


def test_expected_at_counts_on_the_ends_of_tasks_in_flight() -> None:
    of = accounts(account=resource("gb 80 in_flight"), a=resource("requests 5 second", parent="account"), b=resource())
    for gb, ends_at in ((30, NOW + 20), (20, NOW + 10), (10, math.inf)):
        assert of.charge("a", {"gb": gb, "requests": 0}, NOW, ends_at) is not None
    assert of.expected_at("a", {"gb": 20}, NOW) == NOW
    assert of.expected_at("a", {"gb": 40}, NOW) == NOW + 10
    assert of.expected_at("a", {"gb": 70}, NOW) == NOW + 20
    assert of.expected_at("a", {"gb": 71}, NOW) == math.inf
    assert of.expected_at("a", {"gb": 81}, NOW) == math.inf
    assert of.expected_at("a", {"gb": 40}, NOW, First("a", {"gb": 20}, NOW + 5)) == NOW + 10
    assert of.expected_at("a", {"gb": 40}, NOW, First("a", {"gb": 20}, NOW + 15)) == NOW + 15
    assert of.expected_at("a", {"gb": 40}, NOW + 13) == NOW + 16, "what is 3 s late will take 3 s more"
    assert of.expected_at("a", {"gb": 0, "requests": 6}, NOW) == math.inf


def test_expected_at_forgets_tasks_that_ended() -> None:
    of = accounts(a=resource("gb 80 in_flight"))
    first, second = charged(of, "a", {"gb": 50}, NOW, NOW + 5), charged(of, "a", {"gb": 30}, NOW, NOW + 9)
    first.settle({"gb": 40}, NOW + 1)
    assert of.expected_at("a", {"gb": 20}, NOW + 1) == NOW + 5
    assert of.expected_at("a", {"gb": 10}, NOW + 1) == NOW + 1
    first.end(NOW + 2)
    second.undo(NOW + 2)
    assert of.expected_at("a", {"gb": 80}, NOW + 2) == NOW + 2


def test_an_actual_that_cannot_be_true_does_no_harm() -> None:
    of = accounts(a=resource("tokens 100 minute", "slots 9 in_flight"))
    _, charge = charged(of, "a", {"tokens": 30}, NOW), charged(of, "a", {"tokens": 20}, NOW)
    charge.settle({"tokens": math.nan}, NOW)
    charge.settle({"tokens": math.inf}, NOW)
    assert of.used(NOW)["a"] == {"tokens/minute": 50, "slots/in_flight": 2}
    charge.end(NOW, {"tokens": -1_000, "slots": -5})
    assert of.used(NOW)["a"] == {"tokens/minute": 30, "slots/in_flight": 1}


def test_a_changed_pool_does_not_put_running_tasks_before_a_probe() -> None:
    of = accounts(a=resource("slots 9 in_flight"))
    before = charged(of, "a", {}, NOW)
    of.set_factor("a", PROBE_FACTOR, NOW)
    of.follow(Pool("sms", resources={"a": resource("slots 8 in_flight", "memory 5 in_flight")}), NOW)
    assert of.used(NOW)["a"] == {"slots/in_flight": 1, "memory/in_flight": 1}
    before.end(NOW)
    probe = charged(of, "a", {}, NOW)
    of.follow(Pool("sms", resources={"a": resource("slots 7 in_flight")}), NOW)
    assert of.charge("a", {}, NOW) is None
    probe.end(NOW)
    assert of.charge("a", {}, NOW) is not None


def test_a_clock_that_is_put_back_by_much_does_not_stop_a_resource() -> None:
    of = accounts(a=resource("requests 10 minute", "quota 100 day"))
    assert starts(of, "a", NOW + 3_600, 6) == 6
    assert starts(of, "a", NOW) == 4
    assert of.next_at("a", {}, NOW + 1) == NOW + 61
    assert starts(of, "a", NOW + 61) == 10


def test_a_lowered_resource_whose_hours_are_over_starts_again_with_the_next_ones() -> None:
    of = Accounts(by_day({"requests": 10}, "requests 0 second"), MIDNIGHT)
    of.set_factor("a", 0.5, MIDNIGHT)
    assert of.next_at("a", {}, MIDNIGHT) == EIGHT
    assert starts(of, "a", EIGHT) == 5
    of.set_factor("a", 0.5, TWENTY)
    assert of.next_at("a", {}, TWENTY) == EIGHT + 86_400


def test_a_resource_that_was_removed_and_comes_back_is_not_lowered_any_more() -> None:
    of = accounts(a=resource("requests 10 minute"))
    assert starts(of, "a", NOW, 3) == 3
    of.set_factor("a", PROBE_FACTOR, NOW)
    of.follow(Pool("sms"), NOW)
    of.follow(Pool("sms", resources={"a": resource("requests 10 minute")}), NOW)
    assert of.factor("a") == 1
    assert of.room("a", {}, NOW) == 7
