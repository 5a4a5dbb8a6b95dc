"""Topics, for some seeds, that sleep between the bursts of their publishers; see `support.simulation.families`.

Everything is drawn from a stream of its own, so that seeds without a family stay as they were.
"""

from __future__ import annotations

import random
from typing import Any

from support.simulation.plans import TopicPlan

IDLE_S = 0.8
"""Their `idle_s`: shorter than usual, so that they sleep often."""

SHARE = 0.35
"""Share of the seeds that have a family."""


def brood(seed: int) -> list[TopicPlan]:
    """Return the topics of the family, if the seed has one."""
    rng = random.Random(f"{seed} family")
    if rng.random() >= SHARE:
        return []
    groups = rng.choice((1, 1, 2))
    qps = rng.choice((3.0, 6.0)) * groups
    options: dict[str, Any] = {"idle_s": IDLE_S, "max_attempts": 3, "backoff_s": (0.3, 0.8), "jitter": 0.0}
    if rng.random() < 0.2:
        options["pacing"] = "smooth"
    made = TopicPlan("", qps, qps / groups, 0.0, doomed=0.0, slow=0.05, options=options, sleeps=True)
    made = made._replace(failing=rng.choice((0.0, 0.1)), delayed=rng.choice((0.0, 0.2)))
    return [made._replace(name=f"brood.{i}", rate=rng.choice((0.5, 0.8, 1.5))) for i in range(rng.randint(1, 3))]
