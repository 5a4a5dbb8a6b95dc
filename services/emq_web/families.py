"""`/v1/families`: settings for all topics below a prefix."""

from __future__ import annotations

from typing import Annotated

import fastapi
import msgspec

from emq.topics.family_rows import Stored
from emq.topics.model import State
from emq.topics.rules import MAX_NAME_BYTES
from emq_clients.push import answers
from emq_clients.requests import Page
from emq_push.records import cursors
from emq_web import access, family_desk, forms, models, versions
from emq_web.family_desk import SETTINGS, FamilyDesk
from emq_web.scheduling import schemas

router = models.Router(prefix="/v1/families", tags=["families"])

Name = Annotated[str, fastapi.Path(max_length=MAX_NAME_BYTES, description="a prefix and a star, such as `orders.*`")]


async def _desk(family: Name, of: access.Admin, version: versions.Version) -> FamilyDesk:
    return FamilyDesk(of.service.parts, family, of.actor, version)


Desk = Annotated[FamilyDesk, fastapi.Depends(_desk)]


def shown(stored: Stored) -> answers.Family:
    """Return a family as answers show it."""
    family = stored.family
    return answers.Family(
        name=family.name,
        version=family_desk.version_of(family),
        state=family.topic.state.value,
        topics=stored.live,
        settings=msgspec.to_builtins(family_desk.settings_of(family_desk.without_secrets(family))),
    )


def _tagged(stored: Stored, response: fastapi.Response) -> answers.Family:
    answer = shown(stored)
    versions.tag(response, answer.version)
    return answer


@router.get("")
async def list_families(of: access.Admin, at: forms.ListAt) -> Page[answers.Family]:
    """List families by name."""
    after = str(cursors.decode(at.cursor, str)[0]) if at.cursor else ""
    there = await of.service.parts.app.catalog.families.all()
    names = sorted(name for name in there if name > after)
    found = cursors.page(names, at.limit, lambda name: (name,))
    return Page(data=[shown(there[name]) for name in found.rows], next=found.next or None)


@router.post("", status_code=201, openapi_extra=schemas.body(schemas.of(SETTINGS)))
async def create_family(of: access.Admin, request: fastapi.Request, response: fastapi.Response) -> answers.Family:
    """Create a family. Safe to repeat: the same settings again change nothing, and others are refused."""
    given = family_desk.read(await schemas.read(request))
    desk = FamilyDesk(of.service.parts, given.pop("name"), of.actor)
    return _tagged(await desk.create(given), response)


@router.get("/{family}")
async def get_family(desk: Desk, response: fastapi.Response) -> answers.Family:
    """Show a family. The ETag of the answer is for `If-Match`."""
    return _tagged(await desk.get(), response)


@router.patch("/{family}", openapi_extra=schemas.body(schemas.of(SETTINGS, without=("name",), partial=True)))
async def change_family(
    family: Name, desk: Desk, request: fastapi.Request, response: fastapi.Response
) -> answers.Family:
    """Change a family by JSON Merge Patch, and at once all its topics in what is not their own.

    What the body leaves out stays; null gives a setting its default again, and removes an attribute. Priorities, kind,
    slots, merge and budget never change.
    """
    return _tagged(await desk.change(await schemas.read(request)), response)


@router.delete("/{family}", status_code=204, response_model=None)
async def delete_family(
    desk: Desk,
    force: Annotated[bool, fastapi.Query(description="delete its topics, too, with their messages")] = False,
) -> None:
    """Delete a family that has no topics."""
    await desk.delete(force=force)


@router.post("/{family}:pause")
async def pause_family(desk: Desk, response: fastapi.Response) -> answers.Family:
    """Stop consuming all topics of a family; publishing goes on."""
    return _tagged(await desk.set_state(State.PAUSED), response)


@router.post("/{family}:resume")
async def resume_family(desk: Desk, response: fastapi.Response) -> answers.Family:
    """Let all topics of a family publish and consume again. One that was paused by itself stays paused."""
    return _tagged(await desk.set_state(State.ACTIVE), response)


@router.post("/{family}:drain")
async def drain_family(desk: Desk, response: fastapi.Response) -> answers.Family:
    """Refuse new messages for all topics of a family, and make no new topics; hosts consume the rest."""
    return _tagged(await desk.set_state(State.DRAINING), response)
