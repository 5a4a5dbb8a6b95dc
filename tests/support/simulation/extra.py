"""One more topic for most seeds, of a kind with its own rules of judgement.

All values are drawn from separate streams, so that all other events of a seed stay as they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from emq.topics.model import Kind
from support.simulation.plans import TopicPlan

RECURRING = "recurring"
"""A topic with schedules; see `support.simulation.timetable`."""

THREADED, RECEIVED = "threaded", "received"
"""Topics whose handlers are plain functions, and of which programs ask for messages."""

WIDE = TopicPlan(
    *("wide", 24.0, 1.0, 12.0),
    options={"max_attempts": 3, "backoff_s": (0.3, 0.8), "jitter": 0.0},
)
"""A topic with a group for each of many hosts."""

FOLDED = "folded"
"""A topic with merge keys; see `support.simulation.folding`."""


def extra(seed: int) -> list[TopicPlan]:
    """Return the extra topic, if the seed has one."""
    rng = random.Random(f"{seed} extra")
    make = rng.choice(KINDS)
    return [] if make is None else [make(rng)]


def _folded(rng: random.Random) -> TopicPlan:
    kind = rng.choice((Kind.RANGE_MERGE, Kind.FIXED_TIME, Kind.PRIORITY))
    options: dict[str, Any] = {
        "merge": "key",
        "fold": rng.choice(("latest", "sum", "max", "min", "union", "count")),
        "ordering": rng.choice(("slot", "none", "none")),
        "prepare_timeout_s": 20.0,
    }
    doomed = 0.0
    if rng.random() < 0.5:
        options |= {"retry": "backoff", "max_attempts": 3, "backoff_s": (0.3, 0.8), "jitter": 0.0}
        doomed = 0.02
    if kind is Kind.RANGE_MERGE:
        options["time_range_ms"] = rng.choice((200, 800))
    delayed = 1.0 if kind is Kind.FIXED_TIME else 0.0
    return TopicPlan(
        *(FOLDED, 8.0, 4.0, rng.choice((6.0, 10.0)), kind),
        doomed=doomed,
        delayed=delayed,
        options=options,
        merging=rng.choice((2, 6, 15)),
    )


def _recurring(rng: random.Random) -> TopicPlan:
    kind = rng.choice((Kind.LOG, Kind.LOG, Kind.PRIORITY, Kind.FIXED_TIME))
    options: dict[str, Any] = {"max_attempts": 3, "backoff_s": (0.3, 0.8), "jitter": 0.0}
    if kind is not Kind.LOG:
        options |= {"retry": "backoff", "prepare_timeout_s": 20.0, "ordering": rng.choice(("slot", "none"))}
    return TopicPlan(RECURRING, 12.0, 6.0, 0.5, kind, delayed=1.0, slow=0.05, options=options)


def _log(name: str, rng: random.Random, **options: Any) -> TopicPlan:
    qps = rng.choice((8.0, 12.0))
    given: dict[str, Any] = {"max_attempts": 3, "backoff_s": (0.3, 0.8), "jitter": 0.0, **options}
    return TopicPlan(name, qps, qps / 2, rng.choice((0.6, 1.2)) * qps, options=given)


def _threaded(rng: random.Random) -> TopicPlan:
    options = {"handler_timeout_s": 1.0} if rng.random() < 0.5 else {}
    return _log(THREADED, rng, **options)._replace(by="thread", slow=0.2)


def _received(rng: random.Random) -> TopicPlan:
    return _log(RECEIVED, rng)._replace(by="receiver", failing=0.2)


KINDS: tuple[Callable[[random.Random], TopicPlan] | None, ...] = (
    *(_folded, _folded, _folded, _recurring, _recurring, _recurring, _threaded, _received, None),
)
