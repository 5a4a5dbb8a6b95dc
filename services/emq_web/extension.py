"""The extension of the API: it is served beside a host, and has commands."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from emq.runtime.extending import Extension

if TYPE_CHECKING:
    import typer

    from emq import App

log = logging.getLogger("emq")


class Web(Extension):
    """See `emq.runtime.extending.Extension`."""

    @contextlib.asynccontextmanager
    async def serving(self, app: App) -> AsyncIterator[None]:
        if not app.settings.api:
            yield
            return
        from emq.runtime.settings import address
        from emq_cli.extras import needing

        with needing("the HTTP API", "api"):
            from emq_web import serving
        async with serving.serving(app, address(app.settings.api, "api")) as where:
            log.info("serving the API at http://%s", where)
            yield

    def add_commands(self, root: typer.Typer) -> None:
        from emq_web.cli import api

        root.add_typer(api.app, name="api")
