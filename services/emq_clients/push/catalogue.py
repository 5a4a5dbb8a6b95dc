"""The catalogue of event types, as plain functions that build requests; both clients have them as methods.

Changes need a key of the role `admin`. Arguments that are left out keep their values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict, Unpack

import msgspec

from emq_clients.push import answers
from emq_clients.requests import Page, Paging, Request, path


class EventTypeFields(TypedDict, total=False):
    """The settings of an event type.

    Attributes:
        description: for people.
        schemas: JSON Schemas by version, such as {"1": {...}}. A PUT has all versions. A PATCH changes those that it
            names; None removes one.
        example: a payload; None for none.
        checked: whether payloads must fit; None for what the catalogue's settings say.
        archived: not offered any more.
    """

    description: str
    schemas: Mapping[str, Mapping[str, Any] | None]
    example: Any
    checked: bool | None
    archived: bool


def put_event_type(name: str, **settings: Unpack[EventTypeFields]) -> Request[answers.EventType]:
    """Create an event type, or change it; what is left out keeps its value, or gets its default in a new one."""
    content = msgspec.json.encode(settings)
    return Request("PUT", path("event-types", name), answers.EventType, content)


def change_event_type(name: str, **settings: Unpack[EventTypeFields]) -> Request[answers.EventType]:
    """Change settings of an event type that exists."""
    content = msgspec.json.encode(settings)
    return Request("PATCH", path("event-types", name), answers.EventType, content)


def event_type(name: str) -> Request[answers.EventType]:
    """Return an event type with its schemas and its example."""
    return Request("GET", path("event-types", name), answers.EventType)


def event_types(**paging: Unpack[Paging]) -> Request[Page[answers.EventType]]:
    """Return a page of event types by name, without schemas and examples."""
    return Request("GET", path("event-types", **paging), Page[answers.EventType])


def delete_event_type(name: str) -> Request[None]:
    """Delete an event type; archive it instead if tenants have chosen it."""
    return Request("DELETE", path("event-types", name), type(None))


def event_type_settings() -> Request[answers.CatalogueSettings]:
    """Return how strictly messages are checked."""
    return Request("GET", path("event-type-settings"), answers.CatalogueSettings)


def change_event_type_settings(*, check: Literal["off", "known", "strict"]) -> Request[answers.CatalogueSettings]:
    """Change how strictly messages are checked; see `CatalogueSettings`."""
    content = msgspec.json.encode({"check": check})
    return Request("PATCH", path("event-type-settings"), answers.CatalogueSettings, content)
