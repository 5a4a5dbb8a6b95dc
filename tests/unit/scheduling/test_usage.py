"""What limits have used survives a crash: the next owner never exceeds a limit, and little of it is lost."""

import msgspec
import pytest

from emq_scheduling.limits import accounts
from emq_scheduling.limits.reserve import AGAIN_S
from emq_scheduling.limits.usage import AT_ONCE, SavedUse, Usage
from emq_scheduling.model import Limit, Pool, Resource
from support.roomy_accounts import Accounts

NOW = 1_000_000.0


def pool(amount: float = 100, per: str = "minute") -> Pool:
    return Pool("p", resources={"a": Resource(limits=(Limit("requests", amount, per),))})  # type: ignore[arg-type]


class Owner:
    """An owner of a pool with the resource "a"."""

    def __init__(self, of: Pool, saved: dict[str, SavedUse], now: float) -> None:
        self.accounts = Accounts(of, now, saves=True)
        self.accounts.begin(now)
        self.usage = Usage(self.accounts)
        self.usage.restore(saved, now)

    def save(self, saved: dict[str, SavedUse], now: float) -> None:
        plan = self.usage.plan(now)
        saved |= {name: msgspec.json.decode(msgspec.json.encode(use), type=SavedUse) for name, use in plan.items()}
        self.usage.saved(plan)

    def starts(self, now: float, n: int = 1_000, **costs: float) -> int:
        return sum(self.accounts.charge("a", costs, now) is not None for _ in range(n))


def test_nothing_starts_before_the_first_save() -> None:
    owner = Owner(pool(), {}, NOW)
    assert owner.starts(NOW + 1) == 0
    assert owner.accounts.next_at("a", {}, NOW + 1) == NOW + 1 + AGAIN_S
    assert owner.accounts.room("a", {}, NOW + 1) == 0
    owner.save({}, NOW + 1)
    assert owner.starts(NOW + 1) > 0


def test_all_limits_of_a_resource_and_its_parents_are_saved() -> None:
    limits = (Limit("requests", 9, "second"), Limit("requests", 100, "minute"), Limit("tokens", 1_000, "hour"))
    above = Resource(limits=(Limit("quota", 50, "day"), Limit("slots", 5, "in_flight")))
    two = Pool("p", resources={"up": above, "a": Resource(parent="up", limits=limits)})
    saved: dict[str, SavedUse] = {}
    first = Owner(two, saved, NOW)
    first.save(saved, NOW)
    assert first.starts(NOW + 1, 1, tokens=2) == 1
    assert {name: set(use.limits) for name, use in saved.items()} == {
        "up": {"quota/day"},
        "a": {"requests/minute", "tokens/hour"},
    }
    second = Owner(two, first.usage.final(NOW + 1), NOW + 2)
    assert second.accounts.used(NOW + 2) == {
        "up": {"quota/day": 1, "slots/in_flight": 0},
        "a": {"requests/second": 0, "requests/minute": 1, "tokens/hour": 2},
    }


def test_of_many_resources_those_are_saved_first_for_which_tasks_wait() -> None:
    limits = (Limit("requests", 1_000, "day"),)
    many = Pool("p", resources={f"r{number}": Resource(limits=limits) for number in range(AT_ONCE + 50)})
    accounts = Accounts(many, NOW, saves=True)
    usage = Usage(accounts)
    assert not accounts.fits(f"r{AT_ONCE + 7}", {}, NOW)
    plan = usage.plan(NOW)
    assert (len(plan), next(iter(plan))) == (AT_ONCE, f"r{AT_ONCE + 7}")
    usage.saved(plan)
    assert len(usage.plan(NOW)) == 50


