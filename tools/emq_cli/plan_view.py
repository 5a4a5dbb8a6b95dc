"""The plan that is in force, as a whole and in detail: who owns what, since when, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType

from emq.allocation.plan import units
from emq.allocation.plan.drafting import NO_HOSTS, NOBODY
from emq.allocation.plan.levelling import PlacementReason
from emq.allocation.plan.plan import Plan, effective
from emq.storage.names import parts_of, topic_of
from emq.topics import buckets
from emq_cli import host_view, output, placement_reasons
from emq_cli.bucket_contents import Amount
from emq_cli.cluster import DatabaseView
from emq_cli.host_view import HostRow
from emq_trace import epochs
from emq_trace.cluster_view import Holding, View

MAX_GROUPS = 40
"""Groups that a table shows; JSON has all."""

_HOLDING = {
    Holding.HELD: "",
    Holding.WAITING: "waits for its former owner",
    Holding.UNSEEN: "its host has not seen the plan yet",
    Holding.FENCED: "taken by somebody outside of the cluster; its host asks for a new epoch",
    Holding.ORPHANED: "its host is gone; the next plan gives it to another",
    Holding.NOBODYS: "no host has a weight",
}


class GroupRow(msgspec.Struct, frozen=True):
    """A group of a topic, or a bucket. A group in a bucket has the host, epoch, reason and progress of the bucket.

    Attributes:
        quota: starts a second; None if the catalog does not know the group, and for a bucket.
        host: the host to which the plan gives the group; None if no host has a weight.
        epoch: the fencing number of this ownership.
        since_s: about when the host got the group, in seconds since 1970; None if the epoch is not a time.
        why: one of `emq.allocation.plan.levelling.PlacementReason`, or empty if the group never moved.
        holding: one of `emq_trace.cluster_view.Holding`.
        awaited: hosts that may still hold the group.
        bucket: the bucket that the group is in; None for a group that the plan has by itself.
    """

    group: str
    quota: float | None
    host: str | None
    epoch: int
    since_s: float | None
    why: str
    holding: str
    awaited: list[str]
    bucket: str | None = None


def row(view: View, known: DatabaseView, group: str) -> GroupRow:
    """One group of a topic, or one bucket."""
    name = known.contents.entry_of(group)
    host, entry = view.groups[name]
    return GroupRow(
        group,
        known.quotas.get(group),
        None if host == NOBODY else host,
        entry.epoch,
        epochs.since_s(entry.epoch),
        entry.why,
        view.holding(name).value,
        view.awaited(name),
        name if name != group else None,
    )


def groups_of(view: View, known: DatabaseView) -> list[str]:
    """Return every group of a topic that the plan gives to a host, by itself or by its bucket."""
    return known.contents.groups(view.groups)


def summary(view: View, known: DatabaseView) -> dict[str, Any]:
    """The plan as a whole, as plain values."""
    record = view.record
    amount = known.contents.amount(view.groups)
    holding = by_holding(view, known, view.groups)
    load = host_view.loads(view, known.loads)
    return {
        "environment": str(view.environment),
        "generation": view.generation or None,
        "planned_s": None if record is None else record.planned_s,
        "planned_by": None if record is None else record.leader,
        "leader": view.leader or None,
        "catalog": None if record is None else record.catalog,
        "catalog_now": known.catalog or None,
        "hosts": 0 if record is None else len(record.lists.keys() - NO_HOSTS),
        "groups": amount.groups,
        "buckets": amount.buckets,
        "max_over_mean": max(load.values(), default=None),
        "holding": {each.value: amount.groups for each, amount in holding.items()},
        "holding_buckets": {each.value: amount.buckets for each, amount in holding.items()},
    }


def by_holding(view: View, known: DatabaseView, entries: Iterable[str]) -> dict[Holding, Amount]:
    """Count entries of the plan by their progress."""
    found: dict[Holding, list[str]] = {holding: [] for holding in Holding}
    for entry in entries:
        found[view.holding(entry)].append(entry)
    return {holding: known.contents.amount(some) for holding, some in found.items()}


def unfinished(holding: Mapping[Holding, Amount]) -> list[tuple[Holding, str]]:
    """Return a text for each kind of progress towards a host that some groups or buckets are at."""
    return [(each, f"{holding[each]}: {text}") for each, text in _HOLDING.items() if text and any(holding[each])]


def whole(view: View, known: DatabaseView) -> dict[str, Any]:
    """The plan and its hosts, as plain values."""
    found = host_view.rows(view, known)
    return {**summary(view, known), "host_list": found, "trouble": host_view.troubles(view, found, known)}


def render(view: View, known: DatabaseView, *, wide: bool = True) -> RenderableType:
    """The plan and its hosts, for people."""
    found = host_view.rows(view, known)
    troubles = host_view.troubles(view, found, known)
    if view.record is None:
        return "\n".join(["there is no plan yet; a host that starts makes one: emq host", *troubles])
    return Group(
        output.facts(_lines(view, known)), "", host_view.table(view, found, wide=wide), *map(output.plain, troubles)
    )


def _lines(view: View, known: DatabaseView) -> list[tuple[str, str]]:
    found = summary(view, known)
    assert view.record is not None
    made = epochs.shown(view.generation)
    if made == str(view.generation):
        made += f", made at {output.when_in_zone(view.record.planned_s * 1000)}"
    else:
        made += f" {output.zone()} (number {view.generation})"
    catalog = f"version {view.record.catalog}"
    if known.catalog > view.record.catalog:
        catalog += f", now at {known.catalog}"
        if view.groups.keys() == known.loads.keys():
            catalog += "; no change since then needs another plan"
    lines = [
        (
            "plan",
            f"{made} by {view.record.leader}"
            + (f"; {view.leader} leads now" if view.leader != view.record.leader else ""),
        ),
        ("catalog", catalog),
        ("groups", f"{output.number(found['groups'])} on {output.count(found['hosts'], 'host')}"),
    ]
    if found["buckets"]:
        lines.append(("buckets", f"{output.number(found['buckets'])}; see: emq plan '{_some_family(view)}'"))
    if found["max_over_mean"] is not None:
        lines.append(("fullest", f"{found['max_over_mean']:.3f} of its fair share"))
    return [*lines, *((each.value, text) for each, text in unfinished(by_holding(view, known, view.groups)))]


# ------------------------------------------------------------------------------------------------------------- detail


def group_data(view: View, known: DatabaseView, group: str) -> dict[str, Any]:
    """One group with the reasons in words, as plain values."""
    return {**msgspec.to_builtins(row(view, known, group)), "explanation": explanation(view, known, group)}


def group_text(view: View, known: DatabaseView, group: str) -> RenderableType:
    """One group, for people."""
    found = row(view, known, group)
    quota = "not in the catalog" if found.quota is None else f"{found.quota:g} a second"
    bucket = [] if found.bucket is None else [("bucket", found.bucket)]
    lines = [("group", group), ("quota", quota), *bucket, *ownership(found)]
    return Group(output.facts(lines), "", *map(output.plain, explanation(view, known, group)))


def ownership(found: GroupRow) -> list[tuple[str, str]]:
    """Return lines that name the host, epoch and progress of a group or bucket."""
    since = "" if found.since_s is None else f", given out at {epochs.shown(found.epoch)} {output.zone()}"
    return [("host", found.host or "nobody"), ("epoch", f"{found.epoch}{since}"), ("state", _state(found))]


def listed(groups: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = len(groups) - MAX_GROUPS
    return ", ".join(groups[:MAX_GROUPS]) + (f" and {output.number(more)} more" if more > 0 else "")


def explanation(view: View, known: DatabaseView, group: str) -> list[str]:
    """Why a group or a bucket is where it is, in words, a line each."""
    entry = known.contents.entry_of(group)
    if entry == group:
        return _explained(view, known, entry)
    return [
        f"{group} is in bucket {entry}. A bucket goes to one host with all groups in it.",
        *_explained(view, known, entry),
    ]


def _explained(view: View, known: DatabaseView, entry: str) -> list[str]:
    host = view.groups[entry].host
    if entry not in known.loads:
        return [f"{entry} is not in the catalog; the next plan is without it."]
    weights = view.weights
    if host != NOBODY and host not in effective(weights):
        return [f"{entry} is on {host}, which is {host_view.state(view, host, 1)}; the next plan gives it to another."]
    hosts = effective(weights)
    owners = {g: h for g, h in view.owners.items() if g in known.loads and h in hosts}
    moved = {
        g: PlacementReason(owned.entry.why)
        for g, owned in view.groups.items()
        if owned.entry.why in tuple(PlacementReason)
    }
    loads = {g: known.loads[g] for g in owners} | {entry: known.loads[entry]}
    if (root := known.units.get(topic_of(entry))) is None:
        return placement_reasons.explain(entry, loads, weights, Plan(owners, moved))
    united, first = units.united(loads, owners, known.units), f"{root}/0"
    own = [f"All groups that share the budget {root!r} are on one host; their place is that of {first}."]
    return [*own, *placement_reasons.explain(first, united.quotas, weights, Plan(dict(united.previous), moved))]


def groups_data(view: View, known: DatabaseView, groups: Sequence[str]) -> list[GroupRow]:
    """Groups as plain values, in this order."""
    return [row(view, known, group) for group in groups]


def topic_text(view: View, known: DatabaseView, topic: str, groups: Sequence[str]) -> RenderableType:
    """A topic's groups, for people."""
    parts: list[RenderableType] = [f"{output.plain(topic)}: {output.count(len(groups), 'group')}"]
    return Group(
        *parts, *_group_table(view, known, groups), "", "emq plan TOPIC/NUMBER says why a group is where it is"
    )


