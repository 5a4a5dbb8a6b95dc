"""The extension of resource scheduling: its tables, its commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emq.runtime.extending import Extension

if TYPE_CHECKING:
    import typer

    from emq import App


class ResourceScheduling(Extension):
    """See `emq.runtime.extending.Extension`."""

    async def set_up(self, app: App) -> None:
        from emq_scheduling.database import schema

        await schema.ensure(app.database)

    def add_commands(self, root: typer.Typer) -> None:
        from emq_scheduling.cli import scheduling

        root.add_typer(scheduling.app, name="scheduling")
