"""Changes of rates, and pauses: of an endpoint; pauses of a tenant; for an operator also rates of a tenant or topic."""

from __future__ import annotations

from typing import Any, NamedTuple

from starlette.responses import Response

from emq.topics.model import State, Topic
from emq_push.service.refusals import unknown_endpoint
from emq_push.service.service import PushService
from emq_web.pages import tenant_screen
from emq_web.pages.changes import PAUSING, back, is_pause, pause_change, rate_change, rate_in
from emq_web.pages.gate import Visitor
from emq_web.pages.rendering import number
from emq_web.pages.routing import Screen, View, new_router
from emq_web.pages.tenant_screen import Subject

router = new_router()


class Target(NamedTuple):
    """The target of a rate or a pause: an endpoint of a tenant; with an empty `endpoint` the tenant or topic itself.

    Attributes:
        endpoint: its id.
        name: what people call it.
    """

    of: Subject
    endpoint: str
    name: str
    topic: Topic


async def _target(
    service: PushService, visitor: Visitor, tenant: str, endpoint: str, *, only_admin: bool = True
) -> Target:
    """Return the target of a change. Raises unless the visitor may change it.

    Args:
        only_admin: an admin alone may do this to a whole tenant.
    """
    visitor.check_manages(tenant)
    of = await tenant_screen.subject(service, tenant, any_topic=visitor.sees_all)
    if not endpoint:
        if only_admin or not of.is_tenant:
            visitor.check_admin()
        return Target(of, "", of.title or of.name, of.topic)
    found = await service.endpoints.get(tenant, endpoint)
    topic = (await service.parts.app.catalog.some([found.topic])).get(found.topic)
    if topic is None:
        raise unknown_endpoint(endpoint)
    return Target(of, endpoint, found.settings.description or endpoint, topic)


@router.get("/tenants/{tenant}/rate")
async def ask_rate(
    tenant: str,
    screen: View,
    endpoint: str = "",
    qps: str = "",
) -> Response:
    target = await _target(screen.service, screen.visitor, tenant, endpoint)
    change = rate_change(f"Rate of {target.name}", target.topic.qps, qps, hidden={"endpoint": endpoint})
    if endpoint and not change.confirms:
        note = f"The tenant's own rate of {number(target.of.topic.qps)} a second holds, too."
        change = change._replace(lines=[*change.lines, note])
    return screen.answer("change.html", of=target.of, change=change)


@router.post("/tenants/{tenant}/rate")
async def set_rate(tenant: str, screen: View) -> Response:
    form = await screen.form()
    target = await _target(screen.service, screen.visitor, tenant, form.get("endpoint", ""))
    qps = rate_in(form.get("qps", ""))
    if target.endpoint:
        await screen.service.endpoints.change(tenant, target.endpoint, {"qps": qps}, screen.visitor.actor)
    elif target.of.is_tenant:
        await screen.service.tenants.change(tenant, {"qps": qps}, screen.visitor.actor)
    else:
        await _change_topic(screen, tenant, "topic.changed", qps=qps)
    return back(screen, tenant, "rate")


# -------------------------------------------------------------------------------------------------------------- pause


@router.get("/tenants/{tenant}/pause")
async def ask_pause(tenant: str, screen: View, endpoint: str = "") -> Response:
    target = await _target(screen.service, screen.visitor, tenant, endpoint, only_admin=False)
    resuming = [f"What waits starts again, at most {number(target.topic.qps)} a second."]
    is_paused = target.topic.state is State.PAUSED if endpoint else target.of.paused
    change = pause_change(target.name, is_paused, PAUSING, resuming, {"endpoint": endpoint})
    if target.of.is_tenant and not endpoint:
        note = "This is for all its endpoints. Those that are paused or disabled by themselves stay so."
        change = change._replace(lines=[*change.lines, note])
    return screen.answer("change.html", of=target.of, change=change)


@router.post("/tenants/{tenant}/pause")
async def set_paused(tenant: str, screen: View) -> Response:
    form = await screen.form()
    target = await _target(screen.service, screen.visitor, tenant, form.get("endpoint", ""), only_admin=False)
    paused = is_pause(form)
    if target.endpoint:
        await screen.service.endpoints.set_paused(tenant, target.endpoint, paused, screen.visitor.actor)
    elif target.of.is_tenant:
        await screen.service.tenants.set_paused(tenant, paused, screen.visitor.actor)
    else:
        action, state = ("topic.paused", State.PAUSED) if paused else ("topic.resumed", State.ACTIVE)
        await _change_topic(screen, tenant, action, state=state)
    return back(screen, tenant, "paused" if paused else "resumed")


async def _change_topic(screen: Screen, topic: str, action: str, **changes: Any) -> None:
    """Change a topic that belongs to no tenant."""
    parts, actor = screen.service.parts, screen.visitor.actor
    await parts.app.admin.update(topic, also=lambda c: parts.audit(c, actor, action, topic, changes=changes), **changes)
