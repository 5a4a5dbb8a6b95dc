"""Kinds of limits, rolling, calendar and bucket: what they let start, what they keep, how they are written."""

from __future__ import annotations

import math

import msgspec
import pytest

from emq.runtime import errors
from emq_scheduling.forecast import what_if
from emq_scheduling.forecast.prediction import forecast, predicted_waits
from emq_scheduling.limits.accounts import Accounts
from emq_scheduling.limits.limits import Meter, meter_of
from emq_scheduling.limits.usage import SavedUse, Usage
from emq_scheduling.model import Calendar, Hours, Limit, Pool, Resource, TaskType
from emq_scheduling.pools import documents, editing, rules
from emq_scheduling.records.proof import Recount
from emq_scheduling.records.snapshot import PoolState

NOON = 1_700_049_600.0  # 12:00 UTC, a Wednesday


def pool(*limits: Limit, calendar: Calendar | None = None, **levels: int) -> Pool:
    types = {name: TaskType(priority=level) for name, level in (levels or {"t": 0}).items()}
    named = None if calendar is None else "c"
    resource = Resource(limits=limits, takes={kind: {} for kind in types}, calendar=named)
    calendars = {} if calendar is None else {"c": calendar}
    made = Pool("p", resources={"a": resource}, types=types, calendars=calendars)
    rules.check(made)
    return made


def starts(of: Accounts | Meter, now: float, most: int = 1_000) -> int:
    """Start tasks until none fits; return how many."""
    count = 0
    while count < most and (of.fits("a", {}, now) if isinstance(of, Accounts) else of.fits(1, now)):
        if isinstance(of, Accounts):
            of.charge("a", {}, now)
        else:
            of.charge(1, now)
        count += 1
    return count


# ----------------------------------------------------------------------------------------------------------- starting


def test_a_bucket_holds_its_burst_and_refills_at_its_rate() -> None:
    meter = meter_of(Limit("n", 60, "minute", "bucket", 5), "UTC")
    assert starts(meter, NOON) == 5
    assert meter.next_at(1, NOON) == pytest.approx(NOON + 1)
    assert starts(meter, NOON + 3) == 3
    assert starts(meter, NOON + 1_000) == 5
    assert meter.next_at(6, NOON + 1_000) == math.inf
    meter.owe(4, NOON + 1_000)
    assert meter.next_at(1, NOON + 1_000) == pytest.approx(NOON + 1_005), "debt is paid first"


def test_a_bucket_without_a_burst_holds_its_amount() -> None:
    meter = meter_of(Limit("n", 60, "minute", "bucket"), "UTC")
    assert starts(meter, NOON) == 60
    meter.set_amount(30, NOON + 60)
    assert starts(meter, NOON + 60) == 30


def test_a_bucket_goes_on_after_a_clock_that_was_put_back() -> None:
    meter = meter_of(Limit("n", 60, "minute", "bucket", 5), "UTC")
    assert starts(meter, NOON) == 5
    assert starts(meter, NOON - 3) == 0
    assert starts(meter, NOON - 3_600) == 0
    assert starts(meter, NOON - 3_597) == 3


def test_minutes_and_hours_of_the_calendar_end_by_the_clock() -> None:
    for per, period_s in (("minute", 60), ("hour", 3_600)):
        meter = meter_of(Limit("n", 7, per, "calendar"), "UTC")  # type: ignore[arg-type]
        assert starts(meter, NOON - 0.5) == 7
        assert starts(meter, NOON) == 7
        assert meter.next_at(1, NOON + 1) == NOON + period_s


def test_a_day_has_a_zone_of_its_own() -> None:
    berlin = Calendar("Europe/Berlin")
    of = Accounts(pool(Limit("n", 3, "day", zone="Asia/Kolkata"), calendar=berlin), NOON)
    assert starts(of, NOON) == 3
    assert of.next_at("a", {}, NOON) == NOON + 6.5 * 3_600, "midnight in Kolkata"


def test_rolling_days_and_seconds_begin_anywhere() -> None:
    day, second = (meter_of(Limit("n", 3, per, "rolling"), "UTC") for per in ("day", "second"))  # type: ignore[arg-type]
    assert (starts(day, NOON), starts(second, NOON + 0.9)) == (3, 3)
    assert day.next_at(1, NOON) == NOON + 61 * 1_440
    assert not second.fits(1, NOON + 1.89)
    assert second.next_at(1, NOON + 1) == NOON + 57 / 64 + 65 / 64


