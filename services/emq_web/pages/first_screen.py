"""The first screen: does everything flow, where are the messages, and which tenants need somebody?

All data comes from the snapshots that hosts keep in the database, so the cost grows with the number of hosts, not of
tenants.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from emq.host.lag_parts import Part
from emq.host.statistics import HostStatistics, TroubledTopic
from emq.observe.snapshots import AgedSnapshot
from emq.runtime import durations, plurals
from emq_push.records.endpoints import tenant_of
from emq_trace import host_totals
from emq_web.scheduling.verdicts import Verdict

SHOWN = 50
"""Most tenants on the first screen."""

STALE_LAG_S = 150.0
"""Age from which the counts of a host are not shown as the present backlog: more than two looks of a quiet host."""

CAUSES = {
    "closed": "endpoint out of order",
    "no_handler": "no handler takes it",
    "full": "answers too slowly",
    "limited": "endpoint asks for less",
    "backlog": "gets more than its rate",
    "paused": "paused",
    "dead": "dead letters",
}
"""Causes of `TroubledTopic` in words, the most urgent first."""

OF_POOLS = ("full", "limited", "backlog")
"""Causes that are no trouble of a pool's topic: its tasks wait for the limits of the pool, whose page judges them."""

_URGENCY = {cause: place for place, cause in enumerate(CAUSES)}


class Place(NamedTuple):
    """A number of messages in one part of the lag; `n` is None if no host has reported."""

    name: str
    title: str
    n: int | None
    hint: str


class Needy(NamedTuple):
    """A tenant that needs somebody.

    Attributes:
        cause: the most urgent one of its topics.
        reason: in the words of its handler or of push; may be empty.
        others: number of its other topics in trouble.
        drain_s: seconds until no message waits, at the present rates; None for never.
    """

    tenant: str
    cause: str
    reason: str
    waiting: int
    dead: int
    drain_s: float | None
    others: int

    @property
    def in_words(self) -> str:
        return CAUSES.get(self.cause, self.cause)


class Overview(NamedTuple):
    """The first screen's data.

    Attributes:
        started_per_s: starts a second, over all live hosts.
        lag_age_s: age of the oldest counts in `places`; None without any.
        needy: the tenants in most trouble, at most `SHOWN`.
        in_trouble: number of topics in trouble, over all hosts.
        is_cut_off: not all of these are in `needy`.
        notes: lines about single hosts.
    """

    verdict: Verdict
    started_per_s: float
    places: list[Place]
    lag_age_s: float | None
    needy: list[Needy]
    in_trouble: int
    is_cut_off: bool
    hosts: int
    notes: list[str]


def of(seen: Sequence[AgedSnapshot], of_pools: Collection[str] = ()) -> Overview:
    """Put the snapshots of all hosts together.

    Args:
        of_pools: names of the topics in trouble that belong to pools of resources.
    """
    live = [s for s in seen if s.live]
    counts, lag_age_s = _lag(live)
    named = [topic for s in live for topic in s.host.troubled]
    troubled = [topic for topic in named if topic.name not in of_pools or topic.cause not in OF_POOLS]
    found = _needy(troubled)
    started = host_totals.rates(seen).started
    notes = _notes(seen)
    in_trouble = sum(s.host.in_trouble for s in live) - (len(named) - len(troubled))
    wrong = [text for text in (notes[0] if notes else "", _cannot_keep_up(live, troubled)) if text]
    return Overview(
        _verdict(seen, live, counts, started, wrong),
        started,
        places_of(counts, sum(s.host.in_flight for s in live) if live else None),
        lag_age_s,
        found,
        in_trouble,
        in_trouble > len(troubled) or len({tenant_of(topic.name) for topic in troubled}) > SHOWN,
        len(live),
        notes,
    )


def _lag(live: Iterable[AgedSnapshot]) -> tuple[dict[str, int] | None, float | None]:
    """Return the messages by part, and the age of the oldest count; None if a live host has not counted lately."""
    sums: dict[str, int] = {}
    oldest_s: float | None = None
    for s in live:
        if s.host.lag_at is None:
            if s.host.groups:
                return None, None
            continue
        oldest_s = max(oldest_s or 0.0, s.age_s + s.host.time - s.host.lag_at)
        for part, n in s.host.lag.items():
            sums[part] = sums.get(part, 0) + n
    if oldest_s is None or oldest_s > STALE_LAG_S:
        return None, oldest_s
    return sums, oldest_s


