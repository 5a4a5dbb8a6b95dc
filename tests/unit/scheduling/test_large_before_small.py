"""Large tasks beside small ones of a lower priority, while more urgent tasks spread them over time."""

from __future__ import annotations

from collections import Counter

from bench.scheduling.replay import Replay
from emq.scheduling.model import Limit, Pool, Resource, TaskType
from emq.scheduling.pools import rules


def test_small_tasks_do_not_take_the_room_that_a_larger_more_urgent_one_waits_for() -> None:
    types = {
        "code": TaskType(priority=0),
        "large": TaskType(priority=1, costs={"requests": 3.0}),
        "small": TaskType(priority=2),
    }
    resource = Resource(limits=(Limit("requests", 30, "second"),), takes={kind: {} for kind in types})
    pool = Pool("p", resources={"r": resource}, types=types)
    rules.check(pool)
    replay = Replay(pool, {"code": 40, "large": 300, "small": 3_000}, {"code": 3.0}, seed=2)
    replay.run(30.0)
    units: Counter[str] = Counter()
    for start in replay.starts():
        if start.at >= 1e9 + 3:
            units[start.kind] += 3 if start.kind == "large" else 1
    # 30 units a second less 3 for codes: 27 for large tasks, and what these leave of a second.
    assert units["large"] >= 0.8 * 27 * 27
    assert units["small"] <= 0.15 * 27 * 30
    assert units["large"] + units["small"] + units["code"] >= 0.98 * 27 * 30
