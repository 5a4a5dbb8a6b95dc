"""`emq run`: be a host for the app of a module, for development."""

from __future__ import annotations

from typing import Annotated

import typer

from emq.cli.log_options import LogFormat, LogLevel
from emq.cli.metrics_option import Metrics
from emq.cli.session import Session


def run(
    session: Session,
    handlers: Annotated[
        str, typer.Argument(metavar="MODULE[:ATTRIBUTE]", help="The emq.App to run, such as shop.handlers:app.")
    ],
    reload: Annotated[
        bool, typer.Option("--reload", help="Start again whenever a Python file below this directory changes.")
    ] = False,
    metrics: Metrics = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    child: Annotated[bool, typer.Option("--child", hidden=True, help="Stop with the process that started it.")] = False,
) -> None:
    """Run an app while you develop it: consume until Ctrl-C, in one process.

    This is `emq up --app`. With --reload, a module that cannot be imported is shown, and tried again when a file
    changes; messages in flight get a second to end, and the others are delivered again.

    Example: emq run shop.handlers --reload
    """
    from emq.cli import consuming

    session = session.with_overrides(app=handlers, metrics=metrics, log_level=log_level, log_format=log_format)
    if not reload:
        consuming.run(session, child=child, api=True)
        return
    from emq.cli.extras import needing

    with needing("--reload", "reload"):
        from emq.cli import reloading
    reloading.run(session)
