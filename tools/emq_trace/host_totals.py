"""Combines the snapshots of all hosts: what topics do, and counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from emq.host.statistics import Rates, ThrottledTopic, Totals
from emq.observe.snapshots import AgedSnapshot


class TopicTotal(msgspec.Struct):
    """A topic over all live hosts that count it among their busiest; see `TopicStatistics`."""

    name: str
    qps: float
    state: str
    groups: int = 0
    started_per_s: float = 0.0
    in_flight: int = 0
    max_in_flight: int = 0
    buffered: dict[str, int] = {}
    retries_buffered: int = 0
    held_by: str = ""


def topics(seen: Iterable[AgedSnapshot]) -> list[TopicTotal]:
    """Topics over all live hosts, the busiest first."""
    found: dict[str, TopicTotal] = {}
    for host in (s.host for s in seen if s.live):
        for t in host.busiest:
            total = found.setdefault(t.name, TopicTotal(t.name, t.qps, t.state))
            total.groups += t.groups
            total.started_per_s += t.started_per_s
            total.in_flight += t.in_flight
            total.max_in_flight += t.max_in_flight
            total.retries_buffered += t.retries_buffered
            total.held_by = total.held_by or t.held_by
            for priority, n in t.buffered.items():
                total.buffered[priority] = total.buffered.get(priority, 0) + n
    return sorted(found.values(), key=lambda t: (-t.started_per_s, -sum(t.buffered.values()), -t.in_flight, t.name))


def throttled(seen: Iterable[AgedSnapshot]) -> dict[str, ThrottledTopic]:
    """Topics that are closed or limited on a live host, by name; a host that closes the topic goes first."""
    found: dict[str, ThrottledTopic] = {}
    for host in (s.host for s in seen if s.live):
        for topic in host.throttled:
            if topic.name not in found or topic.rate is None:
                found[topic.name] = topic
    return found


def totals(seen: Sequence[AgedSnapshot]) -> Totals:
    """Counts since their start, over all live hosts."""
    live = [s.host.totals for s in seen if s.live]
    return Totals(*(sum(getattr(t, field) for t in live) for field in Totals.__struct_fields__))


def rates(seen: Sequence[AgedSnapshot]) -> Rates:
    """Counts a second, over all live hosts."""
    live = [s.host.rates for s in seen if s.live]
    return Rates(*(sum(getattr(r, field) for r in live) for field in Rates.__struct_fields__))
