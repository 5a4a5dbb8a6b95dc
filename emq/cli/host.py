"""`emq up` and `emq host`: be a host until told to stop."""

from __future__ import annotations

from typing import Annotated

import typer

from emq.cli.log_options import LogFormat, LogLevel
from emq.cli.metrics_option import Metrics
from emq.cli.session import Session

Handlers = Annotated[
    str | None,
    typer.Option(
        "--app", metavar="MODULE[:ATTRIBUTE]", help="Use the handlers of this emq.App, such as shop.handlers."
    ),
]


def up(
    session: Session,
    handlers: Handlers = None,
    api: Annotated[
        str | None,
        typer.Option(
            "--api",
            metavar="HOST:PORT",
            help="Serve the HTTP API of the push service and of pools there, such as 127.0.0.1:8080.",
            show_default=False,
        ),
    ] = None,
    metrics: Metrics = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Run everything in one process: consume until Ctrl-C or SIGTERM, then stop cleanly.

    Topics go to the handlers of --app. Topics without a handler are pushed over HTTP if they have a push.url.

    Example: emq up --app shop.handlers
    """
    from emq.cli import consuming

    session = session.with_overrides(app=handlers, api=api, metrics=metrics, log_level=log_level, log_format=log_format)
    consuming.run(session, api=True)


def host(
    session: Session,
    handlers: Handlers = None,
    processes: Annotated[
        int, typer.Option(min=1, help="Number of host processes; several need redis:// or postgresql://.")
    ] = 1,
    metrics: Metrics = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    member: Annotated[str | None, typer.Option(hidden=True, help="I/N: one of N processes of a parent.")] = None,
) -> None:
    """Consume until Ctrl-C or SIGTERM, with one or several processes, then stop cleanly.

    Several processes divide the groups of all topics among themselves; one that dies is started again. Each process is
    a host of its own, named NAME-0, NAME-1 and so on; NAME is the setting host_name. With --metrics, the first process
    serves at PORT, the next one at PORT + 1, and so on.

    Example: emq host --app shop.handlers --processes 4 --store redis://localhost
    """
    from emq.cli import consuming

    session = session.with_overrides(app=handlers, metrics=metrics, log_level=log_level, log_format=log_format)
    if processes == 1:
        consuming.run(session, member)
    else:
        consuming.run_many(session, processes)