def places_of(counts: dict[str, int] | None, in_flight: int | None) -> list[Place]:
    """Return the parts of a backlog in the order in which a page shows them; the rare ones only if there are any."""

    def n(part: Part) -> int | None:
        return None if counts is None else counts.get(part.value, 0)

    places = [
        Place("ready", "Ready", n(Part.READY), "may start now"),
        Place("rate", "Held by rate", n(Part.HELD_BY_RATE), "this second's starts are used up"),
        Place("delayed", "Delayed", n(Part.DELAYED), "delayed messages and retries whose time has not come"),
        Place("flying", "In flight", in_flight, "started and not finished"),
        Place("parked", "Parked", n(Part.PARKED), "paused, no handler, or the endpoint is out of order"),
        Place("dead", "Dead", n(Part.DEAD), "dead letters, until somebody replays or deletes them"),
    ]
    rare = [
        Place("key", "Held by key", n(Part.HELD_BY_KEY), "another message of the key runs"),
        Place("room", "Held by room", n(Part.HELD_BY_ROOM), "as many are in flight as may be"),
    ]
    return places[:2] + [place for place in rare if place.n] + places[2:]


def _needy(troubled: Sequence[TroubledTopic]) -> list[Needy]:
    """Return the tenants of these topics, the most urgent first; at most `SHOWN`."""
    chosen: dict[str, list[TroubledTopic]] = {}
    for topic in sorted(troubled, key=_by_urgency):
        tenant = tenant_of(topic.name)
        if tenant in chosen:
            chosen[tenant].append(topic)
        elif len(chosen) < SHOWN:
            chosen[tenant] = [topic]
    return [_needy_one(tenant, topics) for tenant, topics in chosen.items()]


def _needy_one(tenant: str, topics: Sequence[TroubledTopic]) -> Needy:
    """Return a tenant; `topics` are its topics in trouble on all hosts, the most urgent first."""
    worst, drains = topics[0], [topic.drain_s for topic in topics if topic.waiting]
    drain_s = None if None in drains else max((d for d in drains if d is not None), default=0.0)
    waiting, dead = sum(topic.waiting for topic in topics), sum(topic.dead for topic in topics)
    others = len({topic.name for topic in topics}) - 1
    return Needy(tenant, worst.cause, worst.reason, waiting, dead, drain_s, others)


def _by_urgency(topic: TroubledTopic) -> tuple[int, int, int, str]:
    return _URGENCY.get(topic.cause, len(_URGENCY)), -topic.waiting, -topic.dead, topic.name


def named(seen: Iterable[AgedSnapshot]) -> set[str]:
    """Return the names of the topics that live hosts report as in trouble."""
    return {topic.name for s in seen if s.live for topic in s.host.troubled}


def _cannot_keep_up(live: Sequence[AgedSnapshot], troubled: Iterable[TroubledTopic]) -> str:
    """Return, in words, the number of tenants whose messages wait too long; empty for none."""
    urgent = {tenant_of(t.name) for t in troubled if t.cause not in ("paused", "dead")}
    if not urgent:
        return ""
    all_named = all(s.host.in_trouble <= len(s.host.troubled) for s in live)
    return f"{'' if all_named else 'at least '}{plurals.count(len(urgent), 'tenant')} cannot keep up"


def _verdict(
    seen: Sequence[AgedSnapshot],
    live: Sequence[AgedSnapshot],
    counts: dict[str, int] | None,
    started: float,
    wrong: Sequence[str],
) -> Verdict:
    if not seen:
        return Verdict("stopped", "Not flowing: no host runs. Start one with: emq up")
    if not live:
        silent = durations.brief(min(s.age_s for s in seen))
        return Verdict("unknown", f"Unknown: no host has reported for {silent}")
    cut_off = [s for s in live if s.host.store_unreachable]
    if len(cut_off) == len(live):
        return Verdict("stopped", f"Not flowing: {cut_off[0].host.store_unreachable}")
    if counts is None:
        return Verdict("unknown", f"{_rate(started)}; the backlog is unknown until the hosts have counted it")
    ready = counts.get(Part.READY.value, 0)
    if ready and not started and not any(s.host.in_flight for s in live):
        return Verdict("stopped", f"Not flowing: {plurals.count(ready, 'message')} may start, and nothing starts")
    if wrong:
        return Verdict("trouble", f"{_rate(started)}, but {'; '.join(wrong)}")
    return Verdict("flowing", f"{_rate(started)} on {plurals.count(len(live), 'host')}")


def _rate(started: float) -> str:
    return f"Flowing: {started:,.0f} a second" if started >= 0.5 else "Flowing: nothing to start now"


def _notes(seen: Iterable[AgedSnapshot]) -> list[str]:
    """Return a line for each thing that is wrong with a host."""
    lines = []
    for s in seen:
        if not s.live:
            lines.append(f"host {s.host.host} has been silent for {durations.brief(s.age_s)}")
            continue
        lines += [f"host {s.host.host}: {text}" for text in troubles_of(s.host)]
    return lines


def troubles_of(host: HostStatistics) -> list[str]:
    """Return what is wrong with a host that reports, in words."""
    clock = host.clock.trouble if host.clock is not None else None
    return [text for text in (host.store_unreachable, host.database_unreachable, clock) if text]
