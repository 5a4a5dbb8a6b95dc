"""The lag of endpoints and tenants, in parts that are never added up, and the present limits of their rates.

The store counts unfinished deliveries; hosts report those in flight, and what holds the rest. If no host has reported
lately, the hosts' parts are None: unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from emq.database import watches
from emq.topics.model import Topic
from emq_push.records import cursors
from emq_push.records.cursors import Page
from emq_push.records.deliveries import Deliveries
from emq_push.records.endpoints import topic_of, topics_of
from emq_push.service import states
from emq_push.service.host_facts import HostFacts, HostView
from emq_push.service.parts import Parts
from emq_push.service.states import Hold
from emq_trace import backlog
from emq_trace.backlog import Backlog

WATCH_MS = 60_000
"""Milliseconds for which hosts measure a tenant each second after somebody has asked for its rate."""

SHOWN_S = 10
"""Most seconds of starts that the status of a rate shows."""


class EndpointLag(NamedTuple):
    """The deliveries of an endpoint that are not done, by what they wait for; each counts in one part.

    Attributes:
        endpoint: its id.
        ready: nothing: they may start now. While no host reports, also those that are held or in flight.
        held_by_rate: the rate of the endpoint or its tenant; None if not known.
        delayed: their time, for a retry.
        in_flight: the endpoint's answer; None if not known.
        parked: the endpoint is disabled or paused, or its circuit is open. None if not known.
        dead: dead letters.
        oldest_s: seconds since the oldest delivery that is due was accepted; None if none is due.
        hold: what holds the endpoint.
    """

    endpoint: str
    ready: int
    held_by_rate: int | None
    delayed: int
    in_flight: int | None
    parked: int | None
    dead: int
    oldest_s: float | None
    hold: Hold


class RateStatus(NamedTuple):
    """The cap, the use and the present limit of an endpoint, or of a tenant as a whole.

    Attributes:
        name: the endpoint's id; empty for the tenant.
        cap_per_s: most deliveries started in a second.
        used_per_s: deliveries started a second now; None if not known.
        last_s: starts in each of the last seconds, the oldest first; empty if no host has counted them yet.
        hold: what limits it now.
    """

    name: str
    cap_per_s: float
    used_per_s: float | None
    last_s: tuple[int, ...]
    hold: Hold


class LaggingService:
    """Counts waiting deliveries by the reason. All methods raise `DatabaseUnavailable` and `StoreUnavailable`."""

    def __init__(self, parts: Parts, hosts: HostView) -> None:
        self._parts = parts
        self._hosts = hosts
        self._rows = Deliveries(parts.environment)

    async def lag(self, tenant: str, limit: int, cursor: str = "", endpoint: str = "") -> Page[EndpointLag]:
        """Return the lag of the tenant's endpoints, by id, or of one of them.

        Raises:
            NotFound: the tenant has no such endpoint.
            InvalidCursor: the cursor is not one of this list.
        """
        page = await self._endpoints(f"lag {tenant}", tenant, limit, cursor, endpoint)
        topics = await self._parts.topics({tenant, *(topic_of(tenant, id_) for id_ in page.rows)})
        mine = [t for id_ in page.rows if (t := topics.get(topic_of(tenant, id_))) is not None]
        counts = {found.topic: found for found in await backlog.of(self._parts.app.admin, mine)}
        facts, now_us = await self._hosts.now(), self._parts.now_us()
        oldest = await self._parts.read(lambda c: self._rows.oldest_due_us(c, [t.name for t in mine], now_us))
        found = []
        for topic in mine:
            hold = states.hold_of(topic, topics.get(tenant), facts)
            created_us = oldest.get(topic.name)
            oldest_s = None if created_us is None else max(0.0, (now_us - created_us) / 1e6)
            id_ = topic.name.removeprefix(topic_of(tenant, ""))
            found.append(_lag(id_, counts[topic.name], hold, facts.in_flight(topic.name), oldest_s))
        return Page(found, page.next)

    async def rates(self, tenant: str, limit: int, cursor: str = "", endpoint: str = "") -> Page[RateStatus]:
        """Return the present limits of the tenant and its endpoints; the tenant comes first, on the first page.

        The first call lets hosts count the starts of each second, so that calls a few seconds later show these.

        Raises:
            NotFound: the tenant has no such endpoint.
            InvalidCursor: the cursor is not one of this list.
        """
        app = self._parts.app
        now_ms = self._parts.now_us() // 1000
        await watches.note(app.database, self._parts.environment, topics_of(tenant), now_ms, WATCH_MS)
        page = await self._endpoints(f"rates {tenant}", tenant, limit, cursor, endpoint)
        topics = await self._parts.topics({tenant, *(topic_of(tenant, id_) for id_ in page.rows)})
        facts, whole = await self._hosts.now(), topics.get(tenant)
        found = [_of_tenant(whole, facts)] if whole is not None and not cursor and not endpoint else []
        for id_ in page.rows:
            topic = topics.get(topic_of(tenant, id_))
            if topic is not None:
                hold = states.hold_of(topic, whole, facts)
                found.append(RateStatus(id_, topic.qps, facts.started_per_s(topic.name), (), hold))
        return Page(found, page.next)

    async def _endpoints(self, of: str, tenant: str, limit: int, cursor: str, endpoint: str) -> Page[str]:
        if endpoint:
            await self._parts.check_endpoint(tenant, endpoint)
            return Page([endpoint], "")
        after = str(cursors.decode_marked(of, cursor, str)[0]) if cursor else ""
        ids = await self._parts.endpoints(tenant, after, limit + 1)
        return cursors.page(ids, limit, lambda id_: (cursors.mark(of), id_))


def total(parts: Sequence[int | None]) -> int | None:
    """Add counts up; None if one of them is not known."""
    known = [n for n in parts if n is not None]
    return sum(known) if len(known) == len(parts) else None


def _lag(endpoint: str, counts: Backlog, hold: Hold, in_flight: int | None, oldest_s: float | None) -> EndpointLag:
    held = sum(counts.ready.values()) + counts.claimed
    flying = None if in_flight is None else min(in_flight, held)
    rest = held - (flying or 0)
    unknown = hold.name == "unknown"
    return EndpointLag(
        endpoint,
        ready=0 if hold.parks or hold.holds else rest,
        held_by_rate=rest if hold.holds else None if unknown else 0,
        delayed=counts.delayed,
        in_flight=flying,
        parked=rest if hold.parks else None if unknown else 0,
        dead=counts.dead,
        oldest_s=oldest_s,
        hold=hold,
    )


def _of_tenant(topic: Topic, facts: HostFacts) -> RateStatus:
    used = states.tenant_use(topic.name, facts)
    watched = facts.starts(topic.name)
    hold = Hold("unknown", "no host has reported lately") if used is None else Hold("none")
    if used is not None and used >= states.AT_CAP * topic.qps:
        hold = Hold("tenant_cap", f"the tenant's endpoints together use its {topic.qps:g} a second")
    return RateStatus("", topic.qps, used, watched[1][-SHOWN_S:] if watched is not None else (), hold)
