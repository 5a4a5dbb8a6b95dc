"""What the demonstration adds to EMQ: its command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emq.runtime.extending import Extension

if TYPE_CHECKING:
    import typer


class Demonstration(Extension):
    """See `emq.runtime.extending.Extension`."""

    def add_commands(self, root: typer.Typer) -> None:
        from emq_cli.entry import Command
        from emq_demo import cli

        root.command("demo", cls=Command)(cli.demo)
