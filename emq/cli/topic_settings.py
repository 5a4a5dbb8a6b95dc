"""`key=value` from the command line, made into settings of a topic."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from emq import errors
from emq.cli import output, times
from emq.settings import Settings
from emq.timetable import delay_levels
from emq.topics import changing, documents, secret_attributes
from emq.topics.model import Topic, TopicOptions

PUSH = "push."
ATTRIBUTE = "attributes."
ROCKETMQ = "rocketmq"
"""As a value of delay_levels: RocketMQ's."""


KNOWN = ("qps", "group_qps", *(name for name in TopicOptions.__struct_fields__ if name != "attributes"))
"""Names that `emq topic set` takes."""


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
    is None, names with durations as `remind=30m,final=2h`. A value `@FILE` is the text of that file, less the line
    break at its end; `@@` begins a value with a plain @.

    Raises:
        InvalidTopic: a pair without `=`, a key that is not known, a value of the wrong type, or a file that cannot be
            read.
    """
    hints = {**typing.get_type_hints(Topic), **typing.get_type_hints(TopicOptions)}
    given = Given({}, {})
    for pair in pairs:
        key, mark, text = pair.partition("=")
        if not mark or not key:
            raise errors.InvalidTopic(f"topic {topic!r}: {pair!r} is not a setting; write key=value, such as qps=100")
        if text.startswith("@"):
            text = text[1:] if text.startswith("@@") else _file(topic, key, text[1:])
        if key.startswith((PUSH, ATTRIBUTE)):
            given.attributes[key.removeprefix(ATTRIBUTE)] = text
        elif key in ("options", "attributes"):
            raise errors.InvalidTopic(
                f"topic {topic!r}: set single options, such as max_attempts=5 or {key[:9]}.NAME=..."
            )
        elif key not in hints:
            alike = changing.alike(key, KNOWN)
            raise errors.InvalidTopic(f"topic {topic!r} has no option {key!r}{alike or ';'} {listed()}")
        else:
            given.settings[key] = _converted(topic, key, text, hints[key])
    return given


def listed() -> str:
    """Return the end of a message that lists every option."""
    return f"the options are {', '.join(KNOWN)}, push.NAME and attributes.NAME; see: emq topic options"


def check_push(topic: Topic, settings: Settings, *, is_new: bool = True) -> None:
    """Raise `InvalidTopic` if the topic has push attributes that make no endpoint, or one that the settings forbid.

    Args:
        is_new: False if the URL has not changed.
    """
    if any(name.startswith(PUSH) for name in topic.options.attributes):
        from emq_push.addresses import AddressFilter
        from emq_push.endpoint import Endpoint
        from emq_push.secrets import Secrets

        found = Endpoint.from_topic(topic, Secrets.of_setting(settings))
        if found is not None and is_new:
            addresses = AddressFilter.of_settings(settings)
            try:
                addresses.check_url(found.url)
                addresses.check_host(found.url.host or "")
            except (ValueError, OSError) as exc:
                raise errors.InvalidTopic(f"topic {topic.name!r}: {exc}") from None


async def agreed(topic: Topic, origin: str, settings: Settings) -> Topic:
    """Ask the topic's endpoint for permission; return the topic with what it allows, its qps no higher than that.

    Raises:
        InvalidTopic: the topic has no endpoint, or the endpoint does not agree.
    """
    from emq_push import handshake
    from emq_push.addresses import AddressFilter
    from emq_push.endpoint import Endpoint
    from emq_push.secrets import Secrets

    found = Endpoint.from_topic(topic, Secrets.of_setting(settings))
    if found is None:
        raise errors.InvalidTopic(f"topic {topic.name!r}: --handshake needs an endpoint; give --url")
    addresses = AddressFilter.of_settings(settings)
    try:
        allowed = await handshake.handshake(found, origin, topic.qps, addresses)
    except errors.InvalidTopic as exc:
        raise errors.InvalidTopic(f"topic {topic.name!r}: {exc}") from exc
    kept = {**topic.options.attributes, **allowed.attributes}
    attributes = {name: value for name, value in kept.items() if value}
    topic = msgspec.structs.replace(topic, options=msgspec.structs.replace(topic.options, attributes=attributes))
    return msgspec.structs.replace(topic, qps=handshake.capped(topic))


def encrypted(topic: Topic, settings: Settings) -> Topic:
    """Return the topic with its secrets of push as they are to be kept."""
    attributes = topic.options.attributes
    if not settings.secret_key and not settings.secret_key_file:
        return topic
    from emq_push.secrets import Secrets

    secrets = Secrets.of_setting(settings)
    kept = {n: secrets.encrypt(v) if v and secret_attributes.is_secret(n) else v for n, v in attributes.items()}
    return msgspec.structs.replace(topic, options=msgspec.structs.replace(topic.options, attributes=kept))


def without_secret(pair: str) -> str:
    """Return a `key=value` pair as it may be shown."""
    key, mark, text = pair.partition("=")
    return (
        f"{key}{mark}{secret_attributes.MASK}"
        if text and secret_attributes.is_secret(key.removeprefix(ATTRIBUTE))
        else pair
    )


def endpoint(topic: Topic) -> str:
    """Where the topic is pushed to; empty if nowhere."""
    return topic.options.attributes.get("push.url", "")


def split(topic: Topic) -> str:
    """`3 groups`, or `8 slots` of a sorted topic."""
    return output.count(topic.groups, "slot" if topic.is_sorted else "group")


def _converted(topic: str, key: str, text: str, hint: Any) -> Any:
    optional = isinstance(hint, types.UnionType) and type(None) in typing.get_args(hint)
    if optional and text.lower() in ("none", "null", ""):
        return None
    if typing.get_origin(hint) is dict:
        return _levels(topic, key, text)
    value: Any = text
    if typing.get_origin(hint) is tuple:
        value = [part.strip() for part in text.split(",") if part.strip()]
    try:
        return msgspec.convert(value, hint, strict=False)
    except msgspec.ValidationError as exc:
        raise errors.InvalidTopic(
            f"topic {topic!r}: {key}={text!r} does not fit{documents.remedy(exc, hint)}"
        ) from None


def _file(topic: str, key: str, name: str) -> str:
    try:
        return Path(name).read_text().removesuffix("\n")
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else exc
        raise errors.InvalidTopic(
            f"topic {topic!r}: {key}=@{name}: cannot read {name!r}: {why}; a value that begins with @ is written @@"
        ) from exc


def _levels(topic: str, key: str, text: str) -> dict[str, float]:
    if text.lower() == ROCKETMQ:
        return dict(delay_levels.ROCKETMQ)
    if text.lower() == "none":
        return {}
    found: dict[str, float] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, span = part.partition("=")
        seconds = times.span_s(span)
        if not name or seconds is None:
            raise errors.InvalidTopic(
                f"topic {topic!r}: {key}: {part!r} is not NAME=DURATION; write remind=30m,final=2h, or {ROCKETMQ}"
            )
        found[name] = seconds
    return found
