"""Errors that nobody expects, at all awaits of guarded loops, leave no group to nobody and no message unsettled."""

from __future__ import annotations

import random

import pytest

from support.simulation.report import report
from support.simulation.run import carry_out
from support.simulation.schedule import Event, schedule

KEPT = ("resize", "create_again", "weight", "resize_keyed", "join")
"""What happens besides: nothing that would have hosts look at everything again, as an outage does."""

EVENTS = 6


@pytest.mark.parametrize("seed", [0, 2, 118, 204])
def test_every_promise_holds_though_loops_break_again_and_again(seed: int) -> None:
    rng, plan = random.Random(seed), schedule(seed)
    struck = [
        Event(rng.uniform(3, 20), "unforeseen", rng.randrange(60), rng.uniform(2, 10), 1.0) for _ in range(EVENTS)
    ]
    kept = [event for event in plan.events if event.what in KEPT]
    outcome = carry_out(plan._replace(clean=False, events=tuple(sorted([*kept, *struck]))))
    assert not outcome.violations, report(outcome)
    assert outcome.happened["unforeseen error"] > 10
