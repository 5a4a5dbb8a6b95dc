"""`/v1/hosts`, `/v1/plan`, `/v1/trace/{id}`: the operators' views."""

from __future__ import annotations

import datetime
from typing import Annotated, Any

import fastapi
import msgspec
import pydantic

from emq.observe.snapshots import AgedSnapshot
from emq.observe.trace.lookup import Trace
from emq_web import access, forms, queries
from emq_web.queries import DeliveryId, Existing
from emq_web.tenants import TenantId

router = fastapi.APIRouter(prefix="/v1", tags=["operations"])


class HostShown(forms.Shown):
    """A host, by the snapshot that it saved last."""

    host: str
    live: bool = pydantic.Field(description="false if it has said nothing for 10 seconds")
    age_s: float = pydantic.Field(description="seconds since it saved the snapshot")
    uptime_s: float
    topics: int
    groups: int
    in_flight: int
    started_per_s: float
    failed_per_s: float
    closed_topics: int
    limited_topics: int
    trouble: str | None = pydantic.Field(description="why it cannot reach its store or database; null if it can")


class Hosts(forms.Shown):
    """The hosts heard of within the last hour, by name."""

    data: list[HostShown]


class PlannedHostShown(forms.Shown):
    """A host of the plan."""

    host: str
    groups: int = pydantic.Field(description="groups that the plan gives it")
    member: bool = pydantic.Field(description="whether it is in the cluster now")
    drained: bool = pydantic.Field(description="whether an operator has ordered it to hold no groups")


class PlanShown(forms.Shown):
    """The plan that says which host owns which groups."""

    generation: int = pydantic.Field(description="0 before the first plan")
    planned: datetime.datetime | None
    planned_by: str
    leader: str
    groups: int
    holding: dict[str, int] = pydantic.Field(description="groups by their progress towards their host")
    hosts: list[PlannedHostShown]


class LineShown(forms.Shown):
    """An event in the life of a message."""

    at: datetime.datetime
    event: str
    detail: str


class ReasonShown(forms.Shown):
    """A reason why a message waits."""

    name: str
    text: str
    until: datetime.datetime | None


class TraceShown(forms.Shown):
    """The life of a message, and why it waits."""

    id: str
    topic: str
    state: str
    timeline: list[LineShown]
    place: dict[str, Any] | None = pydantic.Field(description="where the store has it")
    why: list[ReasonShown]
    notes: list[str]


class TraceQuery(queries.Query):
    """Where to look."""

    topic: queries.Text = pydantic.Field("", description="the message's topic; needed if no trail is kept")


def _host(seen: AgedSnapshot) -> HostShown:
    host = seen.host
    return HostShown(
        host=host.host,
        live=seen.live,
        age_s=round(seen.age_s, 3),
        uptime_s=round(host.uptime_s, 3),
        topics=host.topics,
        groups=host.groups,
        in_flight=host.in_flight,
        started_per_s=host.rates.started,
        failed_per_s=host.rates.failed,
        closed_topics=host.closed,
        limited_topics=host.limited,
        trouble=host.store_unreachable or host.database_unreachable,
    )


def _trace(found: Trace) -> TraceShown:
    place = None if found.place is None else msgspec.to_builtins(found.place)
    reasons = [
        ReasonShown(
            name=each.name, text=each.text, until=None if each.until_ms is None else forms.time(each.until_ms * 1000)
        )
        for each in found.reasons
    ]
    lines = [LineShown(at=forms.time(e.time_us), event=e.event, detail=e.detail) for e in found.lines]
    return TraceShown(
        id=found.id,
        topic=found.topic_name,
        state=found.state,
        timeline=lines,
        place=place,
        why=reasons,
        notes=list(found.notes),
    )


@router.get("/hosts")
async def list_hosts(_: access.Admin, service: access.Service) -> Hosts:
    """List the hosts heard of within the last hour."""
    return Hosts(data=[_host(seen) for seen in await service.cluster.hosts()])


@router.get("/plan")
async def get_plan(_: access.Admin, service: access.Service) -> PlanShown:
    """Show which host has how many groups."""
    found = await service.cluster.plan()
    hosts = [PlannedHostShown(**each._asdict()) for each in found.hosts]
    values = {**found._asdict(), "hosts": hosts, "planned": forms.time_or_none(round(found.planned_s * 1e6))}
    return PlanShown.model_validate(values)


@router.get("/trace/{message}")
async def get_trace(
    message: Annotated[str, fastapi.Path(max_length=256)],
    _: access.Admin,
    service: access.Service,
    query: Annotated[TraceQuery, fastapi.Query()],
) -> TraceShown:
    """Show the life of a message, where it is, and why it waits."""
    return _trace(await service.cluster.trace(message, query.topic))


@router.get("/tenants/{tenant}/deliveries/{delivery}/trace")
async def get_delivery_trace(
    tenant: TenantId, delivery: DeliveryId, _: access.TenantAdmin, __: Existing, service: access.Service
) -> TraceShown:
    """Show the life of a delivery, where it is, and why it waits."""
    return _trace(await service.cluster.trace_delivery(tenant, delivery))
