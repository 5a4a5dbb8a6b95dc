"""The search among a tenant's deliveries: by message, key, endpoint, state, answer, event type and time."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from starlette.responses import Response

from emq_push.service.reading import DeliveryFilter
from emq_push.service.refusals import Invalid, Refused
from emq_push.service.states import State
from emq_web.pages import tenant_pages, tenant_screen
from emq_web.pages.changes import Field, number_in, time_in
from emq_web.pages.routing import View, new_router
from emq_web.pages.tenant_pages import DeliveryList

ROWS = 50
"""Deliveries on a page."""

router = new_router()


@router.get("/tenants/{tenant}/find")
async def find(tenant: str, screen: View, cursor: str = "") -> Response:
    of = await tenant_pages.subject(screen.service, screen.visitor, tenant)
    given = {name: text.strip() for name, text in screen.request.query_params.items() if name != "cursor"}
    names, found, wrong = await tenant_screen.endpoint_names(screen.service, of), None, ""
    if given:
        try:
            page = await screen.service.reading.deliveries(tenant, _filter(given), ROWS, cursor)
            found = DeliveryList([*page.rows], names, "", cursor, page.next)
        except Refused as exc:
            wrong = str(exc)
    return screen.answer(
        "delivery_search.html", of=of, fields=_fields(given, names), list=found, wrong=wrong, query=urlencode(given)
    )


def _fields(given: Mapping[str, str], endpoints: Mapping[str, str]) -> list[Field]:
    def field(name: str, label: str, type_: str = "text", hint: str = "") -> Field:
        return Field(name, label, given.get(name, ""), type_, hint)

    states = [("", "all"), *((state.value, state.value.replace("_", " ")) for state in State)]
    return [
        field("message", "Message id"),
        field("key", "Key of the message"),
        Field("endpoint", "Endpoint", given.get("endpoint", ""), choices=[("", "all"), *endpoints.items()]),
        Field("state", "State", given.get("state", ""), choices=states),
        field("status", "Status of the last answer", "number"),
        field("event_types", "Event types", hint="With spaces between; order.* for all below order."),
        field("since", "Accepted from (UTC)", "datetime-local"),
        field("until", "Accepted before (UTC)", "datetime-local"),
    ]


def _filter(given: Mapping[str, str]) -> DeliveryFilter:
    """Return what somebody asks for. Raises `Invalid`."""
    status = given.get("status", "")
    if status and not 100 <= number_in(status) <= 599:
        raise Invalid("invalid_request", f"A status is a number from 100 to 599, not {status[:40]!r}.")
    return DeliveryFilter(
        state=tenant_pages.state_in(given.get("state", "")),
        endpoint=given.get("endpoint", ""),
        event_types=tuple(given.get("event_types", "").split()),
        since_us=time_in(given.get("since", ""), 0),
        until_us=time_in(given.get("until", ""), 1 << 62),
        message=given.get("message", ""),
        key=given.get("key", ""),
        status=int(number_in(status)) if status else 0,
    )
