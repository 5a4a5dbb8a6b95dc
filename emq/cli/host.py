"""`emq up` and `emq host`: be a host until told to stop."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from emq.cli.session import Session

Handlers = Annotated[
    str | None, typer.Option("--app", metavar="MODULE[:ATTRIBUTE]", help="An emq.App whose handlers are used.")
]


def up(session: Session, handlers: Handlers = None) -> None:
    """Run everything in one process: consume until Ctrl-C or SIGTERM, then stop cleanly.

    Topics go to the handlers of --app; what these leave is pushed over HTTP, where a topic has a push.url.
    """
    from emq.cli import consuming

    consuming.run(_with_app(session, handlers))


def host(
    session: Session,
    handlers: Handlers = None,
    processes: Annotated[int, typer.Option(min=1, help="Host processes; more than one needs a shared store.")] = 1,
    member: Annotated[str | None, typer.Option(hidden=True, help="I/N: one of N processes of a parent.")] = None,
) -> None:
    """Be a host, with one or several processes, until Ctrl-C or SIGTERM; then stop cleanly.

    Several processes divide the groups among themselves; one that dies is started again. With --cluster, each process
    is a member of its own: HOST-0, HOST-1 and so on, HOST being the setting host_name.
    """
    from emq.cli import consuming

    if processes == 1:
        consuming.run(_with_app(session, handlers), member)
    else:
        consuming.run_many(_with_app(session, handlers), processes)


def _with_app(session: Session, handlers: str | None) -> Session:
    return dataclasses.replace(session, overrides={**session.overrides, "app": handlers})
