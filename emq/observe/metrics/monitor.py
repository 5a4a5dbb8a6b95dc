"""Serves `/metrics`, `/livez` and `/readyz` of an app."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from emq.groups.deliveries import HandlerDeliveries
from emq.observe.metrics import exposition, health, host_families
from emq.observe.metrics.server import PLAIN, Page, Server
from emq.observe.opened import Opened
from emq.runtime import errors, settings

log = logging.getLogger(__name__)

INDEX = """EMQ
/metrics          metrics in the text format of Prometheus
/livez            200 unless the process should be restarted
/readyz           200 if this host consumes; /readyz?verbose says what it lacks
"""


class Monitor:
    """Serves one app while it consumes, or longer, for a command that waits for the app's servers.

    Attributes:
        counts: True if hosts count their deliveries by handler: the setting `metrics` is given, or somebody reads them.
        address: where the pages are served now; None if they are not.
    """

    def __init__(self, app: Opened) -> None:
        self._app = app
        self._wanted = 0
        self._server: Server | None = None
        self._page: asyncio.Task[bytes] | None = None
        self.counts = False
        self.address: settings.Address | None = None

    def deliveries(self) -> HandlerDeliveries | None:
        """Return new counts for a host; None if nobody wants them."""
        return HandlerDeliveries() if self.counts or self._app.settings.metrics else None

    @contextlib.asynccontextmanager
    async def serving(self, process: int = 0) -> AsyncIterator[None]:
        """Serve for the length of a block, if the setting `metrics` is given. Blocks may lie within each other.

        Args:
            process: number of this process among those of one host; added to the port.

        Raises:
            InvalidSettings: the address is taken, or does not belong to this machine.
        """
        self._wanted += 1
        try:
            if self._wanted == 1 and self._app.settings.metrics:
                await self._start(process)
            yield
        finally:
            self._wanted -= 1
            if self._wanted == 0:
                await self._stop()

    async def _start(self, process: int) -> None:
        asked = settings.address(self._app.settings.metrics)
        if asked.port and asked.port + process > 65_535:
            raise errors.InvalidSettings(f"settings: metrics = '{asked}' leaves process {process} of this host no port")
        pages = {"/": self._index, "/metrics": self._metrics, "/livez": self._livez, "/readyz": self._readyz}
        server = Server(pages)
        self.address = await server.start(asked._replace(port=asked.port + process if asked.port else 0))
        self._server = server
        log.info("metrics at http://%s/metrics, readiness at /readyz?verbose", self.address)

    async def _stop(self) -> None:
        server, self._server, self.address = self._server, None, None
        if server is not None:
            await server.close()

    async def _index(self, query: str) -> Page:
        return Page(200, INDEX)

    async def _metrics(self, query: str) -> Page:
        """Return the metrics. Requests at the same time share one page."""
        if self._page is None:
            self._page = asyncio.get_running_loop().create_task(self._render(), name="emq metrics page")
            self._page.add_done_callback(self._rendered)
        return Page(200, await asyncio.shield(self._page), exposition.CONTENT_TYPE)

    async def _render(self) -> bytes:
        found: list[bytes] = []
        for piece in exposition.pieces(host_families.of_process(self._app)):
            found.append(piece.encode())
            await asyncio.sleep(0)
        return b"".join(found)

    def _rendered(self, page: asyncio.Task[bytes]) -> None:
        self._page = None

    async def _livez(self, query: str) -> Page:
        return _report(health.live(self._app), query)

    async def _readyz(self, query: str) -> Page:
        return _report(health.ready(self._app), query)


def _report(checks: list[health.Check], query: str) -> Page:
    ok = health.is_ok(checks)
    verbose = any(part.partition("=")[0] == "verbose" for part in query.split("&"))
    text = health.report(checks) if verbose else "ok\n" if ok else "failed; ?verbose says why\n"
    return Page(200 if ok else 503, text, PLAIN)
