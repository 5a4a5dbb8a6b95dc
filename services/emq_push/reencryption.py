"""Encrypts the stored secrets of topics again, after the key has changed."""

from __future__ import annotations

from emq.topics.catalog import Catalog
from emq.topics.model import Topic
from emq.topics.secret_names import is_secret
from emq_push.secrets import Secrets


async def reencrypt(catalog: Catalog, name: str, secrets: Secrets) -> int:
    """Keep each secret of a topic under the first key. Safe to repeat, and while others change the topic.

    Args:
        secrets: with a key; it also decrypts with older ones.

    Returns:
        The number of secrets that were kept otherwise: plain, or under another key.

    Raises:
        ValueError: a secret is encrypted with a key that is not at hand; the text names the attribute.
        UnknownTopic: there is no such topic.
    """
    topic, count = await catalog.get(name), 0
    while changes := _changes(topic, secrets):
        before = {attribute: topic.options.attributes[attribute] for attribute in changes}
        topic = await catalog.set_attributes(name, changes, before)  # changes nothing if a secret is another by now
        if all(topic.options.attributes.get(attribute) == value for attribute, value in changes.items()):
            count += len(changes)
    return count


def _changes(topic: Topic, secrets: Secrets) -> dict[str, str]:
    changes = {}
    for name, value in topic.options.attributes.items():
        if value and is_secret(name) and not secrets.is_current(value):
            try:
                changes[name] = secrets.encrypt(secrets.decrypt(value))
            except ValueError as exc:
                raise ValueError(f"{name} {exc}") from None
    return changes
