"""What the Spark tools add to EMQ: their commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emq.runtime.extending import Extension

if TYPE_CHECKING:
    import typer


class SparkTools(Extension):
    """See `emq.runtime.extending.Extension`."""

    def add_commands(self, root: typer.Typer) -> None:
        from emq_cli.entry import Command
        from emq_cli.session import command
        from emq_spark.cli import audit, load, trial

        command(root, "audit")(audit.audit)
        command(root, "load")(load.load)
        root.command("trial", cls=Command)(trial.trial)
