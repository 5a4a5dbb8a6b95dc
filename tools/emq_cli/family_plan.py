"""The plan of a family: its buckets by host, and one bucket with its groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from rich.console import Group, RenderableType

from emq.allocation.plan.drafting import NOBODY
from emq.topics import buckets
from emq_cli import output, plan_view
from emq_cli.cluster import DatabaseView
from emq_trace.cluster_view import Holding, View


class FamilyRow(msgspec.Struct, frozen=True):
    """A host's part of a family.

    Attributes:
        host: None for the buckets that no host has, since none has a weight.
        groups: number of groups of the family's topics that are awake.
        quota: starts a second of these groups.
        waiting_buckets: number of buckets that the host does not have yet.
    """

    host: str | None
    buckets: int
    groups: int
    quota: float
    waiting_buckets: int


def buckets_of(view: View, family: str) -> list[str]:
    """Return the buckets of a family that the plan has."""
    return [entry for entry in view.groups if buckets.family_of(entry) == family]


def family_data(view: View, known: DatabaseView, family: str) -> dict[str, Any]:
    """A family's buckets by host, as plain values."""
    entries = buckets_of(view, family)
    amount = known.contents.amount(entries)
    holding = plan_view.by_holding(view, known, entries)
    return {
        "family": family,
        "groups": amount.groups,
        "buckets": amount.buckets,
        "quota": _quota(known, entries),
        "holding": {each.value: its.groups for each, its in holding.items()},
        "holding_buckets": {each.value: its.buckets for each, its in holding.items()},
        "hosts": family_rows(view, known, family),
    }


def family_rows(view: View, known: DatabaseView, family: str) -> list[FamilyRow]:
    """The hosts that have buckets of a family, by name."""
    by_host: dict[str, list[str]] = {}
    for entry in buckets_of(view, family):
        by_host.setdefault(view.groups[entry].host, []).append(entry)
    return [
        FamilyRow(
            None if host == NOBODY else host,
            len(entries),
            len(known.contents.groups(entries)),
            _quota(known, entries),
            sum(view.holding(entry) is not Holding.HELD for entry in entries),
        )
        for host, entries in sorted(by_host.items())
    ]


def family_text(view: View, known: DatabaseView, family: str) -> RenderableType:
    """A family's buckets by host, for people."""
    entries = buckets_of(view, family)
    amount = known.contents.amount(entries)
    head = f"{output.plain(family)}: {output.count(amount.groups, 'group')} of topics that are awake, in "
    cells = [
        (found.host or "nobody", found.buckets, found.groups, found.quota, found.waiting_buckets)
        for found in family_rows(view, known, family)
    ]
    columns = ("host", "buckets", "groups", "qps", "waiting")
    return Group(
        f"{head}{output.count(amount.buckets, 'bucket')}",
        output.table("", columns, cells, right=columns[1:]),
        *(text for _, text in plan_view.unfinished(plan_view.by_holding(view, known, entries))),
        "",
        "emq plan TOPIC shows the groups of a topic",
    )


def _quota(known: DatabaseView, entries: Iterable[str]) -> float:
    return sum(known.quotas.get(group, 0.0) for group in known.contents.groups(entries))


def bucket_data(view: View, known: DatabaseView, bucket: str) -> dict[str, Any]:
    """One bucket with its groups and the reasons in words, as plain values."""
    found = msgspec.to_builtins(plan_view.row(view, known, bucket))
    del found["group"], found["quota"]
    groups = plan_view.sorted_groups(known.contents.groups([bucket]))
    return {**found, "bucket": bucket, "groups": groups, "explanation": plan_view.explanation(view, known, bucket)}


def bucket_text(view: View, known: DatabaseView, bucket: str) -> RenderableType:
    """One bucket, for people."""
    groups = plan_view.sorted_groups(known.contents.groups([bucket]))
    lines = [
        ("bucket", bucket),
        ("groups", f"{plan_view.listed(groups) or 'none'} of topics that are awake"),
        *plan_view.ownership(plan_view.row(view, known, bucket)),
    ]
    return Group(output.facts(lines), "", *map(output.plain, plan_view.explanation(view, known, bucket)))