def test_what_a_crashed_owner_used_counts_for_the_next() -> None:
    saved: dict[str, SavedUse] = {}
    first = Owner(pool(), saved, NOW)
    first.save(saved, NOW)
    used = first.starts(NOW + 1, 40)
    second = Owner(pool(), saved, NOW + 2)
    second.save(saved, NOW + 2)
    for step in range(40):
        used += second.starts(NOW + 3 + step)
        second.save(saved, NOW + 3 + step)
    assert 90 <= used <= 100
    for step in range(40, 70):
        used += second.starts(NOW + 3 + step)
        second.save(saved, NOW + 3 + step)
    assert 190 <= used <= 200


def test_the_reserve_follows_the_rate() -> None:
    saved: dict[str, SavedUse] = {}
    owner = Owner(pool(1e6, "day"), saved, NOW)
    owner.save(saved, NOW)
    served = []
    for step in range(1, 20):
        served.append(owner.starts(NOW + step, 500))
        owner.save(saved, NOW + step)
    assert served[0] < 100
    assert served[8:] == [500] * 11
    assert saved["a"].limits["requests/day"].reserve == pytest.approx(1_500, rel=0.3)


def test_a_large_task_waits_for_one_save_only() -> None:
    owner = Owner(pool(1e6, "day"), {}, NOW)
    owner.save({}, NOW)
    assert owner.starts(NOW + 1, 1, requests=5_000) == 0
    assert owner.usage.is_short()
    owner.save({}, NOW + 1)
    assert not owner.usage.is_short()
    assert owner.starts(NOW + 1, 1, requests=5_000) == 1


def test_a_full_limit_asks_for_no_saves() -> None:
    owner, started = Owner(pool(10), {}, NOW), 0
    for _ in range(5):
        owner.save({}, NOW + 1)
        started += owner.starts(NOW + 1)
    assert started == 10
    owner.save({}, NOW + 1)
    assert owner.starts(NOW + 2) == 0
    assert not owner.usage.is_short()


def test_idle_limits_are_not_saved_again() -> None:
    owner = Owner(pool(), {}, NOW)
    owner.save({}, NOW)
    assert owner.usage.plan(NOW + 1) == {}
    owner.starts(NOW + 1, 1)
    assert owner.usage.plan(NOW + 1) == {}, "the reserve is large enough"
    assert list(owner.usage.plan(NOW + 100)) == ["a"], "so that the next owner knows when it was used"


def test_after_a_save_with_an_unknown_outcome_the_smaller_reserve_holds() -> None:
    owner = Owner(pool(), {}, NOW)
    owner.save({}, NOW)
    assert owner.starts(NOW + 1, 1) == 1
    left = owner.accounts.room("a", {}, NOW + 1)
    plan = owner.usage.plan(NOW + 20)
    owner.usage.doubtful(plan)
    assert owner.accounts.room("a", {}, NOW + 20) == min(left, plan["a"].limits["requests/minute"].reserve)


def test_the_last_save_of_an_owner_reserves_nothing() -> None:
    saved: dict[str, SavedUse] = {}
    first = Owner(pool(), saved, NOW)
    first.save(saved, NOW)
    used = first.starts(NOW + 1, 5)
    second = Owner(pool(), first.usage.final(NOW + 1), NOW + 1)
    assert second.accounts.used(NOW + 2)["a"] == {"requests/minute": used}


def test_debt_is_saved_and_paid_while_nobody_owns_the_pool() -> None:
    saved: dict[str, SavedUse] = {}
    first = Owner(pool(), saved, NOW)
    first.save(saved, NOW)
    charge = first.accounts.charge("a", {}, NOW + 1)
    assert charge is not None
    charge.end(NOW + 1, {"requests": 350})
    saved = first.usage.final(NOW + 1)
    assert Owner(pool(), saved, NOW + 2).accounts.used(NOW + 2)["a"] == {"requests/minute": 350}
    assert Owner(pool(), saved, NOW + 63).accounts.used(NOW + 63)["a"] == {"requests/minute": 250}
    assert Owner(pool(), saved, NOW + 185).accounts.used(NOW + 185)["a"] == {"requests/minute": 50}


