"""Topics that share a budget, for some seeds; `support.simulation.budget_use` judges them.

Everything is drawn from streams of its own, so that all other events of a seed stay as they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from emq.topics.model import Kind
from support.simulation.plans import Event, TopicPlan

TENANT, CHANNEL = "tenant", "channel"
"""The root of the budgets, and a budget within it."""

RESIZE_BUDGET = "resize_budget"

_LOG: dict[str, Any] = {"max_attempts": 3, "backoff_s": (0.3, 0.8), "jitter": 0.0}


def budgeted(seed: int) -> list[TopicPlan]:
    """Return the topics of a unit, each behind its budget, if the seed has one."""
    rng = random.Random(f"{seed} budget")
    if rng.random() < 0.5:
        return []
    qps = rng.choice((5.0, 8.0, 15.0))
    load = rng.choice((0.6, 1.0, 1.5)) * qps
    created_s = rng.uniform(3.0, 12.0) if rng.random() < 0.4 else 0.0
    sizes = (qps, *(float(rng.randint(2, 20)) for _ in range(2))) if rng.random() < 0.4 else ()
    tenant = TopicPlan(
        *(TENANT, qps, max(1.0, qps / rng.choice((1, 2, 3))), max(0.5, 0.2 * load)), sizes=sizes, options=dict(_LOG)
    )
    made, count = [tenant], rng.randint(2, 4)
    above = [TENANT] * count
    if rng.random() < 0.4:
        made.append(TopicPlan(CHANNEL, 0.6 * qps, qps, 0.3, options={**_LOG, "budget": TENANT, "share": 2.0}))
        above = [rng.choice((TENANT, CHANNEL)) for _ in above]
    for number, budget in enumerate(above):
        options = {**_LOG, "budget": budget, "share": rng.choice((0.5, 1.0, 1.0, 4.0))}
        made.append(_endpoint(rng, f"endpoint-{number}", max(qps, *sizes, 0.0), load / count, options))
    return [tenant, *(plan._replace(created_s=round(created_s, 3)) for plan in made[1:])]


def _endpoint(rng: random.Random, name: str, qps: float, rate: float, options: dict[str, Any]) -> TopicPlan:
    kind, group_qps = Kind.LOG, rng.choice((qps, qps, max(1.0, qps / 2)))
    if (pick := rng.random()) < 0.15:
        options["pacing"] = "smooth"
    elif pick < 0.3:
        kind = Kind.RANGE_MERGE
        options = {"prepare_timeout_s": 20.0, "time_range_ms": 300, "ordering": "none", **options}
        options = {key: value for key, value in options.items() if key not in _LOG}
    doomed = 0.0 if kind is not Kind.LOG else 0.02
    return TopicPlan(name, qps, group_qps, rate, kind, doomed=doomed, slow=0.05, options=options)


def own_events(
    plans: Sequence[TopicPlan], make: Callable[[random.Random, tuple[str, ...]], Event], seed: int
) -> list[Event]:
    """Return the times at which an operator changes the root's qps."""
    rng = random.Random(f"{seed} budget events")
    if not any(plan.name == TENANT and plan.sizes for plan in plans):
        return []
    return [make(rng, (RESIZE_BUDGET,)) for _ in range(rng.choice((1, 2, 3)))]
