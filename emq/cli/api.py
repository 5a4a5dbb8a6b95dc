"""`emq api`: serve the HTTP API of the push service, and make keys for it."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import typer

from emq.cli.entry import Room
from emq.cli.extras import needing
from emq.cli.log_options import LogFormat, LogLevel
from emq.cli.session import Session, command


class ServesByItself(Room):
    """The group `emq api`: without the name of a command in it, it serves."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["serve", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=ServesByItself,
    help="Serve the HTTP API of the push service, and make keys for it.",
    pretty_exceptions_enable=False,
)


class Role(enum.StrEnum):
    """What the holder of a key may do."""

    ADMIN = "admin"
    SUBMIT = "submit"
    READ = "read"
    SEND = "send"
    MANAGE = "manage"


keys = typer.Typer(cls=Room, help="Make bearer keys for the API.")


def serve(
    session: Session,
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="HOST:PORT", help="Serve there; :PORT for all addresses. (default: 127.0.0.1:8080)"
        ),
    ] = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Serve the API in a process of its own until Ctrl-C or SIGTERM. Hosts deliver what it takes.

    Needs a store that several processes can share: redis:// or postgresql://. With any other store, use emq up --api.

    Example: emq api --store redis://localhost --database postgresql://localhost/emq
    """
    with needing("the HTTP API", "api"):
        from emq.cli import serving_api
    serving_api.run(session.with_overrides(api=at, log_level=log_level, log_format=log_format))


async def create_key(
    session: Session,
    role: Annotated[Role, typer.Option(help="What the key may do.")] = Role.ADMIN,
    tenant: Annotated[str, typer.Option(help="The tenant of the key; none for admin and submit.")] = "",
    name: Annotated[str, typer.Option(help="For people, such as who has the key.")] = "",
) -> None:
    """Make a bearer key and print it. Nothing shows it again: the database has its hash alone.

    Example: emq api key create --name ops
    """
    with needing("the push service", "push"):
        from emq.push.service.service import PushService
    async with session.app(create=True) as opened:
        service = await PushService.open(opened)
        key, text = await service.keys.create(role.value, "command line", tenant=tenant, name=name[:200])
    session.say(text, {"id": key.id, "role": key.role, "tenant": key.tenant, "name": key.name, "key": text})


command(app, "serve", json=False, endless=True)(serve)
command(keys, "create")(create_key)
app.add_typer(keys, name="key")
