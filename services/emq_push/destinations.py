"""The kinds of destinations: the scheme of an endpoint's URL names the kind. `http:` and `https:` are the pusher's own.

Others are entry points of the group `emq.destinations`, by scheme, each an object with the methods of `Kind`. A
destination answers as an HTTP endpoint does, with a status, or raises what an HTTP client raises. So retries, the
breaker, rates, disabling and records need to know nothing of kinds.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import yarl

from emq.runtime import errors
from emq.storage.message import Message
from emq_push import endpoint_values
from emq_push.attributes import URL

if TYPE_CHECKING:
    from emq import App
    from emq_push.addresses import AddressFilter
    from emq_push.wire import Answer

ENTRY_POINTS = "emq.destinations"
HTTP = ("http", "https")
POLL = "poll"
POLL_URL = f"{POLL}:"
"""The URL of each polling endpoint."""

_OWN = {POLL: metadata.EntryPoint(POLL, "emq_push.polling:KIND", ENTRY_POINTS)}


class Around(NamedTuple):
    """What a destination may use.

    Attributes:
        app: of the host, open while anything is delivered.
        addresses: must be asked before a connection is made.
    """

    app: App
    addresses: AddressFilter


class Parcel(NamedTuple):
    """What goes to an endpoint in one request.

    Attributes:
        topic, url, timeout_s, disable_after_s: of the endpoint, as `emq_push.endpoint.Endpoint` has them.
        messages: one, or those of a batch.
        body, headers: as an HTTP endpoint would get them, with the signature and `Authorization`. They hold secrets.
    """

    topic: str
    url: yarl.URL
    timeout_s: float
    disable_after_s: float
    messages: Sequence[Message]
    body: bytes
    headers: Mapping[str, str]


class Destination(Protocol):
    """Delivers to all endpoints of a kind, on one host."""

    def deliver(self, parcel: Parcel) -> Awaitable[Answer]:
        """Deliver; return what became of it, as a status of HTTP.

        Raises:
            OSError, ValueError: there was no answer; TimeoutError for none in time.
            GiveBack: the fault is this host's.
        """

    async def close(self) -> None:
        """Close all connections. Safe to repeat."""


class Kind(Protocol):
    """A kind of destinations. Its module is loaded wherever endpoints are read, so it imports no client's library."""

    def check(self, url: yarl.URL) -> None:
        """Raise `ValueError` unless the URL is one of this kind; the text says what it must be."""

    def reached(self, url: yarl.URL) -> Sequence[yarl.URL]:
        """Return the hosts and ports to which a delivery connects, as `https:` for TLS, or `http:`; may be none."""

    def open(self, around: Around) -> Destination:
        """Return a destination of this kind; it connects later. Raises `InvalidSettings` without its library."""


@functools.cache
def _entries() -> Mapping[str, metadata.EntryPoint]:
    return {entry.name: entry for entry in metadata.entry_points(group=ENTRY_POINTS)} | _OWN


@functools.cache
def _loaded(entry: metadata.EntryPoint) -> Kind:
    return cast("Kind", entry.load())


def kind(scheme: str) -> Kind | None:
    """Return the kind of a scheme; None for HTTP, and for a scheme that nothing installed delivers to."""
    entry = None if scheme in HTTP else _entries().get(scheme)
    return None if entry is None else _loaded(entry)


def url(text: str) -> yarl.URL:
    """Return the URL of an endpoint. Raises `ValueError` for any other text."""
    written = text.partition(":")[0]
    found = kind(scheme := written.lower())
    if found is None:
        return endpoint_values.url(URL, text)
    if written != scheme:  # what is saved is compared as it was written
        raise ValueError(f"{URL} begins with '{written}:'; write '{scheme}:'")
    read = endpoint_values.address(URL, text)
    found.check(read)
    return read


def reached(url: yarl.URL) -> Sequence[yarl.URL]:
    """Return the hosts and ports to which a delivery to an endpoint connects, as URLs of HTTP."""
    found = kind(url.scheme)
    return (url,) if found is None else found.reached(url)


class Destinations:
    """The destinations of a host, each opened with its first delivery.

    Args:
        around: None for a pusher that delivers by HTTP alone.
    """

    def __init__(self, around: Around | None) -> None:
        self._around = around
        self._open: dict[str, Destination] = {}

    async def deliver(self, parcel: Parcel) -> Answer:
        """Deliver to an endpoint that is not one of HTTP; see `Destination.deliver`."""
        scheme = parcel.url.scheme
        return await (self._open.get(scheme) or self._opened(scheme)).deliver(parcel)

    async def close(self) -> None:
        """Close all. Safe to repeat."""
        for each in self._open.values():
            await each.close()
        self._open.clear()

    def _opened(self, scheme: str) -> Destination:
        found = kind(scheme)
        assert found is not None, "the endpoint was read"
        try:
            if self._around is None:
                raise errors.InvalidSettings(f"it delivers by HTTP alone, not to {scheme}:")
            made = self._open[scheme] = found.open(self._around)
        except errors.InvalidSettings as exc:
            raise errors.GiveBack(f"this host: {exc}", pause_s=PAUSE_S) from None
        return made


PAUSE_S = 30.0
"""Seconds for which a topic pauses on a host that lacks the library of its destination."""