@pytest.mark.parametrize("before", [None, "calendar", "bucket"])
@pytest.mark.parametrize("after", [None, "calendar", "bucket"])
def test_a_limit_that_changes_its_kind_keeps_its_use(before: str | None, after: str | None) -> None:
    of = Accounts(pool(Limit("n", 60, "minute", before)), NOON)  # type: ignore[arg-type]
    assert starts(of, NOON, 40) == 40
    of.follow(pool(Limit("n", 60, "minute", after)), NOON + 0.5)  # type: ignore[arg-type]
    assert 20 <= starts(of, NOON + 0.5) <= 20 + (after == before == "bucket")


def test_an_amount_of_0_lets_nothing_start_from_a_bucket_either() -> None:
    none, some = (pool(Limit("n", amount, "minute", "bucket", 30)) for amount in (0, 60))
    assert starts(Accounts(none, NOON), NOON) == 0
    of = Accounts(some, NOON)
    of.follow(none, NOON)
    assert starts(of, NOON + 60) == 0
    of.follow(some, NOON + 60)
    assert starts(of, NOON + 62) == 2


def test_a_burst_may_change_while_the_pool_runs() -> None:
    of = Accounts(pool(Limit("n", 60, "minute", "bucket", 30)), NOON)
    of.follow(pool(Limit("n", 60, "minute", "bucket", 10)), NOON)
    assert starts(of, NOON) == 10


def test_a_late_refund_brings_back_only_what_the_bucket_could_have_held() -> None:
    of = Accounts(pool(Limit("n", 60, "minute", "bucket", 5)), NOON)
    first = of.charge("a", {"n": 3.0}, NOON)
    second = of.charge("a", {"n": 4.0}, NOON + 2.5)  # 4.5 were there: half a unit more would have fitted
    assert first is not None
    assert second is not None
    first.end(NOON + 2.5, {"n": 0.0})
    assert starts(of, NOON + 2.5) == 1
    assert of.next_at("a", {"n": 1.0}, NOON + 2.5) == pytest.approx(NOON + 3.5)
    second.end(NOON + 2.5, {"n": 0.0})
    assert starts(of, NOON + 2.5) == 4, "it was not full since"


def test_a_refund_from_before_a_smaller_burst_brings_back_nothing() -> None:
    of = Accounts(pool(Limit("n", 60, "minute", "bucket", 30)), NOON)
    first = of.charge("a", {"n": 9.0}, NOON)
    assert first is not None
    of.follow(pool(Limit("n", 60, "minute", "bucket", 5)), NOON + 0.01)
    assert starts(of, NOON + 0.01) == 5
    first.end(NOON + 0.01, {"n": 0.0})
    assert starts(of, NOON + 0.01) == 0


def test_a_bucket_remembers_a_bounded_past() -> None:
    meter = meter_of(Limit("n", 60, "minute", "bucket", 5_000), "UTC")
    for step in range(1_000):
        meter.charge(2, NOON + step)
    meter.refund(1_000, NOON, NOON + 1_000)
    assert meter.used(NOON + 1_000) >= 1_000 - 2 * 64, "of what nobody remembers, less comes back"
    assert len(meter._lows) <= 64  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------- after a crash


@pytest.mark.parametrize("limit", [Limit("n", 600, "minute", "bucket", 50), Limit("n", 10, "second", "bucket", 50)])
def test_the_next_owner_of_a_pool_has_no_full_bucket(limit: Limit) -> None:
    first = Accounts(pool(limit), NOON, saves=True)
    usage, saved = Usage(first), dict[str, SavedUse]()
    for step in range(20):
        plan = usage.plan(NOON)
        saved |= plan
        usage.saved(plan)
        started = starts(first, NOON + step / 1_000)
    assert not started
    second = Accounts(pool(limit), NOON + 1, saves=True)
    usage = Usage(second)
    usage.restore(saved, NOON + 1)
    usage.saved(usage.plan(NOON + 1))
    assert starts(second, NOON + 1) <= 10