def _some_family(view: View) -> str:
    return min(filter(None, map(buckets.family_of, view.groups)))


def host_data(view: View, known: DatabaseView, host: HostRow) -> dict[str, Any]:
    """A host and its groups, as plain values."""
    member = view.members.get(host.host)
    entries = view.of(host.host)
    return {
        **msgspec.to_builtins(host),
        "group_list": groups_data(view, known, sorted_groups(known.contents.groups(entries))),
        "draining_list": [] if member is None else sorted_groups(known.contents.groups(member.draining)),
        "buckets_by_family": Counter(filter(None, map(buckets.family_of, entries))),
    }


def host_text(view: View, known: DatabaseView, host: HostRow, *, wide: bool = True) -> RenderableType:
    """A host and its groups, for people."""
    member = view.members.get(host.host)
    parts: list[RenderableType] = [host_view.table(view, [host], wide=wide)]
    if member is not None and member.draining:
        draining = sorted_groups(known.contents.groups(member.draining))
        parts += ["", f"draining: {listed(draining) or known.contents.amount(member.draining)}"]
    groups = sorted_groups(known.contents.groups(view.of(host.host)))
    return Group(*parts, "", *_group_table(view, known, groups, with_host=False))


def sorted_groups(groups: Sequence[str] | set[str] | dict[str, Any]) -> list[str]:
    """By topic, then by number."""
    return sorted(groups, key=parts_of)


def _group_table(
    view: View, known: DatabaseView, groups: Sequence[str], *, with_host: bool = True
) -> list[RenderableType]:
    cells = []
    with_buckets = any(known.contents.entry_of(group) != group for group in groups[:MAX_GROUPS])
    for found in (row(view, known, group) for group in groups[:MAX_GROUPS]):
        host = (found.host,) if with_host else ()
        why = found.why or "stayed"
        bucket = (found.bucket,) if with_buckets else ()
        cells.append((found.group, found.quota, *host, epochs.shown(found.epoch), why, _state(found), *bucket))
    columns = ("group", "qps", *(("host",) if with_host else ()), output.zoned("epoch"), "why", "state")
    parts: list[RenderableType] = [
        output.table("", (*columns, *(("bucket",) if with_buckets else ())), cells, right=("qps",), spare=("bucket",))
    ]
    if len(groups) > MAX_GROUPS:
        parts.append(f"... and {output.number(len(groups) - MAX_GROUPS)} more; --json has them")
    return parts


def _state(found: GroupRow) -> str:
    holding = Holding(found.holding)
    if holding is Holding.WAITING:
        return f"waits for {', '.join(found.awaited)}"
    return _HOLDING[holding] or "held"
