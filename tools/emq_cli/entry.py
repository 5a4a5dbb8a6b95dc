"""How `emq` takes its arguments: an error of usage is one line."""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from emq_cli import exit_codes

_WrongUsage: type[Exception] = typer.BadParameter.__bases__[0]
"""Click's `UsageError`; some versions of Typer bring a Click of their own, so it has no one place to import from."""

LONG_WORD, SHOWN = 200, 60
"""An error shows only the first `SHOWN` characters of a word that is longer than `LONG_WORD`."""


class Room(TyperGroup):
    """A group of commands. Without a command it shows its help, and exits as after wrong usage."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), nl=False)
            raise typer.Exit(exit_codes.WRONG)
        return super().parse_args(ctx, args)


class Entry(Room):
    """The group of all commands. Each of its errors is one line, as EMQ's own are, not a frame of several lines."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a command. Raises `SystemExit` with 0 or one of `emq_cli.exit_codes`."""
        try:
            code = super().main(*args, **{**options, "standalone_mode": False})
        except _WrongUsage as exc:
            typer.echo(_explained(exc), err=True)
            code = exit_codes.WRONG
        except typer.Abort:
            typer.echo("emq: interrupted", err=True)
            code = exit_codes.INTERRUPTED
        sys.exit(code if isinstance(code, int) else 0)


class Command(TyperCommand):
    """A command. Errors of usage name the command, whether its function or the parser finds them."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _WrongUsage as exc:
            if getattr(exc, "ctx", None) is None:
                exc.ctx = ctx  # type: ignore[attr-defined]
            raise


def one_line(text: str) -> str:
    """Return an error's text as one line; shorten very long words, such as a wrong value."""
    return " ".join(word if len(word) <= LONG_WORD else f"{word[:SHOWN]}..." for word in text.split())


def _explained(exc: Any) -> str:
    """Return one line: the error, and the command that shows the right usage."""
    # With some versions of Typer, the text contains pydantic's "Value error".
    text = one_line(exc.format_message()).rstrip(".").replace(": Value error, ", ": ", 1)
    context = getattr(exc, "ctx", None)
    path = "emq" if context is None else context.command_path
    return f"emq: {text[:1].lower()}{text[1:]}; see: {path} --help"