def test_the_debt_of_a_bucket_is_kept() -> None:
    first = Accounts(pool(Limit("n", 10, "second", "bucket", 50)), NOON, saves=True)
    charge = first.charge("a", {}, NOON)
    assert charge is not None
    charge.end(NOON, {"n": 150.0})
    second = Accounts(pool(Limit("n", 10, "second", "bucket", 50)), NOON + 2, saves=True)
    Usage(second).restore(Usage(first).final(NOON), NOON + 2)
    assert second.next_at("a", {}, NOON + 2) == pytest.approx(NOON + 10.1)


def owners(before: Pool, after: Pool, at: float) -> Accounts:
    """Return the accounts of an owner that takes over a changed pool, 0.1 s after the former one used it up."""
    first = Accounts(before, at, saves=True)
    usage = Usage(first)
    usage.saved(usage.plan(at))
    while starts(first, at):
        usage.saved(usage.plan(at))
    saved = msgspec.json.decode(msgspec.json.encode(usage.final(at)), type=dict[str, SavedUse])
    second = Accounts(after, at + 0.1, saves=True)
    second.begin(at + 0.1)
    usage = Usage(second)
    usage.restore(saved, at + 0.1)
    usage.saved(usage.plan(at + 0.1))
    return second


def test_the_next_owner_does_not_find_a_larger_burst_full() -> None:
    small, large = (pool(Limit("n", 60, "minute", "bucket", burst)) for burst in (5, 500))
    assert starts(owners(small, large, NOON), NOON + 1) <= 1
    slow, fast = (pool(Limit("n", amount, "hour", "bucket", 5)) for amount in (60, 3_600_000))
    assert owners(slow, fast, NOON).meters("a")[0][2].room(NOON + 0.1) < 1, "it was slow until the change"


def test_the_next_owner_counts_the_use_of_another_kind_as_of_now() -> None:
    clock, rolling = (pool(Limit("n", 60, "minute", kind)) for kind in ("calendar", "rolling"))  # type: ignore[arg-type]
    meter = owners(clock, rolling, NOON + 58).meters("a")[0][2]
    assert meter.room(NOON + 61) == 0, "the minute of the clock has ended, and 60 started 3 s ago"
    assert meter.room(NOON + 58.1 + 61) == 60


def test_the_next_owner_takes_a_rolling_second_for_used_up() -> None:
    made = pool(Limit("n", 5, "second", "rolling"))
    after = owners(made, made, NOON + 0.85)
    assert starts(after, NOON + 1.0) == 0
    assert starts(after, NOON + 0.95 + 66 / 64) == 5


# ------------------------------------------------------------------------------------------------------ written


