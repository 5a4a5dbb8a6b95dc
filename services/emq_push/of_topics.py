"""The push attributes of topics, when an operator creates or changes a topic."""

from __future__ import annotations

import msgspec

from emq import Settings
from emq.runtime import errors
from emq.topics import secret_attributes
from emq.topics.model import Topic, called
from emq_push import destinations, handshake
from emq_push.addresses import AddressFilter
from emq_push.endpoint import Endpoint
from emq_push.secrets import Secrets


def check(topic: Topic, settings: Settings, *, is_new: bool) -> None:
    """Refuse push attributes of a wrong endpoint, or of one that the settings forbid.

    Args:
        is_new: False if the URL has not changed.

    Raises:
        InvalidTopic: with the reason.
    """
    found = Endpoint.from_topic(topic, Secrets.of_setting(settings))
    if found is not None and is_new:
        addresses = AddressFilter.of_settings(settings)
        try:
            for url in destinations.reached(found.url):
                addresses.check_url(url)
                addresses.check_host(url.host or "")
        except (ValueError, OSError) as exc:
            raise errors.InvalidTopic(f"{called(topic.name)}: {exc}") from None


async def agreed(topic: Topic, origin: str, settings: Settings) -> Topic:
    """Ask the topic's endpoint for permission; return the topic with the agreement, its qps within the allowed rate.

    Raises:
        InvalidTopic: the topic has no endpoint, or the endpoint does not agree.
    """
    found = Endpoint.from_topic(topic, Secrets.of_setting(settings))
    if found is None:
        raise errors.InvalidTopic(f"{called(topic.name)}: --handshake needs an endpoint; give --url")
    addresses = AddressFilter.of_settings(settings)
    try:
        allowed = await handshake.handshake(found, origin, topic.qps, addresses)
    except errors.InvalidTopic as exc:
        raise errors.InvalidTopic(f"{called(topic.name)}: {exc}") from exc
    kept = {**topic.options.attributes, **allowed.attributes}
    topic = _with(topic, {name: value for name, value in kept.items() if value})
    return msgspec.structs.replace(topic, qps=handshake.capped(topic))


def encrypted(topic: Topic, settings: Settings) -> Topic:
    """Return the topic with its secrets encrypted, if there is a key; masks stay, for the catalog to replace."""
    secrets, plain = Secrets.of_setting(settings), ("", secret_attributes.MASK)
    attributes = topic.options.attributes.items()
    return _with(
        topic,
        {n: secrets.encrypt(v) if v not in plain and secret_attributes.is_secret(n) else v for n, v in attributes},
    )


def _with(topic: Topic, attributes: dict[str, str]) -> Topic:
    return msgspec.structs.replace(topic, options=msgspec.structs.replace(topic.options, attributes=attributes))
