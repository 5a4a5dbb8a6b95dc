"""The hosts of a cluster as rows: settings, groups and load of each, and how far it has followed the plan."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from rich.console import Group, RenderableType

from emq.allocation.heartbeat import MAX_AHEAD_S
from emq.allocation.plan.drafting import NOBODY
from emq.allocation.plan.loads import shares_of
from emq.allocation.plan.plan import effective
from emq.allocation.records import Order
from emq.host.statistics import HostStatistics
from emq.runtime import durations
from emq_cli import output
from emq_cli.cluster import DatabaseView
from emq_trace import epochs
from emq_trace.cluster_view import Holding, View


class HostRow(msgspec.Struct, frozen=True):
    """A host of a cluster.

    Attributes:
        state: "joining" (no plan knows it yet), "member", "no weight", "draining" and "drained" (as ordered),
            "leaving" (it stops), "gone" (the plan knows it, but it is not a member), "absent" (it only has an order).
        leads: whether the host makes the plans.
        weight: the host's own setting; None if it is not a member.
        ordered_weight: the weight that an operator ordered instead.
        groups: number of groups of topics that the plan gives it, also by their buckets.
        buckets: number of buckets of families that the plan gives it, with groups in them or without.
        waiting, waiting_buckets: number of these groups and buckets that it does not have yet.
        unconsumed: number of its groups that it does not consume, by its latest snapshot; None without a fresh one.
        quota: starts a second of its groups.
        load: the load of its groups and buckets, as the leader counts it, over its fair share; None if it has no share,
            or if quotas are not known.
        started_per_s: starts a second by its latest snapshot; None if there is no fresh one.
        generation: number of the last plan that it has followed, except for `draining`.
        draining, draining_buckets: number of groups and buckets that it lost and still holds.
        ahead_s: seconds, about, by which its clock is ahead of that of the servers in which hosts meet.
        joined_s: when it joined, in seconds since 1970, by its clock.
    """

    host: str
    state: str
    leads: bool = False
    weight: float | None = None
    ordered_weight: float | None = None
    drain: bool = False
    groups: int = 0
    waiting: int = 0
    unconsumed: int | None = None
    quota: float = 0.0
    load: float | None = None
    started_per_s: float | None = None
    generation: int | None = None
    draining: int = 0
    ahead_s: float | None = None
    machine: str | None = None
    pid: int | None = None
    joined_s: float | None = None
    buckets: int = 0
    waiting_buckets: int = 0
    draining_buckets: int = 0


def rows(view: View, known: DatabaseView) -> list[HostRow]:
    """Every host of the cluster, by name."""
    load = loads(view, known.loads)
    live = {s.host.host: s.host for s in known.hosts if s.live}
    return [_row(view, known, host, load.get(host), live.get(host)) for host in view.hosts]


def _row(view: View, known: DatabaseView, host: str, load: float | None, seen: HostStatistics | None) -> HostRow:
    order, entries = view.orders.get(host, Order()), view.of(host)
    given = known.contents.amount(entries)
    waiting = known.contents.amount(entry for entry in entries if view.holding(entry) is not Holding.HELD)
    row = HostRow(
        host,
        state(view, host, len(entries)),
        leads=host == view.leader,
        ordered_weight=order.weight,
        drain=order.drain,
        groups=given.groups,
        waiting=waiting.groups,
        unconsumed=None if seen is None else seen.unconsumed,
        quota=sum(known.quotas.get(group, 0.0) for group in known.contents.groups(entries)),
        load=load,
        started_per_s=None if seen is None else seen.rates.started,
        buckets=given.buckets,
        waiting_buckets=waiting.buckets,
    )
    if (member := view.members.get(host)) is None:
        return row
    draining = known.contents.amount(member.draining)
    return msgspec.structs.replace(
        row,
        weight=member.weight,
        generation=member.generation,
        draining=draining.groups,
        draining_buckets=draining.buckets,
        ahead_s=member.ahead_s,
        machine=member.machine,
        pid=member.pid,
        joined_s=member.joined_s,
    )


def state(view: View, host: str, groups: int) -> str:
    """Return the state of a host to which the plan gives so many groups and buckets; see `HostRow`."""
    member, order = view.members.get(host), view.orders.get(host, Order())
    if member is None:
        return "gone" if groups else "absent"
    if member.leaving:
        return "leaving"
    if order.drain:
        return "draining" if groups or not view.has_let_go(host) else "drained"
    if not view.is_planned(host):
        return "joining"
    return "member" if view.weights[host] > 0 else "no weight"


def loads(view: View, quotas: Mapping[str, float]) -> dict[str, float]:
    """Return each host's load over its fair share, for the hosts that have a share.

    Args:
        quotas: load of each entry of the plan.
    """
    weights = effective(view.weights)
    load = dict.fromkeys(weights, 0.0)
    for group, owned in view.groups.items():
        if owned.host in load:
            load[owned.host] += quotas.get(group, 0.0)
    total = sum(quotas.get(group, 0.0) for group in view.groups)
    shares = shares_of(total, weights, weights) if weights else {}
    return {host: load[host] / share for host, share in shares.items() if share > 0}


def troubles(view: View, found: Iterable[HostRow], known: DatabaseView) -> list[str]:
    """Return a line for each trouble that an operator should know of."""
    lines = known.troubles
    for seen in known.hosts:
        host = seen.host.host
        if not seen.live and host in view.members and not view.members[host].trouble:
            lines.append(
                f"{host}: silent for {durations.brief(seen.age_s)}: it is paused, has ended, or does not reach its "
                "database"
            )
    if view.groups and not view.members:
        lines.append(f"no host is there: nobody consumes the {known.contents.amount(view.groups)}")
    elif view.members and not view.leader:
        lines.append("nobody leads at this moment")
    if nobodys := view.of(NOBODY):
        lines.append(f"{known.contents.amount(nobodys)} without a host: none has a weight; see: emq weight --help")
    lines += [f"{host}: {member.trouble}" for host, member in sorted(view.members.items()) if member.trouble]
    for row in found:
        if row.state == "gone" and view.members:
            lines.append(f"{row.host}: gone, and its groups are not given to others yet")
        if row.ahead_s is not None and abs(row.ahead_s) > MAX_AHEAD_S:
            side = "ahead of" if row.ahead_s > 0 else "behind"
            lines.append(
                f"{row.host}: its clock is {abs(row.ahead_s):.1f} s {side} that of the servers in which hosts meet; "
                "run a time service (NTP) on all machines"
            )
    return lines


def data(view: View, known: DatabaseView) -> dict[str, Any]:
    """Plain values, for JSON."""
    found = rows(view, known)
    amount = known.contents.amount(view.groups)
    return {
        "environment": str(view.environment),
        "generation": view.generation,
        "leader": view.leader or None,
        "groups": amount.groups,
        "buckets": amount.buckets,
        "hosts": found,
        "trouble": troubles(view, found, known),
    }


def render(view: View, known: DatabaseView, *, wide: bool = True) -> RenderableType:
    """For people; see `table`."""
    found = rows(view, known)
    if not found:
        return "\n".join(["the cluster has no hosts; start one with: emq host", *troubles(view, found, known)])
    said = map(output.plain, troubles(view, found, known))
    return Group(output.plain(_head(view, known)), table(view, found, wide=wide), *said)


def table(view: View, found: Iterable[HostRow], *, wide: bool = True) -> RenderableType:
    """Return a table with a line for each host; without `wide` it leaves out the less important columns."""
    found = [*found]
    cells = [_cells(view, row) for row in found]
    absent = {*(() if wide else _WIDE_ONLY), *(() if any(row.buckets for row in found) else ("buckets",))}
    shown = [column for column in _COLUMNS if column not in absent]
    return output.table(
        "",
        shown,
        [[line[_COLUMNS.index(column)] for column in shown] for line in cells],
        right=("groups", "buckets", "qps", "load", "per s"),
        spare=() if wide else ("buckets", "released", "load", "weight"),
    )


_COLUMNS = ("host", "state", "weight", "groups", "buckets", "qps", "load", "per s", "released", "runs on", "since")
_WIDE_ONLY = ("qps", "runs on", "since")


def _head(view: View, known: DatabaseView) -> str:
    if view.record is None:
        return f"{output.count(len(view.members), 'host')} [{view.environment}], and no plan yet"
    zone = "" if epochs.since_s(view.generation) is None else f" {output.zone()}"
    led = f"; {view.leader} leads" if view.leader else ""
    return (
        f"{output.count(len(view.members), 'host')} [{view.environment}], {known.contents.amount(view.groups)} by "
        f"plan {epochs.shown(view.generation)}{zone}{led}"
    )


def _cells(view: View, row: HostRow) -> tuple[output.Cell, ...]:
    return (
        row.host,
        _state(row),
        _weight(row),
        _waiting(row.groups, max(row.waiting, row.unconsumed or 0)),
        _waiting(row.buckets, row.waiting_buckets),
        row.quota,
        None if row.load is None else f"{row.load:.2f}",
        row.started_per_s,
        _released(view, row),
        None if row.machine is None else f"{row.machine}:{row.pid}",
        None if row.joined_s is None else durations.brief(max(0, round(time.time() - row.joined_s))),
    )


def _waiting(given: int, waiting: int) -> str:
    return f"{given:,}, {waiting:,} waiting" if waiting else f"{given:,}"


def _state(row: HostRow) -> str:
    if row.state == "absent" and row.drain:
        return "absent, to be drained"
    return f"{row.state}, leads" if row.leads else row.state


def _weight(row: HostRow) -> str:
    own = "-" if row.weight is None else f"{row.weight:g}"
    return own if row.ordered_weight in (None, row.weight) else f"{row.ordered_weight:g} (set: {own})"


def _released(view: View, row: HostRow) -> str:
    if row.generation is None:
        return "-"
    seen = "all" if row.generation >= view.generation else f"up to {epochs.shown(row.generation)}"
    if row.draining:
        return f"{seen} but {row.draining:,}"
    return f"{seen} but {output.count(row.draining_buckets, 'bucket')}" if row.draining_buckets else seen
