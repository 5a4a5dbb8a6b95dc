"""The meaning of a seed: topics, hosts, and events with their times."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from emq.topics.model import Kind
from support.simulation import budgeted, varied
from support.simulation.brood import brood
from support.simulation.extra import WIDE, extra
from support.simulation.plans import Event, TopicPlan
from support.simulation.varied import WAKES

__all__ = ["Event", "Schedule", "TopicPlan", "schedule"]

SESSION_S = 6.0
"""Session time-out of the hosts, in seconds."""

BEGIN_S, END_S = 3.0, 20.0
"""Seconds between which the events happen; after them, everything is healed."""

SKEW_S = 0.4
"""Seconds by which a machine's clock may differ from the true time, with a time service."""

WRONG_S = 3 * 3600.0
"""Seconds by which a machine's clock may differ from the true time, without a time service."""

CLEAN = ("join", "leave", "weight", "drain", "resize")

UNCLEAN = (
    *("crash", "crash", "rebirth", "pause", "pause", "partition", "partition", "expire", "quorum", "tree_delay"),
    *("tree_loss", "store_delay", "store_loss", "store_down", "database_delay", "database_loss", "database_down"),
    *("leader_crash", "publisher_loss"),
    *("clock_jump", "reference_jump"),
    *("store_shorter", "store_shorter", "store_empty"),
)

SILENT = (
    *("store_silent", "database_silent", "database_silent_for_all", "tree_silent_for_all"),
    *("store_down_for_all", "database_down_for_all"),
)
"""Servers that answer nothing, and outages for all hosts at once; drawn apart from the others."""


MORE = ("store_silent_for_all", "suspend", "suspend", "suspend_all")
"""Outages for all hosts, and machines that sleep; drawn apart, too."""

CROWD = ("join", "join", "roll", "roll")
CROWD_UNCLEAN = ("crash_many", "crash_many", "rebirth", "leader_crash")
"""What happens to many hosts beside the usual."""

CROWDED = 1 / 40
"""Share of the seeds that have many hosts."""

FEW, MANY = 6, 20
"""Most hosts: usually, and in the seeds with many."""

SHARDS = ("shard_down", "shard_silent")
"""Faults of one part of the store."""


DATABASE = ("database_shorter", "database_shorter", "database_empty")
"""The database comes back without its last second, or empty."""

UNFORESEEN = ("unforeseen",)
"""Errors that nobody expects."""

AGAIN = ("create_again",)
"""A topic is deleted with all that it holds, and created again with another size."""


REBORN = "reborn"
"""The topic that is deleted and created again."""


class Schedule(NamedTuple):
    seed: int
    clean: bool
    offsets_s: tuple[float, ...]
    """Of the clocks of hosts, in the order in which they are started; in turn."""
    hosts: int
    topics: tuple[TopicPlan, ...]
    events: tuple[Event, ...]
    most_hosts: int = FEW
    """That may be there at once."""

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
    """Return the schedule of a seed; the same seed gives the same schedule."""
    rng = random.Random(seed)
    clean = rng.random() < 0.3
    kinds = CLEAN if clean else CLEAN + UNCLEAN
    events = [_event(rng, kinds) for _ in range(rng.randint(2, 10))]
    if not clean:
        apart = random.Random(f"{seed} silence")
        events += [_event(apart, SILENT) for _ in range(apart.choice((0, 0, 1, 2)))]
        shards = random.Random(f"{seed} shards")  # of its own, so that all other events of a seed stay as they were
        events += [_event(shards, SHARDS) for _ in range(shards.choice((0, 0, 1)))]
        wakes = random.Random(f"{seed} wakes")
        events += [_event(wakes, WAKES) for _ in range(wakes.choice((0, 0, 1)))]
        more = random.Random(f"{seed} more")
        events += [_event(more, MORE) for _ in range(more.choice((0, 0, 0, 1)))]
        databases = random.Random(f"{seed} databases")
        events += [_event(databases, DATABASE) for _ in range(databases.choice((0, 0, 0, 0, 0, 1)))]
        strange = random.Random(f"{seed} unforeseen")
        events += [_event(strange, UNFORESEEN) for _ in range(strange.choice((0, 0, 1, 2)))]
    one_more = varied.varied(seed)
    events += varied.own_events(one_more, _event, seed, clean)
    again = random.Random(f"{seed} again")  # of its own, too
    reborn = [_event(again, AGAIN) for _ in range(again.choice((0, 0, 1, 2, 3)))]
    events += reborn
    unit = budgeted.budgeted(seed)
    events += budgeted.own_events(unit, _event, seed)
    skewed = rng.random() < 0.5
    crowd = random.Random(f"{seed} crowd")
    crowded = crowd.random() < CROWDED
    if crowded:
        events += [_event(crowd, CROWD if clean else CROWD + CROWD_UNCLEAN) for _ in range(crowd.randint(3, 5))]
    clocks, hosts = tuple(_clocks(rng) if skewed else (0.0,) * 6), rng.randint(1, 6)
    return Schedule(
        seed,
        clean,
        clocks,
        crowd.randint(12, MANY) if crowded else hosts,
        (
            *_topics(rng),
            *([_reborn(again)] if reborn else []),
            one_more,
            *extra(seed),
            *([WIDE] if crowded else []),
            *unit,
            *brood(seed),
        ),
        tuple(sorted(events)),
        MANY if crowded else FEW,
    )


def _clocks(rng: random.Random) -> list[float]:
    """Of hosts: some have a time service, some a wrong zone or an empty battery."""
    return [round(rng.uniform(-1, 1) * rng.choice((SKEW_S, WRONG_S)), 3) for _ in range(6)]


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


def _reborn(rng: random.Random) -> TopicPlan:
    sizes = (10.0, 4.0, 12.0)  # with a backlog, so that hosts hold what is deleted
    options: dict[str, Any] = dict(_LOG)
    if rng.random() < 0.4:
        options = {"prepare_timeout_s": 20.0, "time_range_ms": 200, "ordering": "none"}
        return TopicPlan(REBORN, sizes[0], 3.0, 12.0, Kind.RANGE_MERGE, doomed=0.0, sizes=sizes, options=options)
    return TopicPlan(REBORN, sizes[0], 3.0, 12.0, slow=0.05, sizes=sizes, options=options)


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
