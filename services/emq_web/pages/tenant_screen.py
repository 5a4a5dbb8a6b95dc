"""One tenant: its rate against its cap, its backlog, its endpoints, its deliveries.

A topic that belongs to no tenant has the same page without endpoints and deliveries, for an operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from emq.database import watches
from emq.host.lag_parts import Part
from emq.topics.model import State, Topic
from emq_clients.push.answers import EndpointLag, Hold
from emq_push.records.endpoints import Endpoint, topic_of, topics_of
from emq_push.service import states
from emq_push.service.host_facts import HostFacts
from emq_push.service.lagging import WATCH_MS, total
from emq_push.service.refusals import NotFound
from emq_push.service.service import PushService
from emq_push.service.tenancy import unknown
from emq_trace import backlog
from emq_web.pages import charts, first_screen
from emq_web.pages.first_screen import Place

SHOWN = 50
"""Most endpoints on the page."""

HOLDS = {
    "none": "nothing holds it back",
    "disabled": "disabled",
    "paused": "paused",
    "circuit_open": "out of order",
    "throttled": "asks for less",
    "endpoint_cap": "at its own rate",
    "tenant_cap": "at the tenant's rate",
    "gone": "deleted",
    "unknown": "not known",
}
"""The hold of an endpoint, in words."""

_FREE = Hold("none", "")
_BAD = ("disabled", "circuit_open", "gone")
_PARTS = tuple(part.value for part in (Part.READY, Part.HELD_BY_RATE, Part.DELAYED, Part.PARKED, Part.DEAD))


class Subject(NamedTuple):
    """The subject of a page.

    Attributes:
        name: the tenant's id, or the topic's name.
        title: the tenant's name for people; may be empty.
        topic: the topic of this name.
        is_tenant: False for a topic that belongs to no tenant.
        paused: nothing of it starts until somebody resumes it.
    """

    name: str
    title: str
    topic: Topic
    is_tenant: bool
    paused: bool


class RateNow(NamedTuple):
    """Attributes:
    used: starts in the last second that all hosts have counted; None if not known.
    chart: options of the chart; None while no host reports.
    limit: the present limit, in one sentence.
    is_bad: True if the sentence names a trouble.
    """

    cap: float
    used: float | None
    chart: dict[str, object] | None
    limit: str
    is_bad: bool


class EndpointRow(NamedTuple):
    """An endpoint on the page of its tenant."""

    id: str
    description: str
    url: str
    cap: float
    used: float | None
    lag: EndpointLag
    paused: bool

    @property
    def hold(self) -> Hold:
        return self.lag.hold or _FREE

    @property
    def in_words(self) -> str:
        return HOLDS.get(self.hold.name, self.hold.name)

    @property
    def is_bad(self) -> bool:
        return self.hold.name in _BAD

    @property
    def waiting(self) -> int:
        """Deliveries that only a hold keeps from starting."""
        return self.lag.ready + (self.lag.held_by_rate or 0) + (self.lag.parked or 0)


class BacklogNow(NamedTuple):
    """Attributes:
    priorities: unfinished messages by priority, highest first.
    oldest_s: seconds since the oldest delivery that is due was accepted; None if none is due.
    more: True if the tenant has endpoints beyond these.
    """

    places: list[Place]
    priorities: list[tuple[str, int]]
    oldest_s: float | None
    endpoints: list[EndpointRow]
    more: bool


async def subject(service: PushService, name: str, *, any_topic: bool) -> Subject:
    """Return the subject of a page.

    Args:
        any_topic: also show a topic that belongs to no tenant.

    Raises:
        NotFound: there is no such tenant.
    """
    topic = (await service.parts.app.catalog.some([name])).get(name)
    try:
        tenant = await service.tenants.get(name)
    except NotFound:
        if not any_topic or topic is None:
            raise
        return Subject(name, "", topic, False, topic.state is State.PAUSED)
    if topic is None:
        raise unknown(name)
    return Subject(name, tenant.settings.name, topic, True, tenant.is_paused)


async def rate_now(service: PushService, of: Subject) -> RateNow:
    """Return the rate of the last minute; asks hosts to count each second from now on."""
    now_ms = service.parts.now_us() // 1000
    await watches.note(service.parts.app.database, service.parts.environment, topics_of(of.name), now_ms, WATCH_MS)
    facts = await service.hosts.now()
    watched, cap = facts.starts(of.name), of.topic.qps
    if not facts.live:
        return RateNow(cap, None, None, "Not known: no host has reported lately.", True)
    limit, is_bad = _limit(of, facts)
    if watched is None or not watched[1]:
        empty = charts.starts(now_ms // 1000, (), cap)
        return RateNow(cap, states.tenant_use(of.name, facts), empty, limit, is_bad)
    second, counts = watched
    return RateNow(cap, counts[-1], charts.starts(second, counts, cap), limit, is_bad)


def _limit(of: Subject, facts: HostFacts) -> tuple[str, bool]:
    if of.paused:
        return "Paused: nothing starts until somebody resumes it.", True
    hold = states.hold_of(of.topic, None, facts)
    if hold.name in ("circuit_open", "throttled", "disabled"):
        return f"{hold.reason[:1].upper()}{hold.reason[1:]}.", True
    used = states.tenant_use(of.name, facts)
    if used is None:
        return "The hosts are counting; the rate is known in a few seconds.", False
    if used >= states.AT_CAP * of.topic.qps or any(t.held_by == of.name for t in facts.topics.values()):
        return f"Its own rate of {of.topic.qps:g} a second sets the limit.", False
    return "Its own rate does not limit it now.", False


async def endpoint_names(service: PushService, of: Subject) -> dict[str, str]:
    """Return the names of the tenant's endpoints for people, by id."""
    page = await service.endpoints.page(of.name, SHOWN)
    return {endpoint.id: endpoint.settings.description or endpoint.id for endpoint in page.rows}


