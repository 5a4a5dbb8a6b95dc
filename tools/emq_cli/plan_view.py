"""The plan that is in force, as a whole and in detail: who owns what, since when, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType

from emq.allocation.cluster_view import Holding, View
from emq.allocation.plan import explain, units
from emq.allocation.plan.drafting import NO_HOSTS, NOBODY
from emq.allocation.plan.levelling import PlacementReason
from emq.allocation.plan.plan import Plan, effective
from emq.observe import epochs
from emq.storage.names import parts_of, topic_of
from emq_cli import host_view, output
from emq_cli.cluster import DatabaseView
from emq_cli.host_view import HostRow

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
    """A group of the plan.

    Attributes:
        quota: starts a second; None if the catalog does not know the group.
        host: the host to which the plan gives the group; None if no host has a weight.
        epoch: the fencing number of this ownership.
        since_s: about when the host got the group, in seconds since 1970; None if the epoch is not a time.
        why: one of `emq.allocation.plan.levelling.PlacementReason`, or empty if the group never moved.
        holding: one of `emq.allocation.cluster_view.Holding`.
        awaited: hosts that may still hold the group.
    """

    group: str
    quota: float | None
    host: str | None
    epoch: int
    since_s: float | None
    why: str
    holding: str
    awaited: list[str]


def row(view: View, known: DatabaseView, group: str) -> GroupRow:
    """One group of the plan."""
    host, entry = view.groups[group]
    return GroupRow(
        group,
        known.quotas.get(group),
        None if host == NOBODY else host,
        entry.epoch,
        epochs.since_s(entry.epoch),
        entry.why,
        view.holding(group).value,
        view.awaited(group),
    )


def summary(view: View, known: DatabaseView) -> dict[str, Any]:
    """The plan as a whole, as plain values."""
    record = view.record
    counts = Counter(view.holding(group) for group in view.groups)
    load = host_view.loads(view, known.quotas)
    return {
        "environment": str(view.environment),
        "generation": view.generation or None,
        "planned_s": None if record is None else record.planned_s,
        "planned_by": None if record is None else record.leader,
        "leader": view.leader or None,
        "catalog": None if record is None else record.catalog,
        "catalog_now": known.catalog or None,
        "hosts": 0 if record is None else len(record.lists.keys() - NO_HOSTS),
        "groups": len(view.groups),
        "max_over_mean": max(load.values(), default=None),
        "holding": {holding.value: counts[holding] for holding in Holding},
    }


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
    lines = [
        (
            "plan",
            f"{made} by {view.record.leader}"
            + (f"; {view.leader} leads now" if view.leader != view.record.leader else ""),
        ),
        ("catalog", catalog),
        ("groups", f"{output.number(len(view.groups))} on {output.count(found['hosts'], 'host')}"),
    ]
    if found["max_over_mean"] is not None:
        lines.append(("fullest", f"{found['max_over_mean']:.3f} of its fair share"))
    for holding, text in _HOLDING.items():
        if text and (count := found["holding"][holding.value]):
            lines.append((holding.value, f"{output.count(count, 'group')}: {text}"))
    return lines


# ------------------------------------------------------------------------------------------------------------- detail


def group_data(view: View, known: DatabaseView, group: str) -> dict[str, Any]:
    """One group with the reasons in words, as plain values."""
    return {**msgspec.to_builtins(row(view, known, group)), "explanation": explanation(view, known, group)}


def group_text(view: View, known: DatabaseView, group: str) -> RenderableType:
    """One group, for people."""
    found = row(view, known, group)
    since = "" if found.since_s is None else f", given out at {epochs.shown(found.epoch)} {output.zone()}"
    lines = [
        ("group", group),
        ("quota", "not in the catalog" if found.quota is None else f"{found.quota:g} a second"),
        ("host", found.host or "nobody"),
        ("epoch", f"{found.epoch}{since}"),
        ("state", _state(found)),
    ]
    return Group(output.facts(lines), "", *map(output.plain, explanation(view, known, group)))


def explanation(view: View, known: DatabaseView, group: str) -> list[str]:
    """Why a group is where it is, in words, a line each."""
    host = view.groups[group].host
    if group not in known.quotas:
        return [f"{group} is not in the catalog; the next plan is without it."]
    weights = view.weights
    if host != NOBODY and host not in effective(weights):
        return [f"{group} is on {host}, which is {host_view.state(view, host, 1)}; the next plan gives it to another."]
    hosts = effective(weights)
    owners = {g: h for g, h in view.owners.items() if g in known.quotas and h in hosts}
    moved = {
        g: PlacementReason(owned.entry.why)
        for g, owned in view.groups.items()
        if owned.entry.why in tuple(PlacementReason)
    }
    quotas = {g: known.quotas[g] for g in owners} | {group: known.quotas[group]}
    if (root := known.units.get(topic_of(group))) is None:
        return explain.explain(group, quotas, weights, Plan(owners, moved))
    united, first = units.united(quotas, owners, known.units), f"{root}/0"
    own = [f"All groups that share the budget {root!r} are on one host; their place is that of {first}."]
    return [*own, *explain.explain(first, united.quotas, weights, Plan(dict(united.previous), moved))]


def groups_data(view: View, known: DatabaseView, groups: Sequence[str]) -> list[GroupRow]:
    """Groups as plain values, in this order."""
    return [row(view, known, group) for group in groups]


def topic_text(view: View, known: DatabaseView, topic: str, groups: Sequence[str]) -> RenderableType:
    """A topic's groups, for people."""
    parts: list[RenderableType] = [f"{output.plain(topic)}: {output.count(len(groups), 'group')}"]
    return Group(
        *parts, *_group_table(view, known, groups), "", "emq plan TOPIC/NUMBER says why a group is where it is"
    )


