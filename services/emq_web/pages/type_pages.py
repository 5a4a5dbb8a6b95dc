"""The catalogue of event types: all of them for operators, those that are offered for tenants, and each by itself."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import msgspec
from starlette.responses import Response

from emq_push.records.event_types import Head
from emq_web.pages.routing import View, new_router

router = new_router()


class Group(NamedTuple):
    """Event types whose names begin with the same word before a dot."""

    name: str
    types: list[Head]


@router.get("/event-types")
async def event_types(screen: View, find: str = "") -> Response:
    found, sees_all = find.strip()[:200], screen.visitor.sees_all
    there = await screen.service.event_types.all(archived=sees_all)
    wanted = found.casefold()
    shown = [each for each in there if wanted in f"{each.name} {each.description}".casefold()]
    shown.sort(key=lambda each: each.name.split("."))
    groups = [Group(name, [*types]) for name, types in itertools.groupby(shown, lambda each: each.name.split(".")[0])]
    check = (await screen.service.event_types.of_all()).settings.check
    return screen.answer("event_types.html", groups=groups, find=found, check=check)


@router.get("/event-types/{name}")
async def event_type(name: str, screen: View) -> Response:
    found = await screen.service.event_types.get(name)
    schemas = {version: _text(found.schemas[version]) for version in reversed(found.versions)}
    example = "" if found.example is None else _text(found.example)
    return screen.answer("event_type.html", it=found, schemas=schemas, example=example)


def _text(value: object) -> str:
    """Return JSON for people."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
