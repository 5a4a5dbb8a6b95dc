"""The extension of resource scheduling: its commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emq.extending import Extension

if TYPE_CHECKING:
    import typer


class ResourceScheduling(Extension):
    """See `emq.extending.Extension`."""

    def add_commands(self, root: typer.Typer) -> None:
        from emq_scheduling.cli import scheduling

        root.add_typer(scheduling.app, name="scheduling")
