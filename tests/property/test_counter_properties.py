"""Counters under arbitrary use: the cap is never passed, and nothing of the quota is lost."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from emq.quota.counter import MICRO, WindowCounter, allowance
from emq.quota.smooth import SmoothCounter

START = 1_700_000_000

quotas = st.one_of(
    st.sampled_from([0.1, 0.5, 1.0, 2.5, 7.0, 50.0]),
    st.integers(1, 60 * MICRO).map(lambda micros: micros / MICRO),
)


@given(quotas, st.integers(0, 2_000_000_000), st.integers(1, 10_000))
def test_allowances_of_any_run_of_seconds_add_up_to_the_quota_within_one_start(
    quota: float, first: int, seconds: int
) -> None:
    micros = round(quota * MICRO)
    # Telescoping, so that the sum over a long run is cheap and exact.
    total = micros * (first + seconds) // MICRO - micros * first // MICRO
    assert total == sum(allowance(micros, s) for s in range(first, first + min(seconds, 500))) + (
        micros * (first + seconds) // MICRO - micros * (first + min(seconds, 500)) // MICRO
    )
    assert abs(total - Fraction(micros, MICRO) * seconds) < 1


@given(quotas, st.integers(0, 2_000_000_000))
def test_no_second_allows_more_than_the_quota_rounded_up(quota: float, second: int) -> None:
    micros = round(quota * MICRO)
    assert micros // MICRO <= allowance(micros, second) <= -(-micros // MICRO)


@given(quotas, st.integers(0, 100_000), st.floats(0, 0.999), st.integers(0, 60))
def test_next_at_is_the_earliest_second_that_allows_a_start(
    quota: float, offset: int, fraction: float, spent_for_s: int
) -> None:
    assume(quota >= 0.01)
    now = START + offset + fraction
    counter = WindowCounter(quota, now)
    for _ in range(spent_for_s):
        now += 1
        while counter.reserve(100, now):
            pass
    at = counter.next_at(now)
    micros = round(quota * MICRO)
    assert at == next(s for s in range(int(now) + 1, int(now) + 200) if allowance(micros, s))
    assert counter.reserve(1, at - 0.001) == 0
    assert counter.reserve(1, at) == 1


class WindowMachine(RuleBasedStateMachine):
    """Reserve, release, change the quota and let time pass, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = float(START)
        self.counter = WindowCounter(2.5, self.now)
        self.quota = self.next_quota = 2.5
        self.held = 0
        self.used = 0
        self.bound = 0  # of this second: what may have been started in it

    def _pass_to(self, now: float) -> None:
        if int(now) > int(self.now):
            self.quota = self.next_quota
            self.held = self.used = 0
            self.bound = allowance(round(self.quota * MICRO), int(now))
        self.now = now

    @rule(n=st.integers(1, 80))
    def reserve(self, n: int) -> None:
        granted = self.counter.reserve(n, self.now)
        assert 0 <= granted <= n
        room = self.bound - self.used - self.held
        assert granted == max(0, min(n, room))
        self.held += granted

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        n = data.draw(st.integers(1, self.held))
        self.held -= n
        self.used += n

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        n = data.draw(st.integers(1, self.held))
        self.held -= n
        self.counter.release(n, self.now)

    @rule(quota=quotas)
    def set_quota(self, quota: float) -> None:
        self.counter.set_quota(quota, self.now)
        # Where the new one allows less, that counts at once: what was started stays, what was not may no longer be.
        self.bound = min(self.bound, allowance(round(quota * MICRO), int(self.now)))
        self.next_quota = quota

    @rule(seconds=st.sampled_from([0.001, 0.3, 0.7, 1.0, 5.0]))
    def wait(self, seconds: float) -> None:
        # Reservations of a second that is over are not started any more (`valid_until`), and not always released.
        self._pass_to(self.now + seconds)
        self.counter.reserve(0, self.now)

    @invariant()
    def a_grant_ends_with_its_second(self) -> None:
        assert self.counter.valid_until(self.now) <= int(self.now) + 1


TestWindowCounter = WindowMachine.TestCase
TestWindowCounter.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


@given(
    quota=st.sampled_from([0.5, 2.5, 10.0, 50.0, 120.5]),
    burst=st.one_of(st.none(), st.floats(1, 20)),
    steps=st.lists(st.tuples(st.floats(0, 0.4), st.integers(0, 40), st.integers(0, 10)), max_size=80),
)
@settings(deadline=None)
def test_a_smooth_counter_stays_under_quota_and_burst_in_any_sliding_second(
    quota: float, burst: float | None, steps: list[tuple[float, int, int]]
) -> None:
    now = START + 0.123
    counter = SmoothCounter(quota, now, burst)
    most = quota + (1 + quota / 10 if burst is None else burst)
    starts: list[float] = []
    for wait, n, back in steps:
        now += wait
        granted = counter.reserve(n, now)
        released = min(back, granted)
        if released:
            counter.release(released, now)
        starts += [now] * (granted - released)
    for i, at in enumerate(starts):
        assert sum(1 for s in starts[i:] if s < at + 1) <= most + 1e-3
        for j in range(i, len(starts)):
            assert j - i + 1 <= quota * (starts[j] - at) + most - quota + 1e-3


@given(st.sampled_from([0.5, 1.0, 3.7, 50.0]), st.sampled_from([0.003, 0.01, 0.05, 0.1]))
def test_a_smooth_counter_that_is_asked_often_enough_gives_the_full_quota(quota: float, every_s: float) -> None:
    counter = SmoothCounter(quota, START)
    steps = int(20 / every_s)
    granted = sum(counter.reserve(100, START + i * every_s) for i in range(steps + 1))
    assert abs(granted - quota * 20) <= 1 + 1e-6


@given(st.sampled_from([0.5, 2.0, 33.0]), st.floats(0, 10))
def test_the_time_a_smooth_counter_names_is_when_it_grants(quota: float, later: float) -> None:
    counter = SmoothCounter(quota, START)
    now = START + later
    while counter.reserve(1, now):
        pass
    at = counter.next_at(now)
    assert counter.reserve(1, at - 0.002) == 0
    assert counter.reserve(1, at + 2e-6) == 1
