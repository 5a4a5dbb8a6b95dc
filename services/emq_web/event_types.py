"""`/v1/event-types`: the catalogue from which tenants choose, one for all of them."""

from __future__ import annotations

from typing import Annotated, Any

import fastapi
import msgspec

from emq_clients.push import answers
from emq_clients.requests import Page
from emq_push.records.endpoints import EVENT_TYPE
from emq_push.records.event_types import CatalogueSettings, EventType, EventTypeSettings, Head
from emq_push.service.event_types import OfAll
from emq_web import access, forms, models, versions

router = models.Router(prefix="/v1", tags=["event types"])

Name = Annotated[str, fastapi.Path(max_length=128, pattern=EVENT_TYPE, description="such as `order.paid`")]
Settings = Annotated[dict[str, Any], models.body(EventTypeSettings, "EventTypeBody")]
Changes = Annotated[dict[str, Any], models.patch(EventTypeSettings, "EventTypeChanges")]
OfAllChanges = Annotated[dict[str, Any], models.patch(CatalogueSettings, "CatalogueChanges")]

models.answer(answers.EventType, "EventTypeShown", without=("schemas", "example"))
WHOLE = models.answer(answers.EventType, "EventTypeWhole")
models.answer(answers.CatalogueSettings, "CatalogueSettings")


def shown(head: Head) -> answers.EventType:
    return forms.shown(answers.EventType, head)


def _tagged(found: EventType, response: fastapi.Response) -> answers.EventType:
    versions.tag(response, found.changed_us)
    return shown(found)


def _all(found: OfAll, response: fastapi.Response) -> answers.CatalogueSettings:
    versions.tag(response, found.changed_us)
    return answers.CatalogueSettings(**msgspec.structs.asdict(found.settings))


@router.get("/event-types")
async def list_event_types(of: access.AnyReader, at: forms.ListAt) -> Page[answers.EventType]:
    """List event types by name, without schemas and examples."""
    return forms.page(await of.service.event_types.page(*at), shown)


@router.get("/event-types/{event_type}", response_model=WHOLE)
async def get_event_type(event_type: Name, of: access.AnyReader, response: fastapi.Response) -> answers.EventType:
    """Show an event type with its schemas and its example."""
    return _tagged(await of.service.event_types.get(event_type), response)


@router.put(
    "/event-types/{event_type}",
    response_model=WHOLE,
    responses={201: {"model": WHOLE, "description": "created"}},
)
async def put_event_type(
    event_type: Name, body: Settings, of: access.Admin, response: fastapi.Response, version: versions.Version
) -> answers.EventType:
    """Create an event type, or change it: settings that the body leaves out keep their values, or get their defaults.

    The service checks the schemas, and whether the example fits the newest one.
    """
    change = of.service.event_types.change
    found, is_new = await change(event_type, body, of.actor, creates=True, expected=version)
    response.status_code = 201 if is_new else 200
    return _tagged(found, response)


@router.patch("/event-types/{event_type}", response_model=WHOLE)
async def change_event_type(
    event_type: Name, body: Changes, of: access.Admin, response: fastapi.Response, version: versions.Version
) -> answers.EventType:
    """Change an event type by JSON Merge Patch: what the body leaves out stays, null gives the default again.

    `schemas` changes the versions that it names, each as a whole; null removes one. `example` is replaced as a whole.
    """
    change = of.service.event_types.change
    found, _ = await change(event_type, body, of.actor, merges=True, expected=version)
    return _tagged(found, response)


@router.delete("/event-types/{event_type}", status_code=204, response_model=None)
async def delete_event_type(event_type: Name, of: access.Admin, version: versions.Version) -> None:
    """Delete an event type. Archive it instead if tenants have chosen it: then only new endpoints do not see it."""
    await of.service.event_types.delete(event_type, of.actor, version)


@router.get("/event-type-settings")
async def get_event_type_settings(of: access.AnyReader, response: fastapi.Response) -> answers.CatalogueSettings:
    """Show how strictly messages are checked by the catalogue. The ETag changes with each change of the catalogue."""
    return _all(await of.service.event_types.of_all(), response)


@router.patch("/event-type-settings")
async def change_event_type_settings(
    body: OfAllChanges, of: access.Admin, response: fastapi.Response, version: versions.Version
) -> answers.CatalogueSettings:
    """Change how strictly messages are checked by the catalogue. Other processes follow within two seconds."""
    return _all(await of.service.event_types.change_all(body, of.actor, version), response)
