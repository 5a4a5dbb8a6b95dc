"""One more topic for each seed, with an option or a handler that the others do not have.

Everything is drawn from streams of its own, so that all other events of a seed stay as they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from support.simulation.plans import Event, TopicPlan

VARIED = "varied"
"""Its name."""

PAUSE, RESIZE_KEYED, GROWTH_LOST = "pause_topic", "resize_keyed", "growth_lost"

WAKES = ("wake_late", "wake_again", "wake_lost", "store_full")
"""Faults of what tells hosts of new messages, and a store that takes nothing more; for topics of all kinds."""

_LOG: dict[str, Any] = {"max_attempts": 3, "backoff_s": (0.3, 0.8), "jitter": 0.0}


def varied(seed: int) -> TopicPlan:
    rng = random.Random(f"{seed} varied")
    return rng.choice(KINDS)(rng)


def own_events(
    plan: TopicPlan, make: Callable[[random.Random, tuple[str, ...]], Event], seed: int, clean: bool
) -> list[Event]:
    """What an operator does to the topic: pause it and let it go on, or resize it; a store may lose a part of that."""
    rng = random.Random(f"{seed} varied events")
    kind = PAUSE if plan.pauses else RESIZE_KEYED if plan.moving else None
    found = [] if kind is None else [make(rng, (kind,)) for _ in range(rng.choice((1, 1, 2, 3)))]
    if plan.moving and not clean and rng.random() < 0.5:
        found.append(make(rng, (GROWTH_LOST,)))
    return found


def _log(rng: random.Random, load: float = 1.5, **options: Any) -> TopicPlan:
    group_qps = rng.choice((3.0, 6.0))
    qps = group_qps * rng.randint(1, 3)
    return TopicPlan(VARIED, qps, group_qps, load * qps, slow=0.05, options={**_LOG, **options})


def _batches(rng: random.Random) -> TopicPlan:
    """A handler that takes lists, of which a part may fail."""
    return _log(rng)._replace(batch=rng.choice((2, 5)), failing=0.2)


def _weighted(rng: random.Random) -> TopicPlan:
    return _log(rng, priority_policy="weighted", weights=(5.0, 3.0, 2.0))


def _aging(rng: random.Random) -> TopicPlan:
    return _log(rng, priority_policy="aging", aging_s=rng.choice((1.0, 4.0)))


def _expiring(rng: random.Random) -> TopicPlan:
    return _log(rng, ttl_s=rng.choice((1.5, 4.0)))._replace(delayed=0.1)


def _full(rng: random.Random) -> TopicPlan:
    """A topic at its `max_length`."""
    return _log(rng, 2.0, max_length=rng.choice((20, 40)), overflow=rng.choice(("reject", "drop_oldest")))


def _pausing(rng: random.Random) -> TopicPlan:
    return _log(rng, rng.choice((0.8, 1.5)))._replace(pauses=True)


def _moving(rng: random.Random) -> TopicPlan:
    """Keys that come to other groups while their messages wait."""
    plan = _log(rng, rng.choice((0.8, 1.5)))
    sizes = tuple(plan.group_qps * rng.randint(1, 5) for _ in range(3))
    return plan._replace(keys=rng.choice((3, 8)), sizes=(plan.qps, *sizes), failing=0.05)


KINDS: tuple[Callable[[random.Random], TopicPlan], ...] = (
    *(_batches, _weighted, _aging, _expiring, _full, _pausing, _moving),
)