def test_a_day_that_has_ended_does_not_count() -> None:
    saved: dict[str, SavedUse] = {}
    first = Owner(pool(100, "day"), saved, NOW)
    first.save(saved, NOW)
    used = first.starts(NOW + 1, 2)
    saved = first.usage.final(NOW + 2)
    assert Owner(pool(100, "day"), saved, NOW + 60).accounts.used(NOW + 60)["a"] == {"requests/day": used}
    assert Owner(pool(100, "day"), saved, NOW + 86_400).accounts.used(NOW + 86_400)["a"] == {"requests/day": 0}


def test_a_clock_that_was_ahead_lets_nothing_start_before_its_time() -> None:
    saved: dict[str, SavedUse] = {}
    first = Owner(pool(), saved, NOW + 3)
    first.save(saved, NOW + 3)
    used = first.starts(NOW + 4, 4)
    second = Owner(pool(), first.usage.final(NOW + 4), NOW)
    second.save(saved, NOW)
    assert second.starts(NOW + 2) == 0
    assert second.accounts.next_at("a", {}, NOW + 2) == NOW + 4
    assert second.starts(NOW + 4) > 0
    far = Owner(pool(), first.usage.final(NOW + 4), NOW - 1_000)
    assert far.accounts.used(NOW - 990)["a"] == {"requests/minute": used}
    assert far.accounts.next_at("a", {}, NOW - 990) == NOW - 990 + AGAIN_S


def test_a_removed_resource_is_not_saved_and_comes_back_as_it_was() -> None:
    saved: dict[str, SavedUse] = {}
    owner = Owner(pool(), saved, NOW)
    owner.save(saved, NOW)
    used = owner.starts(NOW + 1, 5)
    plan = owner.usage.plan(NOW + 60)
    owner.accounts.follow(Pool("p"), NOW + 2)
    owner.usage.saved(plan)
    assert owner.usage.plan(NOW + 2) == {}
    owner.accounts.follow(pool(), NOW + 3)
    assert owner.accounts.used(NOW + 3)["a"] == {"requests/minute": used}


def test_sixty_cells_are_saved_as_about_twelve() -> None:
    owner = Owner(pool(600), {}, NOW)
    owner.save({}, NOW)
    for second in range(1, 61):
        owner.starts(NOW + second, 3)
        owner.save({}, NOW + second)
    held = owner.usage.final(NOW + 60)["a"].limits["requests/minute"].held
    assert len(held) <= 13
    assert sum(units for _, units in held) == owner.accounts.used(NOW + 60)["a"]["requests/minute"]


def test_cells_that_are_saved_as_one_leave_with_the_last_of_them() -> None:
    saved: dict[str, SavedUse] = {}
    first = Owner(pool(), saved, NOW)
    for second in (1, 4):
        first.save(saved, NOW + second)
        assert first.starts(NOW + second, 3) == 3
    second_owner = Owner(pool(), first.usage.final(NOW + 5), NOW + 6)
    assert second_owner.accounts.used(NOW + 64.9)["a"] == {"requests/minute": 6}
    assert second_owner.accounts.used(NOW + 65)["a"] == {"requests/minute": 0}


def test_what_is_given_back_makes_no_reserve() -> None:
    owner = Owner(pool(), {}, NOW)
    owner.save({}, NOW)
    room = owner.accounts.room("a", {}, NOW + 1)
    charge = owner.accounts.charge("a", {}, NOW + 1)
    assert charge is not None
    charge.undo(NOW + 50)
    assert owner.accounts.room("a", {}, NOW + 50) == room - 1, "it is saved as used at a time that ends sooner"
    owner.save({}, NOW + 66)
    assert owner.accounts.room("a", {}, NOW + 66) == room


