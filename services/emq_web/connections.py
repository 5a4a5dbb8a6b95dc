"""Connections that wait for neither a request nor a reader for ever, shared by callers."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from emq_web import problems
from emq_web.admission import ADMITTED
from emq_web.limits import STRANGERS
from emq_web.problems import Problem

HEAD_S = 10.0
"""Seconds within which the head of a request must be here, from its first byte or from the connection."""
HEAD_BYTES = 64 << 10
"""Most bytes of the head of a request."""
READ_S = 30.0
"""Seconds within which a client must read enough of an answer for the rest to be written."""


ONCE = frozenset(
    (b"host", b"content-length", b"content-type", b"authorization", b"cookie", b"idempotency-key", b"if-match")
)
"""Headers that a request has once at most. Of two, a proxy in front and the API could take different ones."""


class Doors:
    """The open connections by account. A connection is a stranger's until a request on it had a valid key.

    When there are too many, the account with the most loses its oldest one.

    Args:
        most: open connections.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[str, dict[Connection, None]] = {}
        self._count = 0

    def enter(self, connection: Connection, account: str) -> None:
        """Note an open connection."""
        self._open.setdefault(account, {})[connection] = None
        self._count += 1
        if self._count > self._most:
            largest = max(self._open.values(), key=len)
            next(iter(largest)).drop()

    def leave(self, connection: Connection, account: str) -> None:
        """Forget a connection. Safe to repeat."""
        mine = self._open.get(account, {})
        if connection in mine:
            del mine[connection]
            self._count -= 1
            if not mine:
                del self._open[account]


class Connection(HttpToolsProtocol):
    """Closes a connection whose request does not begin, whose head is too long, or whose client does not read.

    uvicorn waits for ever.

    Args:
        doors: of the server.
    """

    def __init__(self, *args: Any, doors: Doors, **more: Any) -> None:
        super().__init__(*args, **more)
        self._doors = doors
        self._account = STRANGERS
        self._head_bytes = 0
        self._malformed = ""
        self._deadline: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._begin()
        self._doors.enter(self, self._account)

    def data_received(self, data: bytes) -> None:
        if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._begin()
        before = self._deadline
        super().data_received(data)
        if self._deadline is not None:
            # Of data with the end of one request and the begin of the next head, the bytes of this head are not known.
            self._head_bytes += len(data) if self._deadline is before else 1
            if self._head_bytes > HEAD_BYTES:
                self._refuse(Problem(431, "head_too_large", f"the head has more than {HEAD_BYTES:,} bytes"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._deadline is None:  # the request before it has no answer yet
            self._begin()
        told: Any = {ADMITTED: self._admitted}
        self.scope["extensions"] = told

    def on_headers_complete(self) -> None:
        self._end()
        names = Counter(name for name, _ in self.headers if name in ONCE)
        if wrong := [name.decode() for name, times in names.items() if times > 1]:
            self._malformed = f"the request has more than one header {wrong[0]}; send it once"
        elif b"host" not in names and self.parser.get_http_version() == "1.1":
            self._malformed = "the request has no header host"
        if self._malformed:
            raise ValueError(self._malformed)  # the parser ends here, and calls `send_400_response`
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(Problem(400, "malformed", self._malformed or "the bytes are not a request of HTTP/1.1"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._has_read()
        self._doors.leave(self, self._account)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading = asyncio.get_running_loop().call_later(READ_S, self.drop)

    def resume_writing(self) -> None:
        self._has_read()
        super().resume_writing()

    def drop(self) -> None:
        """End the connection now, whatever is under way on it."""
        self._end()
        self._doors.leave(self, self._account)
        self.transport.abort()

    def _admitted(self, account: str) -> None:
        if account != self._account and not self.transport.is_closing():
            self._doors.leave(self, self._account)
            self._account = account
            self._doors.enter(self, account)

    def _has_read(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _begin(self) -> None:
        self._head_bytes = 0
        self._deadline = asyncio.get_running_loop().call_later(HEAD_S, self._close)

    def _end(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close(self) -> None:
        if self._head_bytes:
            self._refuse(Problem(408, "too_slow", f"the head did not come within {HEAD_S:g} s"))
        else:
            self._end()
            self.transport.close()

    def _refuse(self, problem: Problem) -> None:
        """Answer what cannot be read, and end the connection.

        Requests before it get their answers first; then nothing more is said. A request whose body breaks off in the
        middle gets this answer, unless the application has begun another one.
        """
        self._end()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            cycle.keep_alive = False
            self.flow.pause_reading()
            return
        is_untold = cycle is None or cycle.response_complete or not (cycle.response_started or self.pipeline)
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if is_untold and not self.transport.is_closing():
            found = problems.answer(problem.with_headers({"Connection": "close"}))
            lines = [STATUS_LINE[problem.status], *(b"%s: %s\r\n" % header for header in found.raw_headers), b"\r\n"]
            self.transport.write(b"".join(lines) + bytes(found.body))
        self.transport.close()
