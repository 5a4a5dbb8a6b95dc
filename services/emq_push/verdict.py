"""Decides the fate of a message by the endpoint's answer, or its silence.

- 2xx: delivered; the body is not looked at.
- 410: give back. By this status alone an endpoint says "never again": it is disabled, and its messages wait.
- 3xx: retry. Redirects are not followed, since a tenant could point us at an address that we must not reach; the
  tenant corrects the URL, and until then no message is lost.
- 408, 425, 429 and 5xx: retry, as the endpoint asks.
- other 4xx: retry. Nearly always the endpoint is half deployed or misconfigured (401, 404) and gets fixed within the
  hours that the retries last; otherwise the message ends in the dead letters, from where it can be replayed.
- no answer (connection, TLS or name error, time-out, bytes that are not HTTP): retry.
- a failure of this host, its network or its proxy: give back. It is charged neither to the endpoint nor to the message.

`Retry-After` is honoured with every status that is retried, where it is longer than the schedule's wait. Nothing here
does I/O.
"""

from __future__ import annotations

import datetime
import email.utils
import errno
import ssl
from typing import NamedTuple

import aiohttp

from emq.runtime import errors
from emq_push.proxy import ProxyFailed
from emq_push.resolver import NoNameServer

MIN_RETRY_AFTER_S = 1.0
"""A receiver's "Retry-After: 0" must not use up all attempts within a second."""
MAX_RETRY_AFTER_S = 86_400.0
MAX_REASON_LENGTH = 120
TOO_MANY = 429
GONE = 410
GONE_S = 60.0
"""Seconds for which a topic pauses whose endpoint is gone; by then the catalog says that it is disabled."""
OURS_S = 2.0
"""Seconds for which a topic pauses after a failure of this host."""

Failure = errors.Retry | errors.GiveBack


class Outcome(NamedTuple):
    """The outcome of one request, for all messages in it.

    Attributes:
        status: HTTP status; 0 without an answer.
        answer: the beginning of the body, with secrets masked.
        failure: None if the endpoint has taken the messages.
    """

    started_us: int
    took_us: int
    status: int = 0
    answer: str = ""
    failure: Failure | None = None


_OURS = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENETDOWN, errno.ENETUNREACH, errno.EADDRNOTAVAIL)
)
"""Errors of this host: it has no files, memory, ports or network left."""

_ERRNO_TEXTS = {
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "connection reset",
    errno.EPIPE: "connection reset",
    errno.ENETUNREACH: "network unreachable",
    errno.EHOSTUNREACH: "host unreachable",
    errno.ETIMEDOUT: "connect timeout",
}


def of_response(status: int, retry_after: str | None, answer: str, now_s: float) -> Failure | None:
    """Decide by the answer; None means delivered, else the exception to raise.

    Args:
        status: HTTP status.
        retry_after: the `Retry-After` header: seconds or an HTTP date; anything else counts as absent.
        answer: the beginning of the answer's body; its first words join the reason.
        now_s: seconds since the epoch, which a date is measured from.
    """
    if 200 <= status < 300:
        return None
    words = _first_words(answer)
    reason = f"HTTP {status}: {words}" if words else f"HTTP {status}"
    if status == GONE:
        return errors.GiveBack(reason, pause_s=GONE_S)
    return errors.Retry(reason, after_s=retry_after_s(retry_after, now_s), at_least=True)


def of_error(exc: Exception, timeout_s: float) -> Failure:
    """Decide without an answer.

    Args:
        exc: what the HTTP client raised.
        timeout_s: the endpoint's time-out, for the reason.
    """
    text = _error_text(exc, timeout_s)
    return errors.GiveBack(f"this host: {text}", pause_s=OURS_S) if is_ours(exc) else errors.Retry(text)


def wait_s(decision: Failure) -> float | None:
    """Return the seconds for which the endpoint asked to be left alone; None if it did not ask."""
    return decision.after_s if isinstance(decision, errors.Retry) else None


def is_ours(exc: BaseException) -> bool:
    """Return True if the failure is one of this host or its network, and says nothing about the endpoint."""
    found: BaseException | None = exc
    while found is not None and not _is_of_this_host(found):
        found = found.__cause__ or found.__context__
    return found is not None


def _is_of_this_host(exc: BaseException) -> bool:
    return isinstance(exc, OSError) and (exc.errno in _OURS or isinstance(exc, NoNameServer | ProxyFailed))


def retry_after_s(value: str | None, now_s: float) -> float | None:
    """Return the seconds to wait by a `Retry-After` header, from 1 second to a day; None without a usable value."""
    if not value:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        # Beyond a few digits the bound decides anyway, and int() refuses thousands of them.
        wait_s = float(value[:20])
    else:
        try:
            at = email.utils.parsedate_to_datetime(value)
            # A date without a zone is in UTC (RFC 9110, section 5.6.7), wherever this host is.
            wait_s = (at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp() - now_s
        except (ValueError, OverflowError):
            return None
    return min(max(wait_s, MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)


def text_of(body: bytes) -> str:
    """Return the beginning of a body as text that every database takes.

    The bound on the body may have cut its last character in two.
    """
    text = body.decode(errors="replace").rstrip("\ufffd").replace("\r\n", "\n")
    return text if text.isprintable() else "".join([c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text])


def _first_words(answer: str) -> str:
    text = " ".join(answer.split())
    if text.startswith("<") or not text.isprintable() or "\ufffd" in text:
        return ""  # a page for people, or compressed
    return text if len(text) <= MAX_REASON_LENGTH else text[: MAX_REASON_LENGTH - 3] + "..."


def _error_text(exc: Exception, timeout_s: float) -> str:
    if isinstance(exc, aiohttp.ConnectionTimeoutError):
        return "connect timeout"
    if isinstance(exc, TimeoutError):
        return f"timeout after {timeout_s:g} s"
    if isinstance(exc, aiohttp.ClientConnectorDNSError):
        if isinstance(exc.__cause__, NoNameServer):
            return str(exc.__cause__.strerror)
        return f"host {exc.host} not found"
    if isinstance(exc, aiohttp.ClientConnectorCertificateError):
        return f"certificate not accepted: {_line(exc.certificate_error)}"
    if isinstance(exc, aiohttp.ClientConnectorSSLError | ssl.SSLError):
        return f"TLS failed: {_line(exc)}"
    if isinstance(exc, aiohttp.ServerDisconnectedError):
        return "connection closed before an answer"
    if isinstance(exc, aiohttp.ClientResponseError):
        return f"the answer is not HTTP: {_line(exc.message)}"
    if isinstance(exc, OSError) and exc.errno in _ERRNO_TEXTS:
        return _ERRNO_TEXTS[exc.errno]
    if isinstance(exc, aiohttp.ClientConnectorError):
        # Without the host, which the endpoint's URL names. Of several addresses, the error has no number.
        return _line(exc.os_error.strerror or exc.os_error) or type(exc).__name__
    return _line(exc) or type(exc).__name__


def _line(what: object) -> str:
    return " ".join(str(what).split())[:MAX_REASON_LENGTH]
