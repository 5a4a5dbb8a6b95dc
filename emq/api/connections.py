"""Connections that do not wait for ever for the beginning of a request."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 10.0
"""Seconds within which the head of a request must be here, from its first byte or from the connection."""
HEAD_BYTES = 64 << 10
"""Most bytes of the head of a request."""


class Connection(HttpToolsProtocol):
    """Closes a connection whose request does not begin, or whose head is too long. uvicorn waits for ever."""

    def connection_made(self, transport: Any) -> None:
        self._head_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        self._begin()

    def data_received(self, data: bytes) -> None:
        if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._begin()
        super().data_received(data)
        if self._deadline is not None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._close()

    def on_headers_complete(self) -> None:
        self._end()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)

    def _begin(self) -> None:
        self._head_bytes = 0
        self._deadline = asyncio.get_running_loop().call_later(HEAD_S, self._close)

    def _end(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close(self) -> None:
        self._end()
        self.transport.close()
