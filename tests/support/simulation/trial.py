"""Work for the hosts when everything has healed and all work is done, so that it can be judged exactly.

The faults of a seed come before it, so it also finds what they have left behind: a group that nobody consumes, a
wake-up that never comes, a quota that nobody heard of.
"""

from __future__ import annotations

import asyncio
import random

from emq.topics.model import Kind
from support.simulation import layouts, operators, rest
from support.simulation.budgeted import TENANT
from support.simulation.cluster import Cluster
from support.simulation.plans import TopicPlan

SETTLED_S = 20.0
"""Seconds after the last host has joined by which every group has an owner."""

PROBES = 6
PROBE_S = 0.27
"""How many messages each topic gets, one by one, and how far apart."""

HUNG = 8
"""How many of the topic that hangs."""

BACKLOG_S = 4.0
"""How much is published at once, in seconds of the topic's quota."""

UNCHANGED_S, CHANGED_S = 3.0, 3.0
"""The same of the topic whose quota changes meanwhile: until that counts, and from then on."""

HIGHS_S = 0.9
"""When more of a high priority comes, after the backlog has."""

BUFFERED_S = 0.3
"""When a topic is paused: when its backlog is in the buffers of its hosts."""

PAUSED_S = 4.0

MOST_QPS = 40.0
"""Of a topic whose quota changes, so that a run stays short."""


async def run(cluster: Cluster) -> None:
    """Ask; the evidence is judged with that of the rest."""
    rng = random.Random(f"{cluster.schedule.seed} trial")
    if len(cluster.alive) == 1 and rng.random() < 0.7:
        cluster.join()
    if not await _settled(cluster):
        return
    rest.judge_now(cluster)
    await layouts.judge_now(cluster)
    begin = cluster.evidence.now
    cluster.evidence.note("", "--- the trial begins")
    await _probe(cluster, rng)
    if cluster.timetable is not None:
        await cluster.timetable.try_out()
    if operators.TOPIC in cluster.publishers:
        await operators.replay(cluster)
        await operators.recall(cluster)
    await _load(cluster, rng)
    if await cluster.done():
        await asyncio.sleep(rest.SAVED_S)
        rest.judge_now(cluster)
        await layouts.judge_now(cluster)
    else:
        cluster.evidence.violated("rest", "", f"left after the trial: {await cluster.left()}")
    cluster.evidence.happened["tried"] += 1
    cluster.calm.append((begin, cluster.evidence.now))


async def _settled(cluster: Cluster) -> bool:
    """Wait until every group has one owner, the groups are shared fairly, and no group has moved for a while."""
    deadline = cluster.evidence.now + SETTLED_S
    while True:
        await asyncio.sleep(0.5)
        awake = [topic for topic in await cluster.catalog.list() if not topic.asleep_s]
        groups = {topic.group(i) for topic in awake for i in range(topic.groups)}
        missing = groups.difference(*(member.host.ownership.groups for member in cluster.alive))
        latest = max((acquired.at for acquired in cluster.evidence.owned), default=0.0)
        moves = latest > cluster.evidence.now - rest.SAVED_S
        found = [("rest", min(missing), f"nobody owns {sorted(missing)}")] if missing else []
        found += [("rest", "", "groups still move though nothing happens")] * moves
        found += rest.unbalanced(cluster)
        if not found:
            return True
        if cluster.evidence.now > deadline:
            for promise, group, text in found:
                cluster.evidence.violated(promise, group, text)
            return False


async def _probe(cluster: Cluster, rng: random.Random) -> None:
    """Single messages to idle groups: now, or with a delay; half of the times with a topic that hangs beside them."""
    apart = random.Random(f"{cluster.schedule.seed} hang")
    plans = [plan for plan in cluster.schedule.topics if plan.may_hang]
    hung = apart.choice(plans).name if plans and apart.random() < 0.5 else ""
    if hung:
        cluster.evidence.happened["hang"] += 1
        cluster.evidence.hangs[hung] = cluster.evidence.now + PROBES * PROBE_S
    for _ in range(PROBES):
        for plan in cluster.schedule.topics:
            keeps_order = plan.kind is not Kind.LOG or plan.keys
            delayed = plan.kind is Kind.FIXED_TIME or (not keeps_order and rng.random() < 0.25)
            for _ in range(HUNG if plan.name == hung else 1):
                await cluster.publishers[plan.name].probe(delay_ms=rng.uniform(50, 1_500) if delayed else None)
        await asyncio.sleep(PROBE_S)
    await asyncio.sleep(1.0)


async def _load(cluster: Cluster, rng: random.Random) -> None:
    """A backlog for everybody, while the quota of one topic changes; then more of a high priority."""
    changing = next((plan for plan in cluster.schedule.topics if plan.name == "resized"), None)
    plans = {plan.name: plan for plan in cluster.schedule.topics}
    qps = {topic.name: topic.qps for topic in await cluster.catalog.list()}
    for plan in plans.values():
        qps.setdefault(plan.name, plan.qps)  # that of a topic that sleeps
        if plan.shares_budget:  # one after the other, they start no more than their budget
            qps[plan.name] = qps[TENANT] / 3
    if changing is not None:
        new = _other(changing, qps[changing.name], rng)
        await cluster.topics.set_qps(changing.name, new)
    for name, plan in plans.items():
        wanted = BACKLOG_S * qps[name]
        if plan is changing:
            wanted = CHANGED_S * new + UNCHANGED_S * min(qps[name], new)
        for number in range(round(wanted)):
            # The low ones first: strict priority turns them round.
            await cluster.publishers[name].probe(("low", "mid", "high")[number * 3 // round(wanted)])
    await asyncio.sleep(BUFFERED_S)
    if any(plan.pauses for plan in plans.values()):
        await cluster.topics.pause()
        cluster.spawn(_go_on(cluster))
    await asyncio.sleep(HIGHS_S)
    for name, plan in plans.items():
        # What is paused gets nothing new: it has to go on by itself with what is in its buffers.
        if plan.kind is Kind.LOG and not plan.pauses:
            for _ in range(round(qps[name])):
                await cluster.publishers[name].probe("high")


async def _go_on(cluster: Cluster) -> None:
    await asyncio.sleep(PAUSED_S)
    await cluster.topics.go_on()


def _other(plan: TopicPlan, qps: float, rng: random.Random) -> float:
    """Another capacity: half of the times with as many groups, so that what changes is the quota of each."""
    groups = max(1, round(qps / plan.group_qps))
    if rng.random() < 0.5:
        least = int((groups - 1) * plan.group_qps) + 1
        choice = [q for q in range(least, int(groups * plan.group_qps) + 1) if q != qps and q <= MOST_QPS]
    else:
        choice = [q for q in range(2, int(MOST_QPS) + 1) if q != qps]
    return float(rng.choice(choice or [int(MOST_QPS)]))
