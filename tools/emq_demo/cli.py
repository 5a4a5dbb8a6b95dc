"""`emq demo`: real traffic, trouble, and the proof that nothing was lost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from emq_cli import arguments, times
from emq_cli.extras import needing
from emq_cli.session import guard


def demo(
    store: Annotated[str, typer.Option(help="sqlite, memory or redis (a server is started for it).")] = "sqlite",
    seconds: Annotated[
        float,
        typer.Option(
            parser=times.spans(4, 600), metavar="SPAN", help="Time of replaying flights; set-up and proof come on top."
        ),
    ] = 36.0,
    days: Annotated[
        int | None,
        typer.Option(min=1, max=365, help="Days of flights in each half. (default: as many as --seconds allows)"),
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep store and trail in this new or empty directory.")
    ] = None,
    stay: Annotated[
        bool | None,
        typer.Option(
            "--stay/--end",
            help="After the run, deliver its remaining messages and serve its page, until Enter or Ctrl-C. "
            "(default: in "
            "a terminal, for at most 10 minutes)",
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Go on with a run that --keep kept, and serve its page, until Enter or Ctrl-C."
        ),
    ] = None,
    log_level: arguments.LogLevel = None,
    log_format: arguments.LogFormat = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Push real traffic of many tenants over HTTP, each at its own limit, and prove that no message was lost.

    The dashboard of the run is served at 127.0.0.1 meanwhile; the first and the last lines name the address.
    """
    if store not in ("sqlite", "memory", "redis"):
        raise typer.BadParameter(f"{store!r} is not known; choose sqlite, memory or redis", param_hint="--store")

    if as_json and stay:
        raise typer.BadParameter("a page is not served with --json", param_hint="--stay")

    def run() -> None:
        from emq_cli import logs

        level = log_level or "error"
        logs.configure(level, log_format or "text")
        with needing("the demo", "demo"):
            from emq_demo import run as module
        if resume is not None:
            raise typer.Exit(module.resume(resume, log_level=level))
        status = module.main(
            store=store, json=as_json, seconds=seconds, days=days, keep=keep, stay=stay, log_level=level
        )
        raise typer.Exit(status)

    guard(run)