def test_a_resource_may_have_several_saved_limits() -> None:
    limits = (Limit("requests", 100, "minute"), Limit("tokens", 900, "minute"), Limit("tokens", 5_000, "day"))
    saved: dict[str, SavedUse] = {}
    owner = Owner(Pool("p", resources={"a": Resource(limits=limits)}), saved, NOW)
    owner.save(saved, NOW)
    assert len(saved["a"].limits) == 3
    assert owner.starts(NOW + 1) > 0


@pytest.mark.parametrize("is_crash", [False, True])
def test_the_debt_of_a_limit_per_second_survives_a_change_of_the_owner(is_crash: bool) -> None:
    saved: dict[str, SavedUse] = {}
    first = Owner(pool(50, "second"), saved, NOW)
    charge = first.accounts.charge("a", {}, NOW + 1)
    assert charge is not None
    charge.end(NOW + 1.5, {"requests": 1_000})
    first.save(saved, NOW + 2)
    assert saved
    assert not first.usage.plan(NOW + 3), "what is saved is paid as foreseen"
    if not is_crash:
        saved = first.usage.final(NOW + 3)
    second = Owner(pool(50, "second"), saved, NOW + 5)
    assert second.starts(NOW + 6) == 0
    assert second.starts(NOW + 20.5) == 0
    assert second.starts(NOW + 21) == 50


def test_what_starts_while_a_smaller_reserve_is_being_saved_is_covered_by_it() -> None:
    saved: dict[str, SavedUse] = {}
    first = Owner(pool(), saved, NOW)
    first.save(saved, NOW)
    assert first.starts(NOW + 1, 1, requests=40) == 0, "it asks for a larger reserve"
    first.save(saved, NOW + 1)
    used = first.starts(NOW + 1, 1)
    plan = first.usage.plan(NOW + 20)
    assert plan["a"].limits["requests/minute"].reserve < 20, "nobody asks for more any longer"
    used += first.starts(NOW + 20)
    second = Owner(pool(), saved | plan, NOW + 21)
    second.save(saved, NOW + 21)
    for step in range(30):
        used += second.starts(NOW + 22 + step)
        second.save(saved, NOW + 22 + step)
    assert used <= 100


def test_the_row_of_a_resource_that_is_gone_is_deleted_once_its_use_counts_no_more() -> None:
    saved: dict[str, SavedUse] = {}
    first = Owner(pool(), saved, NOW)
    first.save(saved, NOW)
    assert first.starts(NOW + 1, 3) == 3
    first.save(saved, NOW + 1)
    without = Pool("p", resources={"b": Resource()})
    first.accounts.follow(without, NOW + 2)
    first.accounts.sweep(NOW + 2)
    assert first.usage.gone(NOW + 3) == []
    second = Owner(without, saved, NOW + 4)
    assert second.usage.gone(NOW + 5) == [], "it may come back under the next owner"
    for owner in (first, second):
        owner.accounts.sweep(NOW + 65)
        assert owner.usage.gone(NOW + 65) == ["a"]
        owner.usage.deleted(["a"])
        assert owner.usage.gone(NOW + 65) == []
        assert not owner.usage._rows


def test_resources_that_come_and_go_with_debt_leave_only_the_latest_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "FORMER", 10)
    owner = Owner(Pool("p"), {}, NOW)
    for number in range(30):
        limits = (Limit("requests", 5, "second"),)
        of = Pool("p", resources={f"r{number}": Resource(limits=limits)})
        owner.accounts.follow(of, NOW + 2)
        charge = owner.accounts.charge(f"r{number}", {}, NOW + 3)
        assert charge is not None
        charge.end(NOW + 3, {"requests": 1e9})
        owner.save({}, NOW + 4)
        owner.accounts.follow(Pool("p"), NOW + 5)
    assert list(owner.accounts._former) == [f"r{number}" for number in range(20, 30)]
    owner.usage.deleted(owner.usage.gone(NOW + 10))
    assert len(owner.usage._paid_at) == len(owner.usage._rows) == 10
