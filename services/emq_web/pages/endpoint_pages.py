"""The pages with which a tenant serves itself: add an endpoint, look at it, change it, try it, delete it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from emq_push.records.endpoints import EVENT_TYPE, Endpoint, EndpointSettings
from emq_push.service import examples
from emq_push.service.endpoint_edits import Made
from emq_push.service.reading import DeliveryFilter
from emq_push.service.refusals import Invalid, Refused, converted
from emq_web.pages import changes, endpoint_form, tenant_pages, tenant_screen
from emq_web.pages.changes import Change, Field, number_in
from emq_web.pages.endpoint_form import Typed
from emq_web.pages.rendering import segment
from emq_web.pages.routing import Screen, View, new_router
from emq_web.pages.tenant_screen import Subject

DELIVERIES = 10
"""The latest deliveries on the page of an endpoint."""

HOUR_S = 3_600
MOST_HOURS = 30 * 24
"""For so long, deliveries may have the signature of the old secret, too."""

MOST_DIGITS = 19
"""A version has fewer."""

router = new_router()


async def _managed(screen: Screen, tenant: str) -> Subject:
    """Return the tenant. Raises unless the visitor may change its endpoints."""
    screen.visitor.check_manages(tenant)
    return await tenant_screen.subject(screen.service, tenant, any_topic=False)


def _path(tenant: str, endpoint: str, done: str = "") -> str:
    return f"/tenants/{segment(tenant)}/endpoints/{segment(endpoint)}{f'?done={done}' if done else ''}"


# ---------------------------------------------------------------------------------------------------------- the form


@router.get("/tenants/{tenant}/endpoints/new")
async def ask_new(tenant: str, screen: View) -> Response:
    return await _form(screen, await _managed(screen, tenant), None, Typed())


@router.post("/tenants/{tenant}/endpoints/new")
async def make(tenant: str, screen: View) -> Response:
    form, of = await screen.form(), await _managed(screen, tenant)
    given = endpoint_form.sent(form)
    try:
        if "preview" in form:
            return await _form(screen, of, None, given, preview=await _preview(screen, of, given))
        settings = converted(endpoint_form.settings_of(given), EndpointSettings)
        fields = endpoint_form.topic_fields_of(given, None)
        made = await screen.service.endpoints.create(tenant, settings, screen.visitor.actor, fields)
    except Refused as exc:
        return await _form(screen, of, None, given, str(exc))
    return _once(screen, of, made, "The endpoint is there.")


@router.get("/tenants/{tenant}/endpoints/{endpoint}/edit")
async def ask_change(tenant: str, endpoint: str, screen: View) -> Response:
    of, found = await _managed(screen, tenant), await screen.service.endpoints.get(tenant, endpoint)
    return await _form(screen, of, found, endpoint_form.typed(found))


@router.post("/tenants/{tenant}/endpoints/{endpoint}/edit")
async def change(tenant: str, endpoint: str, screen: View) -> Response:
    form, of = await screen.form(), await _managed(screen, tenant)
    given, found = endpoint_form.sent(form), await screen.service.endpoints.get(tenant, endpoint)
    try:
        if "preview" in form:
            return await _form(screen, of, found, given, preview=await _preview(screen, of, given))
        asked, fields = endpoint_form.settings_of(given), endpoint_form.topic_fields_of(given, found.template)
        shown = endpoint_form.settings_of(endpoint_form.sent(endpoint_form.typed(found)._asdict()))
        changed = {name: value for name, value in asked.items() if value != shown[name]}
        version = form.get("version", "")
        expected = int(version) if version.isdecimal() and len(version) < MOST_DIGITS else 0
        await screen.service.endpoints.change(tenant, endpoint, changed, screen.visitor.actor, fields, expected)
    except Refused as exc:
        return await _form(screen, of, found, given, str(exc))
    return screen.go(_path(tenant, endpoint, "endpoint"))


async def _preview(screen: Screen, of: Subject, given: Typed) -> str:
    """Return what the endpoint of a form would get for the example of its first event type. Raises `Invalid`."""
    first = next(iter(given.event_types.split()), "")
    event_type = first if re.fullmatch(EVENT_TYPE[1:-1], first) else "example"
    template = endpoint_form.template_of(given)
    made = await examples.preview(screen.service, of.name, template, event_type)
    return endpoint_form.indented(msgspec.Raw(made))


async def _form(
    screen: Screen, of: Subject, endpoint: Endpoint | None, given: Typed, wrong: str = "", preview: str = ""
) -> Response:
    fields = endpoint_form.fields_of(given, of.topic.qps, endpoint.header_names if endpoint else ())
    types = await screen.service.event_types.all()
    status = 422 if wrong else 200
    context = {"of": of, "endpoint": endpoint, "fields": fields, "types": types, "wrong": wrong, "preview": preview}
    return screen.pages.answer(screen.request, "endpoint_form.html", status, visitor=screen.visitor, **context)


def _once(screen: Screen, of: Subject, made: Made, done: str) -> Response:
    """Return the page that shows a new secret, which no other page does."""
    return screen.answer("endpoint_secret.html", of=of, made=made, done=done)


# ------------------------------------------------------------------------------------------------------ one endpoint


@router.get("/tenants/{tenant}/endpoints/{endpoint}")
async def show(tenant: str, endpoint: str, screen: View, done: str = "") -> Response:
    of, service = await tenant_pages.subject(screen.service, screen.visitor, tenant), screen.service
    found = await service.endpoints.get(tenant, endpoint)
    page = await service.reading.deliveries(tenant, DeliveryFilter(endpoint=endpoint), DELIVERIES)
    names = {endpoint: found.settings.description or endpoint}
    context: dict[str, Any] = {
        "of": of,
        "endpoint": found,
        "log": await service.polling.state(tenant, endpoint),
        "row": await tenant_screen.endpoint_row(service, found),
        "list": tenant_pages.DeliveryList([*page.rows], names, "", "", ""),
        "types": [each.name for each in await service.event_types.all()],
        "done": changes.DONE.get(done, ""),
    }
    return screen.answer("endpoint.html", **context)


@router.post("/tenants/{tenant}/endpoints/{endpoint}/example")
async def send_example(tenant: str, endpoint: str, screen: View) -> Response:
    """Send an example, and go to its delivery, which shows the answer."""
    form = await screen.form()
    await _managed(screen, tenant)
    event_type = form.get("event_type", "").strip() or "example"
    if not re.fullmatch(EVENT_TYPE[1:-1], event_type) or len(event_type) > 128:
        raise Invalid("invalid_request", f"{event_type[:40]!r} is not an event type, such as order.paid.")
    receipt, _ = await examples.send(screen.service, tenant, endpoint, event_type)
    return screen.go(f"/tenants/{segment(tenant)}/deliveries/{segment(receipt.deliveries[0])}?done=example")


# --------------------------------------------------------------------------------------------------------- two steps


@router.get("/tenants/{tenant}/endpoints/{endpoint}/secret")
async def ask_secret(tenant: str, endpoint: str, screen: View, hours: str = "") -> Response:
    of, found = await _managed(screen, tenant), await screen.service.endpoints.get(tenant, endpoint)
    asked, wrong = number_in(hours or "24"), ""
    if not 0 <= asked <= MOST_HOURS:
        wrong = f"Hours are a number from 0 to {MOST_HOURS}, not {hours[:40]!r}."
    title, action = f"New secret of {_name(found)}", f"endpoints/{segment(endpoint)}/secret"
    if not hours or wrong:
        field = Field("hours", "Hours with both signatures", hours or "24", "number", required=True)
        lines = ["Receivers check deliveries with the secret. For a while, deliveries have the signatures of both."]
        step = Change(title, action, lines, "Go on", fields=[field], wrong=wrong)
    else:
        ends = f"The old one ends in {hours} hours." if asked else "The old one ends now."
        lines = [f"Deliveries are signed with a new secret, which the next page shows once. {ends}"]
        step = Change(title, action, lines, "Make a new secret", {"hours": hours}, confirms=True, grave=not asked)
    return screen.answer("change.html", of=of, change=step)


@router.post("/tenants/{tenant}/endpoints/{endpoint}/secret")
async def make_secret(tenant: str, endpoint: str, screen: View) -> Response:
    form, of = await screen.form(), await _managed(screen, tenant)
    hours = number_in(form.get("hours", ""))
    if not 0 <= hours <= MOST_HOURS:
        raise Invalid("invalid_request", f"Hours are a number from 0 to {MOST_HOURS}.")
    actor, overlap_s = screen.visitor.actor, hours * HOUR_S
    made = await screen.service.endpoints.rotate_secret(tenant, endpoint, actor, overlap_s=overlap_s)
    return _once(screen, of, made, "Deliveries have the signature of the new secret.")


@router.get("/tenants/{tenant}/endpoints/{endpoint}/delete")
async def ask_delete(tenant: str, endpoint: str, screen: View) -> Response:
    lines = ["It gets nothing more. Deliveries that wait are cancelled; those that are over stay in the list."]
    return await _confirmed(screen, tenant, endpoint, "Delete", "delete", lines, grave=True)


@router.post("/tenants/{tenant}/endpoints/{endpoint}/delete")
async def delete(tenant: str, endpoint: str, screen: View) -> Response:
    await screen.form()
    await _managed(screen, tenant)
    await screen.service.endpoints.delete(tenant, endpoint, screen.visitor.actor)
    return changes.back(screen, tenant, "endpoint_gone")


@router.get("/tenants/{tenant}/endpoints/{endpoint}/enable")
async def ask_enable(tenant: str, endpoint: str, screen: View) -> Response:
    lines = ["Deliveries that wait are sent again, in their order, at its rate."]
    return await _confirmed(screen, tenant, endpoint, "Enable", "enable", lines)


@router.post("/tenants/{tenant}/endpoints/{endpoint}/enable")
async def enable(tenant: str, endpoint: str, screen: View) -> Response:
    await screen.form()
    await _managed(screen, tenant)
    await screen.service.endpoints.set_disabled(tenant, endpoint, "", screen.visitor.actor)
    return screen.go(_path(tenant, endpoint, "enabled"))


async def _confirmed(
    screen: Screen, tenant: str, endpoint: str, button: str, action: str, lines: Sequence[str], *, grave: bool = False
) -> Response:
    of, found = await _managed(screen, tenant), await screen.service.endpoints.get(tenant, endpoint)
    path = f"endpoints/{segment(endpoint)}/{action}"
    step = Change(f"{button} {_name(found)}", path, lines, button, confirms=True, grave=grave)
    return screen.answer("change.html", of=of, change=step)


def _name(endpoint: Endpoint) -> str:
    return endpoint.settings.description or endpoint.id