def test_a_kind_survives_files_and_commands() -> None:
    made = pool(
        Limit("n", 600, "minute", "bucket", 50), Limit("n", 9, "day", zone="Asia/Tokyo"), Limit("n", 5, "second")
    )
    assert documents.load(documents.dump(made)) == made
    assert documents.load(documents.dump(made, "json"), "json") == made
    changes = {
        "limits.n/minute=500": Limit("n", 500, "minute", "bucket", 50),
        "limits.n/minute=500 rolling": Limit("n", 500, "minute", "rolling"),
        "limits.n/minute=500 bucket": Limit("n", 500, "minute", "bucket"),
        "limits.n/day=8 calendar in Europe/Berlin": Limit("n", 8, "day", "calendar", zone="Europe/Berlin"),
        "limits.n/hour=7 bucket of 2.5": Limit("n", 7, "hour", "bucket", 2.5),
    }
    for text, limit in changes.items():
        assert limit in editing.changed(made, "resource", "a", [text]).resources["a"].limits
        name, _, value = text.removeprefix("limits.").partition("=")
        what, _, per = name.partition("/")
        amount, _, kind = value.partition(" ")
        assert limit in what_if.changed(made, [f"limit a {what}={amount}/{per} {kind}"]).resources["a"].limits


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (Limit("n", 1, "in_flight", "rolling"), "limit 'n' per in flight: kind 'rolling' is for limits by time"),
        (Limit("n", 1, "minute", burst=5), "limit 'n' per minute: burst 5 is for buckets; leave it out, or give kind"),
        (Limit("n", 1, "minute", "bucket", 0), "burst of 'n' per minute 0 must be above 0"),
        (Limit("n", 1, "minute", "bucket", math.nan), "burst of 'n' per minute nan must be a finite number"),
        (
            Limit("n", 9, "minute", "bucket", 0.5),
            "costs 1 of 'n', but the burst is 0.5, so none could start; raise the",
        ),
        (Limit("n", 1, "hour", "calendar", zone="UTC"), "limit 'n' per hour: zone 'UTC' is for days of the calendar"),
        (Limit("n", 1, "day", "rolling", zone="UTC"), "limit 'n' per day: zone 'UTC' is for days of the calendar"),
        (Limit("n", 1, "day", zone="Berlin"), "zone 'Berlin' is not known; give an IANA name such as Europe/Berlin"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(limit: Limit, text: str) -> None:
    with pytest.raises(errors.InvalidPool) as caught:
        pool(limit)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_kind_that_nobody_knows_is_refused() -> None:
    for wrong, text in (
        (Limit("n", 1, "day", "sliding"), "kind = 'sliding'"),
        (Limit("n", "9", "day"), "amount = '9'"),
    ):  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidPool, match=rf"limits\[0\].{text} (must be one of bucket|does not fit)"):
            documents.checked(Pool("p", resources={"a": Resource(limits=(wrong,))}))
    with pytest.raises(errors.InvalidPool, match="kind 'sliding' cannot be read; write rolling, calendar, calendar in"):
        editing.changed(pool(Limit("n", 1, "minute")), "resource", "a", ["limits.n=2 sliding"])
    with pytest.raises(errors.InvalidPool, match=r"limits\[0\].kind = 'sliding' must be one of bucket, calendar, roll"):
        documents.load('name="p"\n[resources.a]\nlimits=[{name="n", amount=1, per="minute", kind="sliding"}]')


# ----------------------------------------------------------------------------------------------------- forecasts


def test_the_less_urgent_are_predicted_to_follow_the_even_rate() -> None:
    made = pool(Limit("n", 60, "minute"), chat=0, batch=2)
    waits = predicted_waits(made, PoolState(NOON, {"batch": 30}), NOON)
    assert waits == {"chat": pytest.approx(0, abs=0.1), "batch": pytest.approx(30, rel=0.05)}
    assert predicted_waits(made, PoolState(NOON, {"chat": 30}), NOON)["chat"] < 1, "the urgent may use it at once"


def test_a_bucket_is_predicted_with_its_burst_and_its_rate() -> None:
    made = pool(Limit("n", 60, "minute", "bucket", 30), t=0)
    assert forecast(made, PoolState(NOON, {"t": 90})).drained_s == pytest.approx(60, rel=0.05)
    used = {"a": {"n/minute": 30.0}}
    assert forecast(made, PoolState(NOON, {"t": 90}, used=used)).drained_s == pytest.approx(90, rel=0.05)


def test_a_rolling_day_does_not_come_back_at_midnight() -> None:
    used = {"a": {"n/day": 100.0}}
    calendar, rolling = pool(Limit("n", 100, "day")), pool(Limit("n", 100, "day", "rolling"))
    assert predicted_waits(calendar, PoolState(NOON, used=used), NOON)["t"] == pytest.approx(12 * 3_600, rel=0.01)
    evening = NOON + 11.9 * 3_600
    assert predicted_waits(calendar, PoolState(evening, {"t": 50}, used=used), evening)["t"] < 600
    assert predicted_waits(rolling, PoolState(evening, {"t": 50}, used=used), evening)["t"] > 10 * 3_600


# ---------------------------------------------------------------------------------------------------------- proof


def over_s(of: Pool | dict[int, Pool], *at_s: float | tuple[float, int]) -> float:
    """Return the seconds over the limit, from starts at these seconds after noon, with the versions of the pool."""
    from test_scheduling_proof import T0, row

    recount = Recount(of if isinstance(of, dict) else {1: of})
    for each in at_s:
        second, version = each if isinstance(each, tuple) else (each, 1)
        started = row(second + NOON - T0, resource="a", version=version)
        recount.add(msgspec.structs.replace(started, type="t"))
    return sum(each.over_s for each in recount.result())


