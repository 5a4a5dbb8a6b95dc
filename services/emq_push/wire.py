"""One connection to an endpoint, which sends requests one after the other and reads their answers.

aiohttp makes the connection (`emq_push.http`), with all that belongs to it: name look-up, the filter of addresses, TLS.
From then on this protocol has it. A request by aiohttp's own client costs three times the CPU, since that client is
made for every kind of request and answer. Here a request is one write, and of its answer only the status,
`Retry-After` and the beginning of the body are kept. httptools reads the answers; it has the parser of Node.js, as
aiohttp has.
"""

from __future__ import annotations

import asyncio
import re
import select
from typing import NamedTuple

import aiohttp
import httptools

from emq_push.proxy import SMOKESCREEN

BODY_BYTES = 1024
"""Most bytes read of an answer's body, for the reason; an answer with a longer body costs its connection."""
BODY_TIMEOUT_S = 1.0
"""Most seconds to wait for the body once the status is there."""
FIELD_BYTES = 8_190
"""Most bytes of one header of an answer; a longer one is no answer."""
HEAD_BYTES = 1 << 16
"""Most bytes of an answer's head, or of what comes besides its body, as far as it comes in pieces."""
READ_BYTES = 1 << 14
"""Most bytes taken from a connection at once. Of an endless body no more is read than that, and nothing is copied."""
ONE_WRITE_BYTES = 1 << 14
"""Head and body of a request up to this size are joined; of a larger one the body is not copied."""
MARGIN_S = 1.0
"""Seconds, or half of the time if that is less, by which a connection is left before the endpoint closes it."""

SWITCHING = 101
INTERIM = range(100, 200)
DONE = range(200, 300)
_SMOKESCREEN = SMOKESCREEN.encode()
_KEPT_S = re.compile(rb"(?:^|[\s,;])timeout\s*=\s*\"?([0-9]{1,9})(?![0-9])", re.IGNORECASE)


class Answer(NamedTuple):
    """Attributes:
    status: HTTP status.
    retry_after: the header of that name; None without it.
    is_smokescreen: True if the answer is a forward proxy's own (`emq_push.proxy`), as far as it says so.
    body: its beginning; empty for a body that breaks off or drips, as far as it is not there.
    """

    status: int
    retry_after: str | None
    body: bytes
    is_smokescreen: bool = False


class NotHTTP(ValueError):
    """What the endpoint sends is no answer."""

    def __init__(self, why: object) -> None:
        super().__init__(f"the answer is not HTTP: {why}")


