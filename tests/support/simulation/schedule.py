"""What a seed stands for: topics, hosts, and what happens when."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from emq.model import Kind

SESSION_S = 6.0
"""Time-out of the hosts' sessions."""

BEGIN_S, END_S = 3.0, 20.0
"""Between these things happen; then everything is healed."""

SKEW_S = 0.4
"""A host's clock is at most so far from the true time."""

CLEAN = ("join", "leave", "weight", "drain", "resize")

UNCLEAN = (
    *("crash", "crash", "rebirth", "pause", "pause", "partition", "partition", "expire", "quorum", "tree_delay"),
    *("tree_loss", "store_delay", "store_loss", "store_down", "database_delay", "database_loss", "database_down"),
    *("leader_crash", "publisher_loss"),
)


class TopicPlan(NamedTuple):
    """Attributes:
    rate: publishes a second.
    keys: how many there are; 0 for none.
    failing: share of the messages whose first attempts fail.
    doomed: share of those whose attempts all fail.
    slow: share of the messages whose handlers wait.
    delayed: share of the messages that are published with a delay.
    sizes: what qps `resize` sets in turn.
    """

    name: str
    qps: float
    group_qps: float
    rate: float
    kind: Kind = Kind.LOG
    keys: int = 0
    failing: float = 0.1
    doomed: float = 0.02
    slow: float = 0.1
    delayed: float = 0.0
    sizes: tuple[float, ...] = ()
    options: Mapping[str, Any] = {}


class Event(NamedTuple):
    """Attributes:
    at: true time in seconds.
    what: one of `CLEAN` or `UNCLEAN`.
    pick: which host or topic, counted round those that there are then.
    for_s: how long it lasts.
    size: how bad it is, from 0 to 1.
    """

    at: float
    what: str
    pick: int
    for_s: float
    size: float


class Schedule(NamedTuple):
    seed: int
    clean: bool
    offsets_s: tuple[float, ...]
    """Of the clocks of hosts, in the order in which they are started; in turn."""
    hosts: int
    topics: tuple[TopicPlan, ...]
    events: tuple[Event, ...]

    def __str__(self) -> str:
        clocks = ", ".join(f"{offset:+.2f}" for offset in self.offsets_s)
        lines = [
            f"seed {self.seed}: {self.hosts} hosts at first, {'clean moves only' if self.clean else 'with faults'}",
            f"  clocks ahead by {clocks} s, in the order in which hosts are started",
            *(f"  topic {topic}" for topic in self.topics),
            *(
                f"  {e.at:6.2f} s  {e.what} (pick {e.pick}, for {e.for_s:.2f} s, size {e.size:.2f})"
                for e in self.events
            ),
        ]
        return "\n".join(lines)


def schedule(seed: int) -> Schedule:
    """The same seed gives the same schedule."""
    rng = random.Random(seed)
    clean = rng.random() < 0.3
    kinds = CLEAN if clean else CLEAN + UNCLEAN
    events = [_event(rng, kinds) for _ in range(rng.randint(2, 10))]
    skewed = rng.random() < 0.5
    return Schedule(
        seed,
        clean,
        tuple(round(rng.uniform(-SKEW_S, SKEW_S), 3) if skewed else 0.0 for _ in range(6)),
        rng.randint(1, 6),
        tuple(_topics(rng)),
        tuple(sorted(events)),
    )


def _event(rng: random.Random, kinds: tuple[str, ...]) -> Event:
    at = rng.uniform(BEGIN_S, END_S)
    # Either short, or long enough for a session to expire.
    for_s = rng.uniform(0.2, 3.0) if rng.random() < 0.4 else rng.uniform(3.0, 2 * SESSION_S)
    return Event(round(at, 3), rng.choice(kinds), rng.randrange(60), round(for_s, 3), round(rng.random(), 3))


def _topics(rng: random.Random) -> list[TopicPlan]:
    made = [_keyed(rng), _resized(rng)]
    others: list[Callable[[random.Random], TopicPlan]] = [_smooth, _fixed_time, _range_merge, _priority, _slow_quota]
    return made + [make(rng) for make in rng.sample(others, rng.randint(1, 2))]


def _load(rng: random.Random) -> float:
    """What is published, compared with what may be started; above 1 a backlog grows, and hosts' buffers are full."""
    return rng.choice((0.6, 0.8, 1.5))


_LOG = {"max_attempts": 3, "backoff_s": (0.3, 0.8), "jitter": 0.0}


def _keyed(rng: random.Random) -> TopicPlan:
    group_qps = rng.choice((4.0, 7.5, 12.0))
    groups = rng.randint(1, 6)
    qps = group_qps * groups
    return TopicPlan(
        "keyed", qps, group_qps, min(25.0, _load(rng) * qps), keys=rng.choice((2, 5, 12)), slow=0.05, options=dict(_LOG)
    )


def _resized(rng: random.Random) -> TopicPlan:
    group_qps = rng.choice((3.0, 5.0, 10.0))
    sizes = tuple(group_qps * rng.randint(1, 8) for _ in range(3))
    return TopicPlan(
        "resized",
        sizes[0],
        group_qps,
        min(20.0, _load(rng) * min(sizes)),
        delayed=0.15,
        sizes=sizes,
        options=dict(_LOG),
    )


def _smooth(rng: random.Random) -> TopicPlan:
    return TopicPlan("smooth", 12.0, 6.0, 12.0 * _load(rng), options={**_LOG, "pacing": "smooth"})


def _slow_quota(rng: random.Random) -> TopicPlan:
    return TopicPlan("rare", 1.5, 1.0, 1.5 * _load(rng), failing=0.0, doomed=0.0, options=dict(_LOG))


_BACKOFF = {**_LOG, "retry": "backoff", "prepare_timeout_s": 20.0}


def _fixed_time(rng: random.Random) -> TopicPlan:
    options = {**_BACKOFF, "ordering": rng.choice(("slot", "key", "none"))}
    return TopicPlan("timed", 12.0, 6.0, 6.0, Kind.FIXED_TIME, delayed=1.0, options=options)


def _range_merge(rng: random.Random) -> TopicPlan:
    options = {"prepare_timeout_s": 20.0, "time_range_ms": 500, "ordering": rng.choice(("slot", "none"))}
    return TopicPlan("ranged", 12.0, 6.0, 6.0, Kind.RANGE_MERGE, doomed=0.0, options=options)


def _priority(rng: random.Random) -> TopicPlan:
    options = {**_BACKOFF, "ordering": rng.choice(("slot", "none"))}
    return TopicPlan("ranked", 12.0, 6.0, 6.0, Kind.PRIORITY, options=options)
