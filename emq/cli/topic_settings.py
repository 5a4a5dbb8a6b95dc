"""`key=value` from the command line, made into settings of a topic."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from emq import errors
from emq.model import Topic, TopicOptions

PUSH = "push."
ATTRIBUTE = "attributes."


class Given(typing.NamedTuple):
    """Attributes:
    settings: fields of `Topic` and `TopicOptions`, converted to their types.
    attributes: to set; empty text takes the attribute away.
    """

    settings: dict[str, Any]
    attributes: dict[str, str]

    def merged(self, attributes: Mapping[str, str]) -> dict[str, str]:
        """`attributes` with the given ones set or taken away."""
        return {name: value for name, value in {**attributes, **self.attributes}.items() if value}


def parse(topic: str, pairs: Iterable[str]) -> Given:
    """Read `key=value` pairs.

    A key is a setting or option of a topic, `push.NAME` or `attributes.NAME`. Lists are written with commas, `none`
    is None. A key that is not known is passed on, since the catalog names those spelt alike.

    Raises:
        InvalidTopic: a pair without `=`, or a value of the wrong type.
    """
    hints = {**typing.get_type_hints(Topic), **typing.get_type_hints(TopicOptions)}
    given = Given({}, {})
    for pair in pairs:
        key, mark, text = pair.partition("=")
        if not mark or not key:
            raise errors.InvalidTopic(f"topic {topic!r}: {pair!r} is not a setting; write key=value, such as qps=100")
        if key.startswith((PUSH, ATTRIBUTE)):
            given.attributes[key.removeprefix(ATTRIBUTE)] = text
        elif key in ("options", "attributes"):
            raise errors.InvalidTopic(
                f"topic {topic!r}: set single options, such as max_attempts=5 or {key[:9]}.NAME=..."
            )
        else:
            given.settings[key] = _converted(topic, key, text, hints[key]) if key in hints else text
    return given


def check_push(topic: Topic) -> None:
    """Raise `InvalidTopic` if the topic has push attributes that make no endpoint."""
    if any(name.startswith(PUSH) for name in topic.options.attributes):
        from emq.push.endpoint import Endpoint

        Endpoint.from_topic(topic)


def endpoint(topic: Topic) -> str:
    """Where the topic is pushed to; empty if nowhere."""
    return topic.options.attributes.get("push.url", "")


def _converted(topic: str, key: str, text: str, hint: Any) -> Any:
    optional = isinstance(hint, types.UnionType) and type(None) in typing.get_args(hint)
    if optional and text.lower() in ("none", "null", ""):
        return None
    value: Any = text
    if typing.get_origin(hint) is tuple:
        value = [part.strip() for part in text.split(",") if part.strip()]
    try:
        return msgspec.convert(value, hint, strict=False)
    except msgspec.ValidationError as exc:
        raise errors.InvalidTopic(f"topic {topic!r}: {key}={text!r} does not fit: {exc}") from None
