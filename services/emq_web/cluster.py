"""`/v1/hosts`, `/v1/plan`, `/v1/trace/{id}`: the operators' views."""

from __future__ import annotations

from typing import Annotated

import fastapi
import msgspec

from emq.observe.snapshots import AgedSnapshot
from emq_clients.push import answers
from emq_trace.lookup import Trace
from emq_web import access, forms, models, parameters
from emq_web.parameters import DeliveryId

router = models.Router(prefix="/v1", tags=["operations"])


models.answer(answers.Hosts, "Hosts")


def _host(seen: AgedSnapshot) -> answers.Host:
    host = seen.host
    return forms.shown(
        answers.Host,
        host,
        live=seen.live,
        age_s=round(seen.age_s, 3),
        uptime_s=round(host.uptime_s, 3),
        started_per_s=host.rates.started,
        failed_per_s=host.rates.failed,
        closed_topics=host.closed,
        limited_topics=host.limited,
        trouble=host.store_unreachable or host.database_unreachable,
    )


def _trace(found: Trace) -> answers.Trace:
    reasons = [
        forms.shown(answers.Reason, each, until=None if each.until_ms is None else forms.time(each.until_ms * 1000))
        for each in found.reasons
    ]
    lines = [answers.Line(at=forms.time(e.time_us), event=e.event, detail=e.detail) for e in found.lines]
    place = None if found.place is None else msgspec.to_builtins(found.place)
    return forms.shown(answers.Trace, found, topic=found.topic_name, timeline=lines, place=place, why=reasons)


@router.get("/hosts")
async def list_hosts(of: access.Admin) -> answers.Hosts:
    """List the hosts heard of within the last hour."""
    return answers.Hosts(data=[_host(seen) for seen in await of.service.cluster.hosts()])


@router.get("/plan")
async def get_plan(of: access.Admin) -> answers.Plan:
    """Show which host has how many groups."""
    return await of.service.cluster.plan()


@router.get("/trace/{message}")
async def get_trace(
    message: Annotated[str, fastapi.Path(max_length=256)],
    of: access.Admin,
    topic: Annotated[
        parameters.Text, fastapi.Query(description="the message's topic; needed if no trail is kept")
    ] = "",
) -> answers.Trace:
    """Show the life of a message, where it is, and why it waits."""
    return _trace(await of.service.cluster.trace(message, topic))


@router.get("/tenants/{tenant}/deliveries/{delivery}/trace")
async def get_delivery_trace(delivery: DeliveryId, of: access.AdminOfExisting) -> answers.Trace:
    """Show the life of a delivery, where it is, and why it waits."""
    return _trace(await of.service.cluster.trace_delivery(of.tenant, delivery))