class Wire(asyncio.BufferedProtocol):
    """States: *idle*; *waiting* for the status of an answer; *reading* its body; *closed*, for good.

    `send` leads from idle to waiting. The end of the answer leads back to idle, or to closed if the connection is not
    to be used again: the endpoint says so, or the answer is longer than what is read of it. Anything that comes while
    nothing was asked closes the wire.

    Attributes:
        is_open: False once it is closed.
        idle_since: when the last answer ended, in the time of the event loop.
        kept_s: seconds after that for which the endpoint says that it keeps the connection, less a margin.
    """

    __slots__ = (
        *("_answered", "_body", "_connection", "_is_interim", "_is_large", "_is_smokescreen", "_is_stray"),
        *(
            "_looks_at",
            "_loop",
            "_maker",
            "_parser",
            "_poll",
            "_read",
            "_retry_after",
            "_seen",
            "_status",
            "_timer",
            "_transport",
            "_until",
        ),
        *("idle_since", "is_open", "kept_s"),
    )

    def __init__(
        self, connection: aiohttp.connector.Connection, loop: asyncio.AbstractEventLoop, read: memoryview
    ) -> None:
        """Take a new connection over.

        Args:
            read: gets what is read; other wires may use it, too.

        Raises:
            NotHTTP: the endpoint has sent something before it was asked.
        """
        assert connection.protocol is not None
        assert connection.transport is not None
        self._connection = connection
        self._maker = connection.protocol
        self._transport = connection.transport
        self._loop = loop
        self._read = read
        self._answered: asyncio.Future[Answer] | None = None
        self._status = self._seen = 0
        self._retry_after: str | None = None
        self._body = b""
        self._is_interim = self._is_large = self._is_smokescreen = self._is_stray = False
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = self._until = self.idle_since = 0.0
        self._poll: select.poll | None = None
        self.kept_s = float("inf")
        self.is_open = True
        self._parser = httptools.HttpResponseParser(self)
        # As lenient as aiohttp is, and browsers are.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        if self._maker.should_close:
            connection.close()
            raise NotHTTP("it came before the request")
        self._transport.set_protocol(self)

    def send(self, head: bytes, body: bytes, until: float) -> asyncio.Future[Answer]:
        """Send a request while the wire is idle; return what gets the answer. The caller closes the wire if it fails.

        Args:
            head: request line and headers, with the empty line at their end.
            until: latest time of the status, in the time of the event loop.

        Raises (from the future):
            TimeoutError: there is no answer by then.
            aiohttp.ServerDisconnectedError: the endpoint hung up.
            OSError: the connection broke.
            NotHTTP: the answer cannot be read.
        """
        self._status = self._seen = 0
        self._retry_after, self._body, self._is_smokescreen = None, b"", False
        answered = self._answered = self._loop.create_future()
        self._is_large = len(body) > ONE_WRITE_BYTES
        try:
            if not self._is_large:
                self._transport.write(head + body)
            else:
                self._transport.write(head)
                # A TLS transport knows nothing of what waits below it, except that this holds later writes up. So the
                # last byte tells whether the endpoint has taken the others.
                self._transport.write(memoryview(body)[:-1])
                self._transport.write(body[-1:])
        except RuntimeError as exc:  # uvloop's answer to a connection that is closed already
            answered.set_exception(ConnectionResetError(str(exc)))
            return answered
        self._wait(until)
        return answered

    def was_silent(self) -> bool:
        """Return True if nothing came in answer to the last request, which was not the first."""
        return not self._seen and self.idle_since > 0.0

    def is_quiet(self) -> bool:
        """Return False if an idle wire has something to read: its end, or what nobody asked for.

        The event loop may not have come to read it yet. A request sent now would fail, or get an answer that is not its
        own.
        """
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not self._poll.poll(0)

    def close(self) -> None:
        """Close the connection at once; a request under way fails. Safe to repeat."""
        if self.is_open:
            self.is_open = False
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._fail(aiohttp.ServerDisconnectedError())
            self._connection.close()
            del self._parser  # which refers to the wire

    # ------------------------------------------------------------------------------------------- the transport's calls

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._read

    def buffer_updated(self, nbytes: int) -> None:
        if not self.is_open:
            return
        data = self._read[:nbytes]
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # its status says what it is
        except httptools.HttpParserError as exc:
            self._break_off(NotHTTP(exc.__context__ or exc))
            return
        if self._is_stray:
            self.close()
        elif self._answered is not None:
            self._seen += len(data)
            if self._seen > HEAD_BYTES:
                self._break_off(NotHTTP(f"its head is longer than {HEAD_BYTES} bytes"))
            elif self._status:
                self._read_on()

    def eof_received(self) -> None:
        # The transport reports the loss later; until then the wire would look as if it could be used.
        self._break_off(aiohttp.ServerDisconnectedError())

    def connection_lost(self, exc: Exception | None) -> None:
        self._maker.connection_lost(exc)  # the connector waits for it at its end
        self._break_off(exc or aiohttp.ServerDisconnectedError())

    # ---------------------------------------------------------------------------------------------- the parser's calls

    def on_message_begin(self) -> None:
        self._is_stray = self._answered is None

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) + len(value) > FIELD_BYTES:
            raise ValueError(f"a header of over {FIELD_BYTES} bytes")
        if self._status:
            return  # a trailer, which must not change the head (RFC 9110, section 6.5.1)
        if len(name) == 11 and self._retry_after is None and name.lower() == b"retry-after":
            self._retry_after = value.decode("latin-1")
        elif len(name) == len(_SMOKESCREEN) and name.lower() == _SMOKESCREEN:
            self._is_smokescreen = True
        elif len(name) == 10 and name.lower() == b"keep-alive" and (kept := _KEPT_S.search(value)):
            kept_s = float(kept[1])
            self.kept_s = kept_s - min(MARGIN_S, kept_s / 2)

    def on_headers_complete(self) -> None:
        if self._is_stray:
            return
        status = self._parser.get_status_code()
        if status < INTERIM.start:
            raise ValueError(f"the status {status:03}")
        self._is_interim = status in INTERIM and status != SWITCHING
        if not self._is_interim:
            self._status = status

    def on_body(self, data: bytes) -> None:
        self._body += data[: BODY_BYTES - len(self._body)]

    def on_message_complete(self) -> None:
        if self._is_interim:
            self._retry_after = None
        elif not self._is_stray:
            # An endpoint that refuses a request may leave the rest of a large one unread.
            is_whole = self._status in DONE or not (self._is_large or self._status == SWITCHING)
            self._end(is_whole=is_whole and self._parser.should_keep_alive())

    # --------------------------------------------------------------------------------------------------------- the rest

    def _read_on(self) -> None:
        """Wait for the rest of the body, unless enough of it is there."""
        if len(self._body) >= BODY_BYTES:
            self._end(is_whole=False)
        else:
            self._wait(min(self._until, self._loop.time() + BODY_TIMEOUT_S))

    def _wait(self, until: float) -> None:
        """Look at the time at `until`. A timer that comes earlier stays: most requests need none of their own."""
        self._until = until
        if self._timer is None or until < self._looks_at:
            if self._timer is not None:
                self._timer.cancel()
            self._looks_at = until
            self._timer = self._loop.call_at(until, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._answered is not None:
            if self._loop.time() < self._until:
                self._wait(self._until)
            else:
                self._break_off(TimeoutError())

    def _break_off(self, why: Exception) -> None:
        """End without the whole answer. A body that breaks off or drips does not change what the status said."""
        if self._status and self._answered is not None:
            self._end(is_whole=False)
        self._fail(why)
        self.close()

    def _end(self, *, is_whole: bool) -> None:
        answered, self._answered = self._answered, None
        if answered is not None and not answered.done():
            answered.set_result(Answer(self._status, self._retry_after, self._body, self._is_smokescreen))
        self.idle_since = self._loop.time()
        # An endpoint may answer before it has read all of the request.
        if not is_whole or self._transport.get_write_buffer_size():
            self.close()

    def _fail(self, why: Exception) -> None:
        answered, self._answered = self._answered, None
        if answered is not None and not answered.done():
            answered.set_exception(why)
