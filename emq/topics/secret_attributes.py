"""The attributes of topics that hold secrets: no list, export, error or log shows their values."""

from __future__ import annotations

import msgspec

from emq.runtime import errors
from emq.topics.model import Topic, called
from emq.topics.secret_names import MASK as MASK
from emq.topics.secret_names import is_secret as is_secret
from emq.topics.secret_names import masked as masked


def without_secrets(topic: Topic) -> Topic:
    """Return a topic as it may be shown."""
    attributes = masked(topic.options.attributes)
    if attributes == topic.options.attributes:
        return topic
    return msgspec.structs.replace(topic, options=msgspec.structs.replace(topic.options, attributes=attributes))


def unmasked(topic: Topic, before: Topic | None) -> Topic:
    """Return a topic with the secrets of `before` in place of masks.

    Raises:
        InvalidTopic: a secret is masked, and the topic does not have it yet.
    """
    attributes = topic.options.attributes
    hidden = [name for name, value in attributes.items() if value == MASK and is_secret(name)]
    if not hidden:
        return topic
    known = {} if before is None else before.options.attributes
    for name in hidden:
        if not known.get(name):
            raise errors.InvalidTopic(
                f"{called(topic.name)}: {name} is masked ({MASK}), and there is no value; give it"
            )
    attributes = attributes | {name: known[name] for name in hidden}
    return msgspec.structs.replace(topic, options=msgspec.structs.replace(topic.options, attributes=attributes))
