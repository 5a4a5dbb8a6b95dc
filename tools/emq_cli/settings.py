"""`emq settings`: the settings in force."""

from __future__ import annotations

from typing import Annotated

import typer

from emq_cli import output
from emq_cli.session import Session


def settings(
    session: Session,
    defaults: Annotated[
        bool, typer.Option("--defaults", help="Print a settings file with all defaults, commented out.")
    ] = False,
) -> None:
    """Show every setting with its value and meaning.

    Settings come from command options, then EMQ_ environment variables, then the settings file, then the defaults.

    Example: emq settings --defaults > emq.toml
    """
    from emq.runtime import settings as module

    if defaults:
        typer.echo(module.defaults_file())
        return
    shown = module.shown(session.settings)
    rows = [(name, _in_words(value), module.DESCRIPTIONS[name]) for name, value in shown.items()]
    session.show(shown, lambda: output.table("", ("setting", "value", "meaning"), rows))


def _in_words(value: str | float) -> str | float:
    """Return a value as the settings file writes it; a hyphen for an empty text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "-" if value == "" else value
