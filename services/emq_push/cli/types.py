"""`emq push types`: the catalogue of event types, straight in the database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from emq.runtime import documents, errors
from emq_cli import output
from emq_cli.arguments import Yes
from emq_cli.entry import Room
from emq_cli.session import ACTOR, Session, command, print_json
from emq_push.cli.push import Limit, opened_service

if TYPE_CHECKING:
    from emq_push.records.event_types import EventType, Head

app = typer.Typer(cls=Room, help="Work with the catalogue of event types, from which tenants choose.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Such as order.paid.", show_default=False)]
Check = Literal["off", "known", "strict"]


@command(app, "list")
async def list_(session: Session, limit: Limit = 50) -> None:
    """List event types by name.

    Example: emq push types list --limit 200
    """
    async with opened_service(session) as (opened, service):
        page = await service.event_types.page(limit)
    rows = [
        (each.name, each.newest, _checked(each), "archived" if each.archived else "", each.description)
        for each in page.rows
    ]
    columns = ("type", "schema", "checked", "state", "description")
    below = "these are the first; --limit shows more" if page.next else ""
    empty = f"no event types in the {opened.place}"
    session.page([_data(each) for each in page.rows], lambda: output.table("", columns, rows), none=empty, more=below)


@command(app, "show")
async def show(session: Session, name: Name) -> None:
    """Show an event type with its schemas and its example, as JSON.

    Example: emq push types show order.paid
    """
    async with opened_service(session) as (_, service):
        found = await service.event_types.get(name)
    print_json(_data(found) | {"schemas": found.schemas, "example": found.example})


@command(app, "set")
async def set_(
    session: Session,
    name: Name,
    description: Annotated[str | None, typer.Option(help="For people.", show_default=False)] = None,
    schema: Annotated[str, typer.Option(metavar="FILE", help="A file with a JSON Schema of payloads.")] = "",
    version: Annotated[
        int | None, typer.Option(min=1, max=999_999, help="Version of the schema. (default: the newest one, else 1)")
    ] = None,
    example: Annotated[str, typer.Option(metavar="FILE", help="A file with a payload as JSON.")] = "",
    check: Annotated[
        bool | None,
        typer.Option("--check/--no-check", help="Whether payloads must fit. (default: as it is)", show_default=False),
    ] = None,
) -> None:
    """Create an event type, or change what is given.

    Example: emq push types set order.paid --schema order.json --example paid.json
    """
    changes: dict[str, Any] = {"description": description, "checked": check}
    changes = {each: value for each, value in changes.items() if value is not None}
    if example:
        changes["example"] = _json("--example", example)
    if version is not None and not schema:
        raise errors.InvalidMessage("--version is that of a schema; give --schema, too")
    async with opened_service(session, create=True) as (_, service):
        if schema:
            there = await service.event_types.find(name)
            number = version or (there.newest if there else "") or 1
            changes["schemas"] = {str(number): _json("--schema", schema)}
        change = service.event_types.change
        found, is_new = await change(name, changes, ACTOR, creates=True, merges=True)
    session.say(f"event type {name!r}: {'created' if is_new else 'changed'}", _data(found) | {"created": is_new})


@command(app, "archive")
async def archive(
    session: Session,
    name: Name,
    undo: Annotated[bool, typer.Option("--undo", help="Offer it again.")] = False,
) -> None:
    """Offer an event type to tenants no more. Its messages are taken and delivered as before.

    Example: emq push types archive order.paid
    """
    async with opened_service(session) as (_, service):
        found, _ = await service.event_types.change(name, {"archived": not undo}, ACTOR)
    session.say(f"event type {name!r}: {'offered again' if undo else 'archived'}", _data(found))


@command(app, "delete")
async def delete(session: Session, name: Name, yes: Yes = False) -> None:
    """Delete an event type. Archive it instead if tenants have chosen it.

    Example: emq push types delete order.paid --yes
    """
    async with opened_service(session) as (_, service):
        await service.event_types.get(name)
        session.confirm(f"Delete event type {name!r} with its schemas?", yes)
        await service.event_types.delete(name, ACTOR)
    session.say(f"deleted event type {name!r}", {"deleted": name})


@command(app, "check")
async def check(
    session: Session,
    mode: Annotated[
        Check | None,
        typer.Argument(metavar="[MODE]", help="off, known or strict. (default: show it)", show_default=False),
    ] = None,
) -> None:
    """Show or set how strictly messages are checked.

    off: not at all; known: payloads must fit the schema of their type, if it has one; strict: event types that are not
    in the catalogue are refused, too.

    Example: emq push types check known
    """
    async with opened_service(session, create=mode is not None) as (_, service):
        found = await (service.event_types.change_all({"check": mode}, ACTOR) if mode else service.event_types.of_all())
    session.say(f"check: {found.settings.check}", {"check": found.settings.check})


def _checked(head: Head) -> str:
    return "" if head.checked is None else "yes" if head.checked else "no"


def _data(found: Head | EventType) -> dict[str, Any]:
    fields = ("name", "description", "versions", "checked", "archived")
    return {each: getattr(found, each) for each in fields}


def _json(option: str, file: str) -> Any:
    """Return what a file has as JSON. Raises `InvalidMessage`."""
    try:
        return documents.parsed(Path(file).read_text("utf-8-sig"), "json", file, errors.InvalidMessage)
    except (OSError, UnicodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is not text"
        raise errors.InvalidMessage(f"{option} {file!r} cannot be read: {why}") from None
