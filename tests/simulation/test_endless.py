"""A simulation that would never end becomes a finding that names what spins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from emq.host.retirement import Retirement
from support.simulation import endless
from support.simulation.plans import TopicPlan
from support.simulation.run import Outcome, carry_out
from support.simulation.schedule import Schedule

TOPIC = TopicPlan("keyed", 24.0, 8.0, 12.0, keys=5, options={"max_attempts": 3, "backoff_s": (0.3,), "jitter": 0.0})


def outcome() -> Outcome:
    return carry_out(Schedule(1, True, (0.0,), 2, (TOPIC,), ()))


async def steps_without_end() -> None:
    while True:
        await asyncio.sleep(0)


async def one_endless_step() -> None:
    while asyncio.get_running_loop().is_running():
        pass


async def steps_that_nothing_ends() -> None:
    while True:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            continue


@pytest.mark.parametrize("spin", [steps_without_end, one_endless_step, steps_that_nothing_ends])
def test_a_run_that_never_ends_is_told_with_what_spins(
    spin: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def watch(self: Retirement) -> None:
        await asyncio.sleep(2.0)
        await spin()

    with monkeypatch.context() as planted:
        planted.setattr(Retirement, "watch", watch)
        planted.setattr(endless, "CPU_S", 1.0)
        planted.setattr(endless, "LOOK_S", 0.5)
        [violation] = outcome().violations
    assert violation.promise == "run"
    assert violation.text.startswith("no end after 1 s of CPU time")
    assert spin.__name__ in violation.text
    assert outcome().violations == []