def test_the_proof_counts_minutes_of_the_calendar_by_the_clock() -> None:
    clock, rolling = (pool(Limit("n", 2, "minute", kind)) for kind in ("calendar", "rolling"))  # type: ignore[arg-type]
    assert over_s(clock, -1, -0.5, 0, 0.5) == 0
    assert over_s(rolling, -1, -0.5, 0, 0.5) == 1
    assert over_s(clock, 0, 1, 59.9) == 1


def test_the_proof_fills_a_bucket_as_time_goes_by() -> None:
    bucket = pool(Limit("n", 60, "minute", "bucket", 3))
    assert over_s(bucket, 0, 0, 0, 1, 2, 3, 9, 9, 9) == 0
    assert over_s(bucket, 0, 0, 0, 0.9) == 1
    assert over_s(bucket, 0, 0, 0, 1, 2, 2.9) == 1


def test_the_proof_ends_a_day_in_its_own_zone_and_rolls_one_that_rolls() -> None:
    kolkata = 6.5 * 3_600
    assert over_s(pool(Limit("n", 1, "day", zone="Asia/Kolkata")), kolkata - 1, kolkata) == 0
    assert over_s(pool(Limit("n", 1, "day")), kolkata - 1, kolkata) == 1
    assert over_s(pool(Limit("n", 1, "day", "rolling")), 12 * 3_600 - 1, 12 * 3_600) == 1
    assert over_s(pool(Limit("n", 1, "day", "rolling")), 0, 86_400) == 0


def test_the_proof_begins_a_limit_again_that_changes_its_kind() -> None:
    versions = {1: pool(Limit("n", 2, "minute")), 2: pool(Limit("n", 2, "minute", "calendar"))}
    assert over_s(versions, 58, 59, (60, 2), (61, 2)) == 0
    assert over_s(versions, 58, 59, (60, 2), (61, 2), (62, 2)) == 1


def test_the_proof_lets_a_day_end_before_or_after_a_change_of_its_zone() -> None:
    utc, berlin = (pool(Limit("n", 2, "day", zone=zone)) for zone in ("UTC", "Europe/Berlin"))
    yesterday, late = -24 * 3_600, 10.5 * 3_600  # 22:30 UTC, 23:30 in Berlin
    assert over_s({1: utc, 2: berlin}, yesterday, yesterday, (0, 2), (1, 2)) == 0
    assert over_s({1: utc, 2: berlin}, late, late, (late + 3_600, 2), (late + 3_601, 2)) == 0
    assert over_s({1: berlin, 2: utc}, late, late, (late + 3_600, 2), (late + 3_601, 2)) == 0
    assert over_s({1: utc, 2: berlin}, 0, 1, (2, 2)) == 1, "still the same day"


def test_the_proof_counts_debt_against_the_larger_burst() -> None:
    versions = {1: pool(Limit("n", 60, "minute", "bucket", 30)), 2: pool(Limit("n", 60, "minute", "bucket", 5))}
    from test_scheduling_proof import T0, row

    recount = Recount(versions)
    first = row(NOON - T0, took_s=5, resource="a", actual={"n": 10.0})  # used more before the burst was lowered
    for each in (first, row(NOON - T0 + 6, resource="a", version=2)):
        recount.add(msgspec.structs.replace(each, type="t"))
    assert [each.over_s for each in recount.result()] == [0]


def test_the_proof_follows_a_burst_that_is_lowered() -> None:
    versions = {1: pool(Limit("n", 60, "hour", "bucket", 9)), 2: pool(Limit("n", 60, "hour", "bucket", 4))}
    assert over_s(versions, 0, (1, 2), (1, 2), (1, 2), (1, 2)) == 0
    assert over_s(versions, 0, (1, 2), (1, 2), (1, 2), (1, 2), (1, 2)) == 1


def test_amounts_of_a_calendar_change_a_bucket() -> None:
    night = Calendar(hours=(Hours("00:00", "12:00", amounts={"n": 10}),))
    of = Accounts(pool(Limit("n", 60, "minute", "bucket"), calendar=night), NOON - 10)
    assert starts(of, NOON - 1) == 10
    assert starts(of, NOON + 30) == 30
