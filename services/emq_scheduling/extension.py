"""The extension of resource scheduling: its commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emq.runtime.extending import Extension

if TYPE_CHECKING:
    import typer


class ResourceScheduling(Extension):
    """See `emq.runtime.extending.Extension`."""

    def add_commands(self, root: typer.Typer) -> None:
        from emq_scheduling.cli import scheduling

        root.add_typer(scheduling.app, name="scheduling")
