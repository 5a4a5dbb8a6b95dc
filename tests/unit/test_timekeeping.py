"""A host's clock follows its environment's time, and gives no second twice, whatever clocks do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emq.runtime import clock, errors
from emq.runtime.clock import SystemClock
from emq.runtime.lease import Lease
from emq.runtime.timekeeping import BOUND_S, DRIFT, INTERVAL_S, SLEW, Asked, Noted, Timekeeper, successor
from support.virtual import virtual

pytestmark = virtual

T = 1_700_000_000
HOUR_S = 3600.0


class Machine:
    """Its wall clock, which may be wrong and jump, and what has passed since it was started."""

    def __init__(self, wall_ahead_s: float = 0.0) -> None:
        self.loop = asyncio.get_running_loop()
        self.ahead_s = wall_ahead_s
        self.suspended_s = 0.0

    def passed_ns(self) -> int:
        return int((self.loop.time() + self.suspended_s + 12_345) * 1e9)

    def wall_ns(self) -> int:
        return int((T + self.ahead_s + self.loop.time() + self.suspended_s) * 1e9)


class Reference:
    """The environment's time, as a server at some distance tells it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.ahead_s = 0.0
        self.there_s = self.back_s = 0.001
        self.down = False
        self.asked = 0

    def now_us(self) -> int:
        return int((T + self.machine.loop.time() + self.machine.suspended_s + self.ahead_s) * 1e6)

    async def ask(self, passed_us: object, note: bool, anchor_us: int | None = None, /) -> Asked:
        self.asked += 1
        sent_us = self.machine.passed_ns() // 1000
        if self.down:
            raise errors.DatabaseUnavailable("down")
        await asyncio.sleep(self.there_s)
        time_us = self.now_us()
        await asyncio.sleep(self.back_s)
        return Asked(time_us, sent_us, self.machine.passed_ns() // 1000)


class Kept:
    """A clock that is kept, in virtual time."""

    def __init__(self, wall_ahead_s: float = 0.0) -> None:
        self.machine = Machine(wall_ahead_s)
        self.reference = Reference(self.machine)
        self.clock = SystemClock(self.machine.wall_ns, self.machine.passed_ns)
        self.keeper = Timekeeper(self.clock, self.reference.ask, wall_ns=self.machine.wall_ns)
        self.lease = Lease()
        self.keeper.bind(self.lease)

    def go_on(self) -> None:
        """Keep the clock until the test is over."""
        self.task = asyncio.create_task(self.keeper.keep())

    @property
    def wrong_s(self) -> float:
        return (self.clock.now_us() - self.reference.now_us()) / 1e6

    @property
    def starts(self) -> bool:
        return self.clock.now() < self.lease.until


@pytest.fixture(autouse=True)
def _said(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, "emq"):
        yield


@pytest.mark.parametrize("ahead_s", [-HOUR_S, -0.4, 0.0, 7 * HOUR_S])
async def test_a_machine_whose_clock_is_off_goes_by_the_databases(ahead_s: float) -> None:
    kept = Kept(ahead_s)
    assert not kept.starts
    await kept.keeper.begin()
    assert abs(kept.wrong_s) < 0.003
    assert kept.starts
    state = kept.keeper.state()
    assert state.machine_ahead_s == pytest.approx(ahead_s, abs=0.003)
    assert ("run a time service" in (state.trouble or "")) == (abs(ahead_s) > 0.5)


async def test_nothing_is_started_before_the_time_is_known_and_the_log_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = Kept()
    kept.reference.down = True
    await kept.keeper.begin()
    kept.go_on()
    await asyncio.sleep(5)
    assert not kept.starts
    assert "not known" in (kept.keeper.state().trouble or "")
    assert caplog.text.count("nothing is started before") == 1
    kept.reference.down = False
    await asyncio.sleep(1)
    assert kept.starts
    assert "the time is known again" in caplog.text


async def test_a_host_goes_on_without_the_database_until_its_clock_may_be_wrong_by_the_bound() -> None:
    kept = Kept()
    await kept.keeper.begin()
    kept.go_on()
    kept.reference.down = True
    await asyncio.sleep(0.9 * BOUND_S / DRIFT)
    assert kept.starts
    await asyncio.sleep(0.2 * BOUND_S / DRIFT)
    assert not kept.starts
    kept.reference.down = False
    await asyncio.sleep(INTERVAL_S + 1)
    assert kept.starts


async def test_the_shortest_round_trip_counts_and_one_that_is_too_long_tells_nothing() -> None:
    kept = Kept()
    kept.reference.there_s, kept.reference.back_s = 0.6, 0.0
    await kept.keeper.begin()
    assert not kept.starts
    assert abs(kept.wrong_s) <= 0.3 + 1e-3
    kept.reference.there_s = kept.reference.back_s = 0.002
    kept.go_on()
    await asyncio.sleep(2 * INTERVAL_S)
    assert kept.starts
    assert abs(kept.wrong_s) < 0.005
    kept.reference.there_s = 0.8
    await asyncio.sleep(20 * INTERVAL_S)
    assert abs(kept.wrong_s) < 0.005
    assert kept.starts


async def test_an_answer_is_taken_for_the_middle_of_its_round_trip() -> None:
    kept = Kept()
    kept.reference.there_s = kept.reference.back_s = 0.1
    await kept.keeper.begin()
    assert abs(kept.wrong_s) < 0.005
    assert kept.keeper.state().uncertain_s == pytest.approx(0.1, abs=0.005)


async def test_a_host_whose_clock_jumps_forward_starts_nothing_in_the_second_in_which_it_lands() -> None:
    """Who was in that second before may have had the same groups."""
    kept = Kept()
    await kept.keeper.begin()
    kept.go_on()
    await asyncio.sleep(3.2)
    kept.reference.ahead_s += 10.4
    before = kept.clock.now()
    while kept.clock.now() < before + 10:
        before = kept.clock.now()
        await asyncio.sleep(0.01)
    landed = int(kept.clock.now())
    while int(kept.clock.now()) == landed:
        assert not kept.starts
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert kept.starts


async def test_a_suspended_machine_has_lost_its_lease_and_its_second() -> None:
    kept = Kept()
    await kept.keeper.begin()
    kept.lease.end()
    kept.lease.renew(kept.clock.now() + 6)
    assert kept.starts
    kept.machine.suspended_s += 60
    assert not kept.starts
    assert abs(kept.wrong_s) < 0.003


def test_time_passes_by_the_clock_that_goes_on_while_a_machine_is_suspended() -> None:
    import time

    assert abs(clock.boot_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) < 1e9


async def test_a_time_service_that_sets_the_clock_after_the_start_is_noticed_and_followed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With an embedded database the reference is the machine's own clock."""

    kept = Kept(-HOUR_S)
    kept.reference.ahead_s = -HOUR_S
    await kept.keeper.begin()
    kept.go_on()
    await asyncio.sleep(3)
    kept.machine.ahead_s = kept.reference.ahead_s = 0.0
    await asyncio.sleep(1)
    assert abs(kept.wrong_s) < 0.003
    assert "has jumped by +3600.0 s" in caplog.text
    assert "leaves out 3600.0 s" in caplog.text
    assert kept.keeper.state().corrected_s == pytest.approx(HOUR_S, abs=0.01)


async def test_a_correction_neither_shortens_nor_lengthens_a_lease() -> None:
    kept = Kept()
    await kept.keeper.begin()
    for by_s in (2.0, -1.0):
        kept.lease.end()
        kept.lease.renew(kept.clock.now() + 6)
        kept.reference.ahead_s += by_s
        await kept.keeper.begin()
        assert not kept.starts  # it has landed in the midst of a second
        await asyncio.sleep(5.5)
        assert kept.starts
        await asyncio.sleep(1)
        assert not kept.starts


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(-7200, 7200)), max_size=6))
@settings(deadline=None, max_examples=25)
async def test_a_kept_clock_never_goes_back_whatever_the_reference_does(jumps: list[tuple[float, float]]) -> None:
    kept = Kept()
    await kept.keeper.begin()
    kept.go_on()
    last = kept.clock.now_us()
    for wait_s, by_s in jumps:
        kept.reference.ahead_s += by_s
        for _ in range(10):
            await asyncio.sleep(wait_s / 10)
            assert kept.clock.now_us() >= last
            last = kept.clock.now_us()
    kept.task.cancel()


