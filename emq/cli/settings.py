"""`emq settings`: the settings in force."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from emq.cli import output
from emq.cli.session import Session


def settings(
    session: Session,
    defaults: Annotated[bool, typer.Option("--defaults", help="Print a commented file with the defaults.")] = False,
) -> None:
    """Show the settings in force: command line, then EMQ_ variables, then the settings file, then defaults."""
    from emq import settings as module
    from emq.storage.opening import hide_password

    if defaults:
        typer.echo(module.defaults_file())
        return
    values: dict[str, Any] = msgspec.to_builtins(session.settings)
    values["database"] = session.settings.database_url
    shown = {name: hide_password(value) if isinstance(value, str) else value for name, value in values.items()}
    rows = [(name, value if value != "" else "-", module.DESCRIPTIONS[name]) for name, value in shown.items()]
    session.show(shown, lambda: output.table("", ("setting", "value", "what it is"), rows))
