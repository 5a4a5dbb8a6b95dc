"""The rate that an endpoint has agreed to in its handshake (`push.allowed_rate`): the most qps that its topic may have.

The rate binds later changes of the topic, until another handshake, or a change of the attribute itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from emq.runtime import errors
from emq.topics.model import Topic, called

ATTRIBUTE = "push.allowed_rate"
_MILLIONTHS = 1_000_000
"""A qps has at most six decimals."""


def most_qps(attributes: Mapping[str, str]) -> float:
    """Return the most starts a second by a topic's attributes; infinity if they allow any number."""
    try:
        rate_per_min = float(attributes.get(ATTRIBUTE, "inf"))
    except ValueError:  # reading the endpoint reports that
        return math.inf
    if not 0 < rate_per_min < math.inf:
        return math.inf
    return max(1, math.floor(rate_per_min / 60 * _MILLIONTHS)) / _MILLIONTHS


def check(topic: Topic, before: Topic | None) -> None:
    """Refuse a new qps above the allowed rate.

    Raises:
        InvalidTopic: the change asks for more than the endpoint allows.
    """
    most = most_qps(topic.options.attributes)
    if topic.qps <= most or (
        before is not None and topic.qps <= before.qps and most_qps(before.options.attributes) <= most
    ):
        return
    raise errors.InvalidTopic(
        f"{called(topic.name)}: qps {topic.qps:g} is more than its endpoint allows: {most:g} a second "
        f"({ATTRIBUTE}={topic.options.attributes[ATTRIBUTE]} a minute); give less, or ask the endpoint again"
    )