async def backlog_now(service: PushService, of: Subject) -> BacklogNow:
    """Return the backlog by its parts, by priority and by endpoint."""
    if not of.is_tenant:
        return await _of_topic(service, of)
    endpoints = {endpoint.id: endpoint for endpoint in (await service.endpoints.page(of.name, SHOWN)).rows}
    lags = await service.lagging.lag(of.name, SHOWN)
    names = [topic_of(of.name, row.endpoint) for row in lags.rows]
    topics = await service.parts.app.catalog.some(names)
    mine = [topics[name] for name in names if name in topics]
    facts = await service.hosts.now()
    rows = [
        _row(endpoint, topic, lag, facts.started_per_s(name))
        for lag, name in zip(lags.rows, names, strict=True)
        if (topic := topics.get(name)) is not None and (endpoint := endpoints.get(lag.endpoint)) is not None
    ]
    oldest = [s for lag in lags.rows if (s := lag.oldest_claimable_s) is not None]
    flying = total([lag.in_flight for lag in lags.rows])
    return BacklogNow(
        first_screen.places_of(_parts(lags.rows), flying),
        await _priorities(service, mine),
        max(oldest, default=None),
        rows,
        bool(lags.next),
    )


async def endpoint_row(service: PushService, endpoint: Endpoint) -> EndpointRow | None:
    """Return the row of one endpoint; None if it is being deleted."""
    topic = (await service.parts.app.catalog.some([endpoint.topic])).get(endpoint.topic)
    lags = (await service.lagging.lag(endpoint.tenant, 1, endpoint=endpoint.id)).rows
    if topic is None or not lags:
        return None
    return _row(endpoint, topic, lags[0], (await service.hosts.now()).started_per_s(endpoint.topic))


async def _of_topic(service: PushService, of: Subject) -> BacklogNow:
    [found] = await backlog.of(service.parts.app.admin, [of.topic])
    facts = await service.hosts.now()
    hold, waiting = states.hold_of(of.topic, None, facts), sum(found.ready.values()) + found.claimed
    flying = facts.in_flight(of.name)
    rest = max(0, waiting - (flying or 0))
    part = Part.PARKED if hold.parks else Part.HELD_BY_RATE if hold.holds else Part.READY
    counts = {part.value: rest, Part.DELAYED.value: found.delayed, Part.DEAD.value: found.dead}
    places = first_screen.places_of(counts, flying)
    return BacklogNow(places, [*found.ready.items()] if len(found.ready) > 1 else [], None, [], False)


def _parts(lags: Sequence[EndpointLag]) -> dict[str, int]:
    return {part: sum(getattr(lag, part) or 0 for lag in lags) for part in _PARTS}


async def _priorities(service: PushService, topics: Sequence[Topic]) -> list[tuple[str, int]]:
    sums: dict[str, int] = {}
    for found in await backlog.of(service.parts.app.admin, topics):
        for name, n in found.ready.items():
            sums[name] = sums.get(name, 0) + n
    return [*sums.items()]


def _row(endpoint: Endpoint, topic: Topic, lag: EndpointLag, used: float | None) -> EndpointRow:
    settings = endpoint.settings
    url = urlsplit(settings.url)  # its other parts are where people put secrets
    place = f"//{url.netloc.rpartition('@')[2]}{url.path}" if url.netloc else ""
    shown = f"{url.scheme}:{place}"
    return EndpointRow(endpoint.id, settings.description, shown, topic.qps, used, lag, endpoint.is_paused)
