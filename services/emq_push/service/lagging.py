"""The lag of endpoints and tenants, in parts that are never added up, and the present limits of their rates.

The store counts unfinished deliveries; hosts report those in flight, and what holds the rest. If no host has reported
lately, the hosts' parts are None: unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

from emq.database import watches
from emq.topics.model import Topic
from emq_clients.push.answers import EndpointLag, Rate
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

    async def rates(self, tenant: str, limit: int, cursor: str = "", endpoint: str = "") -> Page[Rate]:
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
                started = facts.started_per_s(topic.name)
                found.append(Rate(endpoint=id_, cap_per_s=topic.qps, used_per_s=started, limited_by=hold.shown))
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
    """Return the lag of an endpoint. While no host reports, those that are held or in flight count as ready."""
    held = sum(counts.ready.values()) + counts.claimed
    flying = None if in_flight is None else min(in_flight, held)
    rest = held - (flying or 0)
    unknown = hold.name == "unknown"
    return EndpointLag(
        endpoint=endpoint,
        ready=0 if hold.parks or hold.holds else rest,
        held_by_rate=rest if hold.holds else None if unknown else 0,
        delayed=counts.delayed,
        in_flight=flying,
        parked=rest if hold.parks else None if unknown else 0,
        dead=counts.dead,
        oldest_claimable_s=oldest_s,
        hold=hold.shown,
    )


def _of_tenant(topic: Topic, facts: HostFacts) -> Rate:
    used = states.tenant_use(topic.name, facts)
    watched = facts.starts(topic.name)
    hold = Hold("unknown", "no host has reported lately") if used is None else Hold("none")
    if used is not None and used >= states.AT_CAP * topic.qps:
        hold = Hold("tenant_cap", f"the tenant's endpoints together use its {topic.qps:g} a second")
    last = [] if watched is None else [*watched[1][-SHOWN_S:]]
    return Rate(cap_per_s=topic.qps, used_per_s=used, last_seconds=last, limited_by=hold.shown)