def host_data(view: View, known: DatabaseView, host: HostRow) -> dict[str, Any]:
    """A host and its groups, as plain values."""
    member = view.members.get(host.host)
    return {
        **msgspec.to_builtins(host),
        "group_list": groups_data(view, known, sorted_groups(view.of(host.host))),
        "draining_list": [] if member is None else sorted_groups(member.draining),
    }


def host_text(view: View, known: DatabaseView, host: HostRow, *, wide: bool = True) -> RenderableType:
    """A host and its groups, for people."""
    member = view.members.get(host.host)
    parts: list[RenderableType] = [host_view.table(view, [host], wide=wide)]
    if member is not None and member.draining:
        parts += ["", f"draining: {', '.join(sorted_groups(member.draining)[:MAX_GROUPS])}"]
    return Group(*parts, "", *_group_table(view, known, sorted_groups(view.of(host.host)), with_host=False))


def sorted_groups(groups: Sequence[str] | set[str] | dict[str, Any]) -> list[str]:
    """By topic, then by number."""
    return sorted(groups, key=parts_of)


def _group_table(
    view: View, known: DatabaseView, groups: Sequence[str], *, with_host: bool = True
) -> list[RenderableType]:
    cells = []
    for found in (row(view, known, group) for group in groups[:MAX_GROUPS]):
        host = (found.host,) if with_host else ()
        why = found.why or "stayed"
        cells.append((found.group, found.quota, *host, epochs.shown(found.epoch), why, _state(found)))
    columns = ("group", "qps", *(("host",) if with_host else ()), output.zoned("epoch"), "why", "state")
    parts: list[RenderableType] = [output.table("", columns, cells, right=("qps",))]
    if len(groups) > MAX_GROUPS:
        parts.append(f"... and {output.number(len(groups) - MAX_GROUPS)} more; --json has them")
    return parts


def _state(found: GroupRow) -> str:
    holding = Holding(found.holding)
    if holding is Holding.WAITING:
        return f"waits for {', '.join(found.awaited)}"
    return _HOLDING[holding] or "held"
