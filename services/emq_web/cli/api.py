"""`emq api`: serve the HTTP API of the push service, and make keys for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from emq.runtime import plurals
from emq_cli import output
from emq_cli.arguments import LOGGING, Yes
from emq_cli.entry import Room
from emq_cli.extras import needing
from emq_cli.session import ACTOR, Session, command
from emq_push.cli.push import opened_service

if TYPE_CHECKING:
    from emq_push.records.keys import Key


class ServesByItself(Room):
    """The group `emq api`: without the name of a command in it, it serves."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["serve", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=ServesByItself,
    help="Serve the HTTP API of the push service and of pools, and make keys for it.",
    pretty_exceptions_enable=False,
)


keys = typer.Typer(cls=Room, help="Make, list and delete bearer keys for the API.")


def serve(
    session: Session,
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="HOST:PORT", help="Serve there; :PORT for all addresses. (default: 127.0.0.1:8080)"
        ),
    ] = None,
) -> None:
    """Serve the API in a process of its own until Ctrl-C or SIGTERM. Hosts deliver what it takes.

    Needs a store that several processes can share: redis:// or postgresql://. With any other store, use emq up --api.

    Example: emq api --store redis://localhost --database postgresql://localhost/emq
    """
    with needing("the HTTP API", "api"):
        from emq_web.cli import serving_api
    serving_api.run(session.with_overrides(api=at))


async def create_key(
    session: Session,
    role: Annotated[
        Literal["admin", "submit", "read", "send", "poll", "manage"], typer.Option(help="What the key may do.")
    ] = "admin",
    tenant: Annotated[str, typer.Option(help="The tenant of the key; none for admin and submit.")] = "",
    name: Annotated[str, typer.Option(help="For people, such as who has the key.")] = "",
) -> None:
    """Make a bearer key and print it. Nothing shows it again: the database has its hash alone.

    Example: emq api key create --name ops
    """
    async with opened_service(session, create=True) as (_, service):
        key, text = await service.keys.create(role, ACTOR, tenant=tenant, name=name[:200])
    session.say(text, {"id": key.id, "role": key.role, "tenant": key.tenant, "name": key.name, "key": text})


async def list_keys(
    session: Session,
    tenant: Annotated[str | None, typer.Option(help="Only keys of this tenant. (default: all keys)")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Most lines to list.")] = 100,
) -> None:
    """List bearer keys in the order of their making, with the sessions of people who are signed in to the dashboard.

    Example: emq api key list --tenant acme
    """
    async with opened_service(session) as (opened, service):
        page = await service.keys.page(limit, "", tenant)
        now_us = opened.clock.now_us()
    rows = [_row(key, now_us) for key in page.rows]
    data = [
        {
            "id": key.id,
            "kind": key.kind,
            "role": key.role,
            "tenant": key.tenant,
            "name": key.name,
            "made_by": key.parent,
            **_times(key),
        }
        for key in page.rows
    ]
    made = output.zoned("made", (key.created_us / 1000 for key in page.rows))
    columns = ("key", "kind", "role", "tenant", "name", "made by", made, "ends")
    more = "these are the first; --limit shows more" if page.next else ""
    empty = f"no keys in the {opened.place}"
    session.page(data, lambda: output.table("", columns, rows), none=empty, more=more)


async def delete_key(
    session: Session,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Its id, as `emq api key list` has it: key_...")],
    keep_made: Annotated[
        bool, typer.Option("--keep-made", help="Keep the keys that it made: delete this one alone, to replace it.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Delete a bearer key, with all keys that it made. It signs out who came with them.

    Processes that serve the API take the keys for a second more.

    Example: emq api key delete key_0660f39739c8a50000atHA3ho0C
    """
    async with opened_service(session) as (_, service):
        them = "it" if keep_made else "it, or a key that it made,"
        session.confirm(f"Delete key {key}? Who uses {them} is refused from then on.", yes)
        gone = await service.keys.delete(key, ACTOR, keep_made=keep_made)
    made = [each.id for each in gone[1:] if each.kind == "key"]
    more = f", and {plurals.count(len(made), 'key')} that it made" if made else ""
    session.say(f"deleted {key}{more}", {"id": key, "with": made})


def _row(key: Key, now_us: int) -> tuple[str, ...]:
    ends = "never" if not key.expires_us else output.when_briefly(key.expires_us / 1000)
    if 0 < key.expires_us <= now_us:
        ends = "has ended"
    made = output.when_briefly(key.created_us / 1000)
    return (key.id, key.kind, key.role, key.tenant, key.name, key.parent, made, ends)


def _times(key: Key) -> dict[str, float | None]:
    return {"created": key.created_us / 1e6, "expires": key.expires_us / 1e6 if key.expires_us else None}


command(app, "serve", json=False, endless=True, settings=LOGGING)(serve)
command(keys, "create")(create_key)
command(keys, "list")(list_keys)
command(keys, "delete")(delete_key)
app.add_typer(keys, name="key")
