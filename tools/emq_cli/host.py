"""`emq up`, `emq host` and `emq run`: be a host until told to stop."""

from __future__ import annotations

from typing import Annotated

import typer

from emq_cli.session import Session


def up(session: Session) -> None:
    """Run everything in one process: consume until Ctrl-C or SIGTERM, then stop cleanly.

    Topics go to the handlers of --app. Topics without a handler are pushed over HTTP if they have a push.url.

    Example: emq up --app shop.handlers
    """
    from emq_cli import consuming

    consuming.run(session, api=True)


def host(
    session: Session,
    processes: Annotated[
        int, typer.Option(min=1, help="Number of host processes; several need redis:// or postgresql://.")
    ] = 1,
    member: Annotated[str | None, typer.Option(hidden=True, help="I/N: one of N processes of a parent.")] = None,
) -> None:
    """Consume until Ctrl-C or SIGTERM, with one or several processes, then stop cleanly.

    Several processes divide the groups of all topics among themselves; one that dies is started again. Each process is
    a host of its own, named NAME-0, NAME-1 and so on; NAME is the setting host_name. With --metrics, the first process
    serves at PORT, the next one at PORT + 1, and so on.

    Example: emq host --app shop.handlers --processes 4 --store redis://localhost
    """
    from emq_cli import consuming

    if processes == 1:
        consuming.run(session, member)
    else:
        consuming.run_many(session, processes)


def run(
    session: Session,
    handlers: Annotated[
        str, typer.Argument(metavar="MODULE[:ATTRIBUTE]", help="The emq.App to run, such as shop.handlers:app.")
    ],
    reload: Annotated[
        bool, typer.Option("--reload", help="Start again whenever a Python file below this directory changes.")
    ] = False,
    child: Annotated[bool, typer.Option("--child", hidden=True, help="Stop with the process that started it.")] = False,
) -> None:
    """Run an app while you develop it: consume until Ctrl-C, in one process.

    This is `emq up --app`. With --reload, a module that cannot be imported is shown, and tried again when a file
    changes; messages in flight get a second to end, and the others are delivered again.

    Example: emq run shop.handlers --reload
    """
    from emq_cli import consuming

    session = session.with_overrides(app=handlers)
    if not reload:
        consuming.run(session, child=child, api=True)
        return
    from emq_cli.extras import needing

    with needing("--reload", "reload"):
        from emq_cli import reloading
    reloading.run(session)
