"""The handshake of CloudEvents webhooks: an endpoint says that it expects deliveries, and how many.

It protects strangers from deliveries that somebody ordered to their address (HTTP 1.1 Web Hooks for Event Delivery 1.0,
section 4). An OPTIONS request asks for permission; an endpoint that says nothing has not agreed.
"""

from __future__ import annotations

from typing import NamedTuple

import aiohttp

from emq.runtime import errors
from emq.topics.model import Topic
from emq_push import allowed_rates, verdict
from emq_push.addresses import AddressFilter
from emq_push.destinations import HTTP
from emq_push.endpoint import Endpoint
from emq_push.http import Connections

TIMEOUT_S = 10.0
ANY = "*"
MOST_DIGITS = 12


class Allowed(NamedTuple):
    """What an endpoint has agreed to.

    Attributes:
        origin: the sender that may deliver; each delivery names it (`push.origin`).
        rate_per_min: most deliveries a minute (`push.allowed_rate`); None for any number.
    """

    origin: str
    rate_per_min: int | None

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes of a topic that keep the agreement; an empty one removes that of an earlier agreement."""
        rate = "" if self.rate_per_min is None else str(self.rate_per_min)
        return {"push.origin": self.origin, allowed_rates.ATTRIBUTE: rate}


async def handshake(endpoint: Endpoint, origin: str, qps: float, addresses: AddressFilter) -> Allowed:
    """Ask an endpoint for permission to deliver; with its own headers and TLS, but without a token.

    Args:
        endpoint: whose permission is asked for.
        origin: a DNS name for the sending system as a whole.
        qps: wanted deliveries a second.
        addresses: to which addresses it may connect.

    Raises:
        InvalidTopic: the endpoint does not agree, or does not answer; the text says which.
    """
    if endpoint.url.scheme not in HTTP:
        raise errors.InvalidTopic(f"only HTTP endpoints can be asked, not {endpoint.url.scheme}:")
    asked = {"WebHook-Request-Origin": origin, "WebHook-Request-Rate": str(max(1, round(qps * 60)))}
    connections = Connections(addresses)
    try:
        headers = {**endpoint.headers, **asked}
        response = await connections.request("OPTIONS", endpoint.url, b"", headers, TIMEOUT_S, endpoint.tls)
        found, status = response.headers.copy(), response.status
        response.release()
    except (aiohttp.ClientError, OSError, ValueError) as exc:
        reason = verdict.of_error(exc, TIMEOUT_S).reason
        raise errors.InvalidTopic(f"the endpoint does not answer the handshake: {reason}") from exc
    finally:
        await connections.close()
    return _agreed(found.get("WebHook-Allowed-Origin", ""), found.get("WebHook-Allowed-Rate", ""), origin, status)


def capped(topic: Topic) -> float:
    """Return the qps of a topic, below the rate that its endpoint allows."""
    return min(topic.qps, allowed_rates.most_qps(topic.options.attributes))


def _agreed(allowed: str, rate: str, origin: str, status: int) -> Allowed:
    # The status means nothing: many servers answer OPTIONS.
    if allowed.strip() != ANY and allowed.strip().lower() != origin.lower():
        given = f"WebHook-Allowed-Origin {allowed.strip()[:100]!r}" if allowed else "no WebHook-Allowed-Origin"
        raise errors.InvalidTopic(
            f"the endpoint does not agree to deliveries from {origin!r}: HTTP {status} with {given}; its owner must "
            "answer the handshake of CloudEvents webhooks, or leave it out"
        )
    if not (rate := rate.strip()) or rate == ANY:
        return Allowed(origin, None)
    if not (rate.isascii() and rate.isdigit() and int(rate[:MOST_DIGITS]) > 0):
        raise errors.InvalidTopic(f"the endpoint allows the rate {rate[:40]!r}, which is no number above 0 and not *")
    return Allowed(origin, int(rate[:MOST_DIGITS]))