@given(
    st.lists(
        st.tuples(st.integers(0, 5_000_000), st.one_of(st.just(0), st.integers(-(10**10), 10**10))),
        min_size=1,
        max_size=30,
    )
)
def test_the_time_of_an_environment_never_goes_back_and_returns_to_the_reference(
    steps: list[tuple[int, int]],
) -> None:
    reference_us, noted, last = T * 10**6, None, 0
    for passed_us, jump_us in steps:
        reference_us += passed_us + jump_us
        time_us = successor(reference_us, noted).time_us
        assert time_us >= max(last, reference_us)
        if noted is not None and not jump_us:
            assert time_us - last >= (1 - SLEW) * passed_us - 1
        noted, last = Noted(time_us, reference_us), time_us
    ahead_us = last - reference_us
    later_us = reference_us + round(ahead_us / SLEW) + 1
    assert successor(later_us, noted) == (later_us, False)


async def test_a_clock_is_known_as_soon_as_the_reference_answers() -> None:
    kept = Kept(2 * HOUR_S)
    kept.reference.down = True
    known = asyncio.create_task(kept.keeper.known())
    await asyncio.sleep(60)
    assert not known.done()
    kept.reference.down = False
    await asyncio.sleep(1)
    assert known.done()
    assert abs(kept.wrong_s) < 0.003
    asked = kept.reference.asked
    await kept.keeper.known()
    assert kept.reference.asked == asked
