"""The sweep over groups judges priority as the rule of small trails does, whatever happened in a group."""

from __future__ import annotations

import random
from collections import Counter
from typing import NamedTuple

import pytest
from pyspark.sql import Row, SparkSession

from emq.trail import events
from emq_proof import checks, priorities
from emq_proof.checks import End, Start
from emq_spark.audit import local_rows, owners, priority

GROUPS = 600
STEP_US = 500_000
"""Times are multiples of this, so that many fall together, and messages lie in the store for longer than they may."""

ROWS = (
    "event string, topic string, `group` int, source string, time_us long, priority byte, offset long, id string, "
    "key string, attempt int, ready_us long, published_us long, epoch long"
)


class Told(NamedTuple):
    """What happened in one group; `taken_us` says when each host took it."""

    starts: list[Start]
    ends: list[End]
    taken_us: dict[str, int]


def _told(topic: str, seed: int) -> Told:
    chance = random.Random(seed)
    hosts = ["a", "b"][: chance.randint(1, 2)]
    told = Told([], [], {host: chance.randrange(1, 4) * STEP_US for host in hosts})
    offsets = iter(range(1_000))
    for number in range(chance.randint(3, 9)):
        key = chance.choice([None, "k", "k", "l"]) if chance.random() < 0.9 else None
        level, published_us = chance.randrange(3), chance.randrange(1, 20) * STEP_US
        for attempt in range(1, chance.choice([2, 2, 3, 4])):
            host = chance.choice(hosts)
            time_us = published_us + chance.randrange(40) * STEP_US
            ready_us = chance.choice([0, time_us, max(0, time_us - chance.randrange(12) * STEP_US)])
            place = f"{topic}/0", topic, level, next(offsets), f"{topic}/m{number}"
            told.starts.append(
                Start(time_us, *place, key, attempt, host, ready_us, published_us, chance.choice([1, 1, None]))
            )
            if key is not None and chance.random() < 0.8:
                ended_us = time_us + chance.randrange(12) * STEP_US
                is_final = chance.random() < 0.6
                told.ends.append(End(ended_us, f"{topic}/m{number}", attempt, host, is_final))
    told.starts.sort(key=lambda start: (start.time_us, start.offset))
    return told


def _rows(told: Told) -> list[tuple[object, ...]]:
    keys = {start.name: start.key for start in told.starts}
    topic = told.starts[0].topic
    rows: list[tuple[object, ...]] = [
        (
            *(events.STARTED, topic, 0, s.source, s.time_us, s.priority, s.offset, s.name.partition("/")[2], s.key),
            *(s.attempt, s.ready_us, s.published_us, s.epoch),
        )
        for s in told.starts
    ]
    for end in told.ends:
        event = events.SETTLED if end.final else events.RETRIED
        name = end.name.partition("/")[2]
        rows.append(
            (event, topic, 0, end.source, end.time_us, None, None, name, keys[end.name], end.attempt, *[None] * 3)
        )
    return rows


@pytest.fixture(scope="module")
def groups() -> dict[str, Told]:
    return {f"t{seed}": _told(f"t{seed}", seed) for seed in range(GROUPS)}


def _expected(told: Told) -> checks.Violations:
    def taken_us(_place: str, source: str, epoch: int | None) -> int | None:
        return told.taken_us[source] if epoch == 1 else None

    return priorities.inversions(told.starts, told.ends, None, taken_us)


def test_the_sweeps_find_the_inversions_that_the_rule_finds_in_groups_that_chance_made(
    spark: SparkSession, groups: dict[str, Told]
) -> None:
    owned = [
        (topic, 0, host, 1, us, None, us, us) for topic, told in groups.items() for host, us in told.taken_us.items()
    ]
    rows = local_rows.frame(spark, [row for told in groups.values() for row in _rows(told)], ROWS)
    known = owners.beside(local_rows.frame(spark, owned, owners.FIELDS), is_whole=True)
    starts = priority.waiting(rows.where(f"event = '{events.STARTED}'"), known)
    suspects = priority.suspects(starts, 3)
    both = starts.unionByName(rows.where(f"event != '{events.STARTED}'"), allowMissingColumns=True)
    found = priority.inversions(both, suspects).collect()
    counts = Counter(row["topic"] for row in found)
    expected = {topic: _expected(told).count for topic, told in groups.items()}
    assert {topic: counts[topic] for topic in groups} == expected
    assert sum(count > 0 for count in expected.values()) > GROUPS / 10
    assert [row for row in found if not _was_ready(groups[row["topic"]], row)] == []
    # Keys hold back what else would be an inversion, in many groups.
    without = {topic: _expected(_replace_keys(told)).count for topic, told in groups.items()}
    assert sum(without[topic] > expected[topic] for topic in groups) > GROUPS / 10


def _replace_keys(told: Told) -> Told:
    return told._replace(starts=[start._replace(key=None) for start in told.starts])


def _was_ready(told: Told, row: Row) -> bool:
    """Whether the other message of an inversion waited for a start of a higher priority at this host then."""
    others = [s for s in told.starts if s.name == f"{row['topic']}/{row['other']}" and s.source == row["source"]]
    for start in (s for s in others if s.priority < row["priority"]):
        taken_us = told.taken_us[start.source] if start.epoch == 1 else None
        stored = priorities.in_store(start, taken_us) or (0, 0)
        in_buffer = 0 < start.ready_us < row["at_us"] < start.time_us
        if in_buffer or stored[0] < row["at_us"] < stored[1]:
            return True
    return False
