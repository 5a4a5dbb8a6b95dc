"""Connections that wait for neither a request nor a reader for ever, shared by callers."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from emq_web import problems
from emq_web.admission import ADMITTED, Head
from emq_web.limits import STRANGERS
from emq_web.problems import Problem

HEAD_S = 10.0
"""Seconds within which the head of a request must be here, from its first byte or from the connection."""
HEAD_BYTES = 64 << 10
"""Most bytes of the head of a request, and of what comes at a stretch beside the bytes of a body, such as trailers."""
READ_S = 30.0
"""Seconds within which a client must read enough of an answer for the rest to be written, and the last of it."""
PIECE = 8 << 10
"""Most bytes that the parser gets at once. The head that begins within a piece counts from the next piece on."""
DROPPED = 1 << 20
DROPPED_S = 1.0
"""Bytes and seconds that a refused client may go on to send; a connection closed before that may lose the refusal."""

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
    """Closes a connection whose request does not begin or cannot be read, or whose client does not read.

    uvicorn waits for ever, and refuses in plain text, perhaps ahead of the answers to requests before.

    A connection is *refused* once, for good: what comes after is dropped. The refusal is the last answer, behind those
    of all requests that came whole before it.

    Args:
        doors: of the server.
    """

    def __init__(self, *args: Any, doors: Doors, **more: Any) -> None:
        super().__init__(*args, **more)
        self._doors = doors
        self._account = STRANGERS
        self._head_bytes = 0
        self._is_in_body = False
        self._wrong: Problem | None = None
        self._refusal: Problem | None = None
        self._dropped = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._begin()
        self._doors.enter(self, self._account)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE):
            if self._refusal is not None:
                self._drop(len(data) - start)
                return
            self._parse(data[start : start + PIECE])

    def _parse(self, data: bytes) -> None:
        if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._begin()
        before = self._deadline
        self._feed(data)
        if self._refusal is None and (self._deadline is not None or self._is_in_body):
            # Of data with the end of one request and the begin of the next head, the bytes of this head are not known.
            self._head_bytes += len(data) if self._deadline is before else 1
            if self._head_bytes > HEAD_BYTES:
                self._refuse(_head_too_large())

    def _feed(self, data: bytes) -> None:
        """Parse data. Who asks for another protocol gets HTTP/1.1, and so do the requests behind."""
        self._unset_keepalive_if_required()
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as exc:
                data = data[exc.args[0] :]
            except httptools.HttpParserError:
                self.send_400_response("")
                return

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._deadline is None:  # the request before it has no answer yet
            self._begin()
        told: Any = {ADMITTED: self._admitted}
        self.scope["extensions"] = told

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_in_body:  # a trailer has not been checked as headers are, and nobody asks for one
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._end()
        names = Counter(name for name, _ in self.headers if name in ONCE)
        if self._head_bytes > HEAD_BYTES:
            self._wrong = _head_too_large()
        elif wrong := [name.decode() for name, times in names.items() if times > 1]:
            self._wrong = _malformed(f"the request has more than one header {wrong[0]}; send it once")
        elif b"host" not in names and self.parser.get_http_version() == "1.1":
            self._wrong = _malformed("the request has no header host")
        elif self.parser.should_upgrade() and Head.of(dict(self.headers)).is_there:
            # The parser takes the body for the other protocol.
            self._wrong = _malformed("the request has a body and asks for another protocol; send no header upgrade")
        if self._wrong is not None:
            raise ValueError(self._wrong.detail)  # the parser ends here, and calls `send_400_response`
        super().on_headers_complete()
        self._is_in_body = True

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_body = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._wrong or _malformed("the bytes are not a request of HTTP/1.1"))

    def on_response_complete(self) -> None:
        is_last = not self.pipeline
        super().on_response_complete()
        if self.transport.is_closing():
            self._leave()
        elif is_last and self._refusal is not None:
            self._tell(self._refusal)

    def timeout_keep_alive_handler(self) -> None:
        self._leave()

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
        if self.flow.read_paused:  # by the API, until an answer is there: the rest of the head may have come long ago
            self._deadline = asyncio.get_running_loop().call_later(HEAD_S, self._close)
        elif self._head_bytes:
            self._refuse(Problem(408, "too_slow", f"the head did not come within {HEAD_S:g} s"))
        else:
            self._leave()

    def _leave(self) -> None:
        """Close the connection. The transport would wait for ever for a client that does not read what is left."""
        self._end()
        self.transport.close()
        self._deadline = asyncio.get_running_loop().call_later(READ_S, self.drop)

    def _refuse(self, problem: Problem) -> None:
        """Answer what cannot be read, after the answers of the requests before it, and end the connection.

        A request whose body breaks off in the middle gets this answer, unless the application has begun another one.
        """
        self._end()
        self._refusal = problem
        cycle = self.cycle
        if not self._is_in_body:
            is_next = cycle is None or cycle.response_complete
        elif self.pipeline and self.pipeline[0][0] is cycle:
            self.pipeline.popleft()  # the newest request: requests before it have no answer yet
            is_next = False
        else:
            is_next = True
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self._leave()
        if is_next:
            self._tell(problem)
        else:
            self._drop(0)

    def _tell(self, refusal: Problem) -> None:
        """Write the refusal, and close the connection once the client has read it: when the client closes it."""
        if self.transport.is_closing():
            return
        found = problems.answer(refusal.with_headers({"Connection": "close"}))
        lines = [STATUS_LINE[refusal.status], *(b"%s: %s\r\n" % header for header in found.raw_headers), b"\r\n"]
        self.transport.write(b"".join(lines) + bytes(found.body))
        self.transport.write_eof()
        self.flow.resume_reading()
        self._unset_keepalive_if_required()
        self._deadline = asyncio.get_running_loop().call_later(DROPPED_S, self._leave)

    def _drop(self, size: int) -> None:
        """Drop bytes of a refused client; read no more while the refusal waits for the answers before it."""
        self._dropped += size
        if self._deadline is None:
            self.flow.pause_reading()
        elif self._dropped > DROPPED:
            self._leave()


def _malformed(why: str) -> Problem:
    return Problem(400, "malformed", why)


def _head_too_large() -> Problem:
    return Problem(431, "head_too_large", f"the head has more than {HEAD_BYTES:,} bytes")
