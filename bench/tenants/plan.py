"""The planner with the buckets of families: time, and what the leader writes, for a full plan and for a join.

Nothing runs: the functions of the leader compute in this process, and their results are counted.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, NamedTuple

from bench.support.stage import Stage, Stopwatch
from bench.tenants import family
from emq.allocation import records
from emq.allocation.plan import drafting
from emq.allocation.plan.drafting import Previous
from emq.allocation.records import Pointer, Record, Running
from emq.runtime import plurals
from emq.topics import buckets

OPTIONS = (
    ("tenants", 10_000_000, 1_000, "tenants of all families, each of one group"),
    ("families", 1, 1, "families"),
    ("hosts", 1_000, 10, "hosts, before one joins"),
)

BEGIN_US = 1_700_000_000_000_000
BETWEEN_S = 60
"""Seconds from the full plan to the join."""


class Written(NamedTuple):
    """One plan in force, and its costs.

    Attributes:
        record: names the list of each host.
        previous: the plan, as the next one takes it.
        changed: hosts whose lists were written, with those that got an empty list for the first time.
        moved: buckets with a new host.
        writes, bytes: of the lists and the record.
    """

    record: Record
    previous: Previous
    changed: int
    moved: int
    writes: int
    bytes: int
    seconds: float


def member(name: str, seed: int) -> Running:
    return Running(f"{random.Random(seed).getrandbits(64):016x}", name, seed, 1.0, BEGIN_US / 1e6)


def planned(
    quotas: Mapping[str, float], members: Mapping[str, Running], former: Written | None, generation: int
) -> Written:
    """Plan, draft, and encode the lists that change, as `emq.allocation.leader` does between its reads and writes."""
    watch, now_s = Stopwatch(), generation / 1e6
    previous = None if former is None else former.previous
    made, owner, _ = drafting.planned(quotas, {}, drafting.shares(members, {}), members, previous)
    lists = drafting.draft(generation, owner, made.moved, members, previous, now_s)
    standing: dict[str, dict[str, records.Entry]] = {}
    for group, place in previous.places.items() if previous is not None else ():
        standing.setdefault(place.host, {})[group] = place.entry
    pointers, data = dict[str, Pointer](), list[bytes]()
    for host, entries in lists.items():
        pointer = None if former is None else former.record.lists.get(host)
        if pointer is None or entries != standing.get(host, {}):
            chunks = records.encode_list(entries)
            data += chunks
            pointer = Pointer(members[host].incarnation, generation, len(chunks))
        pointers[host] = pointer
    record = Record("online", generation, 1, next(iter(members)), now_s, pointers, made.max_over_mean)
    data.append(records.encode(record))
    in_force = drafting.previous(lists, {host: one.incarnation for host, one in members.items()})
    changed = sum(pointer.generation == generation for pointer in pointers.values())
    return Written(record, in_force, changed, len(made.moved), len(data), sum(map(len, data)), watch.wall_s)


async def run(stage: Stage, *, tenants: int, families: int, hosts: int, patience: float) -> dict[str, Any]:
    each = tenants * family.QPS / families / buckets.BUCKETS  # as if all were awake
    quotas = {name: each for number in range(families) for name in buckets.names_of(f"family{number}.*")}
    members = {f"host-{number:04}": member(f"host-{number:04}", number) for number in range(hosts)}
    stage.say(f"planning {plurals.count(len(quotas), 'bucket')} on {plurals.count(hosts, 'host')}")
    full = planned(quotas, members, None, BEGIN_US)
    stage.say("one more host joins")
    joined = planned(quotas, {**members, "joins": member("joins", hosts)}, full, BEGIN_US + BETWEEN_S * 1_000_000)
    return {
        "plan_buckets": len(quotas),
        "plan_s": full.seconds,
        "plan_writes": full.writes,
        "plan_mb": full.bytes / 1e6,
        "join_s": joined.seconds,
        "join_hosts_changed": joined.changed,
        "join_moved_buckets": joined.moved,
        "join_writes": joined.writes,
        "join_mb": joined.bytes / 1e6,
    }
