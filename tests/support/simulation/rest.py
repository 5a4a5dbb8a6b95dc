"""Checks hosts that have nothing left to do: they hold no work, no loop has ended, memory stays within its bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from emq.groups.owned import OwnedGroup
from emq.topics.buckets import is_bucket

if TYPE_CHECKING:
    from support.simulation.cluster import Cluster
    from support.simulation.member import Member

SAVED_S = 2.5
"""After which all progress is saved: two intervals of the checkpoints, and a bit."""

EVEN = 1.10
"""A host's load over its fair share, as the plan promises where groups are small."""


def judge_now(cluster: Cluster) -> None:
    """At rest: every host for itself, then how the groups are shared out."""
    for member in cluster.alive:
        for group, text in (*_left(member), *_loops(member)):
            cluster.evidence.violated("rest", group, f"{member.life}: {text}")
    for promise, group, text in unbalanced(cluster):
        cluster.evidence.violated(promise, group, text)


# -------------------------------------------------------------------------------------------------- what hosts still do


def _left(member: Member) -> Iterator[tuple[str, str]]:
    host = member.host
    dispatcher, gauge = host.work.dispatcher, host.work.gauge
    held = {
        "in flight": dispatcher.flight.count,
        "messages in memory": gauge.messages,
        "bytes in memory": gauge.bytes,
        "bytes in flight": gauge.flying,
        "handlers": len(member.running),
        "topics that wait for a place": dispatcher.flight.waiting,
        "stints": len(dispatcher.tasks.running),
        "volleys": len(dispatcher.volleys),
        "queues to read": len(host.work.readiness),
    }
    if any(held.values()):
        yield "", f"at rest it holds {', '.join(f'{n} {what}' for what, n in held.items() if n)}"
    for owner in host.ownership.owned.values():
        topic = owner.topic.name
        if owner.in_flight or owner.flying or owner.coming or owner.waiting or owner.thirsty:
            text = f"{owner.in_flight} in flight, {owner.flying} bytes, {owner.coming} coming"
            yield (
                f"{topic}/0",
                f"at rest {topic} has {text}, {len(owner.waiting)} waiting, {len(owner.thirsty)} thirsty",
            )
    for group in host.ownership.groups.values():
        if text := _left_in(group):
            yield group.name, f"at rest {text}"


def _left_in(group: OwnedGroup) -> str:
    slot = group.slot
    held = {
        "buffered": group.buffered + sum(map(len, group.buffers)),
        "held": group.held + len(group.blocked),
        "released": len(group.released),
        "of running keys": len(group.running),
        "from the lane in memory": sum(group.retries.values()),
        "from the lane out": group.lane_out,
        "in flight": group.in_flight,
        "busy": int(group.busy),
        "stopping": int(group.stopping),
        "dirty": sum(queue.dirty for queue in group.queues),
        "finished apart": sum(len(queue.tracker.finished()) for queue in group.queues),
        "behind what was read": sum(queue.position - queue.tracker.watermark for queue in group.queues),
        "listed": sum(queue.listed for queue in group.queues),
        "members buffered": 0 if slot is None else slot.buffered,
        "members held": 0 if slot is None else len(slot.held) + len(slot.done) + len(slot.returning) + len(slot.freed),
        "calls": 0 if slot is None else slot.settling + slot.unsure + slot.claiming,
    }
    return ", ".join(f"{n} {what}" for what, n in held.items() if n)


def _loops(member: Member) -> Iterator[tuple[str, str]]:
    if member.host.guard.broken:
        yield "", f"loops broke: {dict(member.host.guard.broken)}"
    if ended := [task.get_name() for task in member.loops if task.done()]:
        yield "", f"loops have ended: {ended}"


# ------------------------------------------------------------------------------------------------------------- balance


def _loads_of_buckets(cluster: Cluster) -> dict[str, float]:
    """Return the loads of all buckets, as the leader of the cluster measured them last."""
    leaders = [member.membership._leader for member in cluster.alive if member.membership.leads]
    quotas = leaders[0]._quotas if leaders else None
    if quotas is None:
        return {}
    return {name: load for name, load in leaders[0]._loads.added_to(quotas).items() if is_bucket(name)}


def unbalanced(cluster: Cluster) -> Iterator[tuple[str, str, str]]:
    """Every group has one owner, and no host more than its share, as far as whole groups allow.

    Yields: promise, group and text of what is otherwise.
    """
    loads: dict[str, float] = {}
    quotas: dict[str, float] = {}
    of_buckets = _loads_of_buckets(cluster)
    owners: dict[str, list[str]] = {}
    of_unit: dict[str, list[str]] = {}  # a seed has one unit
    for member in cluster.alive:
        for group in member.host.ownership.groups.values():
            topic = group.owner.topic
            # The groups of a unit are one for the plan, with the qps of its root.
            quotas[group.name] = topic.qps if topic.shared_s else group.quota
            if topic.options.budget is not None or topic.family:
                quotas[group.name] = 0.0
            owners.setdefault(group.name, []).append(member.life)
            counted = group.quota if topic.options.budget is None and not topic.family else 0.0
            loads[member.name] = loads.get(member.name, 0.0) + counted
            if topic.shared_s or topic.options.budget is not None:
                of_unit.setdefault(member.life, []).append(group.name)
        for bucket in of_buckets.keys() & member.membership.given():
            quotas[bucket] = of_buckets[bucket]
            loads[member.name] = loads.get(member.name, 0.0) + of_buckets[bucket]
    for group_name, lives in owners.items():
        if len(lives) > 1:
            yield "O", group_name, f"at rest {' and '.join(lives)} own it"
    if len(of_unit) > 1:
        yield "balance", next(iter(of_unit.values()))[0], f"the groups of a budget are on several hosts: {of_unit}"
    weights = {member.name: cluster.weights.get(member.name, 1.0) for member in cluster.alive}
    if not any(weights.values()) or not quotas:
        return
    total, whole, largest = sum(loads.values()), sum(weights.values()), max(quotas.values())
    for name, weight in weights.items():
        fair = total * weight / whole
        # With whole groups no plan does better than to be one group above, of a heavier host one for each weight.
        most = max(EVEN * fair, fair + largest * max(1.0, len(weights) * weight / whole)) + 1e-6
        if loads.get(name, 0.0) > most:
            text = f"it has {loads[name]:.2f} of {total:.2f} starts a second; its fair share is {fair:.2f}"
            yield "balance", "", (f"{name}: {text}, {most:.2f} at most; loads {loads}, weights {weights}")
