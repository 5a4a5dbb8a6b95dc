"""`key=value` from the command line, made into settings of a topic."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from emq.runtime import documents, errors, extending, inputs
from emq.runtime.settings import Settings
from emq.timetable import delay_levels
from emq.topics import families, secret_attributes
from emq.topics.model import DEFAULT_GROUP_QPS, Kind, State, Topic, TopicOptions, called
from emq_cli import output, times

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

    def changes(self, topic: Topic, settings: Settings) -> dict[str, Any]:
        """Return the changes of a topic, as the catalog is to keep them. Raises as `check`."""
        if not self.attributes:
            return self.settings
        options = msgspec.structs.replace(topic.options, attributes=self.merged(topic.options.attributes))
        changed = msgspec.structs.replace(topic, options=options)
        check(changed, settings, self.attributes)
        return {**self.settings, "attributes": stored(changed, settings).options.attributes}


class Wish(typing.NamedTuple):
    """The options of `emq topic create`; None for those that were not given."""

    qps: float | None
    kind: str | None
    slots: int | None
    group_qps: float | None
    priorities: str | None
    url: str | None
    settings: list[str] | None


def asked(name: str, wish: Wish) -> Topic:
    """Return the topic that options ask for; `own` names the settings that were given.

    Raises:
        InvalidTopic: an option is not known, or is given in the wrong way.
    """
    pairs = list(wish.settings or ()) + ([f"{taker().address}={wish.url}"] if wish.url is not None else [])
    subject = called(name)
    given = parse(subject, pairs)
    names = None if wish.priorities is None else tuple(part.strip() for part in wish.priorities.split(","))
    kind = None if wish.kind is None else Kind(wish.kind)
    fields = {"qps": wish.qps, "kind": kind, "slots": wish.slots, "group_qps": wish.group_qps, "priorities": names}
    asked: dict[str, Any] = {key: value for key, value in fields.items() if value is not None}
    options = {key: value for key, value in given.settings.items() if key in TopicOptions.__struct_fields__}
    for key in given.settings.keys() - options.keys():
        if key in fields:
            raise errors.InvalidTopic(f"{subject}: give {key} as --{key.replace('_', '-')}, not with --set")
        raise errors.InvalidTopic(f"{subject} has no option {key!r}; {listed()}")
    own = families.ordered([*asked, *options, *(["attributes"] if given.attributes else [])])
    topic_options = TopicOptions(**options, attributes=given.merged({}))
    return Topic(name, asked.pop("qps", DEFAULT_GROUP_QPS), **asked, options=topic_options, own=own)


def state(topic: Topic) -> str:
    """Return the state of a topic for people, who see that it sleeps."""
    if not topic.asleep_s:
        return topic.state.value
    return "asleep" if topic.state is State.ACTIVE else f"{topic.state.value}, asleep"


def parse(subject: str, pairs: Iterable[str]) -> Given:
    """Read `key=value` pairs for `subject`, as errors name it: `topic 'shop'`.

    A key is a setting or option of a topic, `attributes.NAME`, or an attribute of an extension such as `push.NAME`.
    Lists are written with commas, `none` is None, names with durations as `remind=30m,final=2h`. A value `@FILE` is the
    text of that file, less the line break at its end; `@@` begins a value with a plain @.

    Raises:
        InvalidTopic: a pair without `=`, a key that is not known, a value of the wrong type, or a file that cannot be
            read.
    """
    hints = _hints()
    given = Given({}, {})
    for pair in pairs:
        key, mark, text = pair.partition("=")
        if not mark or not key:
            raise errors.InvalidTopic(f"{subject}: {pair!r} is not a setting; write key=value, such as qps=100")
        if text.startswith("@"):
            text = text[1:] if text.startswith("@@") else _file(subject, key, text[1:])
        if key.startswith((ATTRIBUTE, *_prefixes())):
            given.attributes[key.removeprefix(ATTRIBUTE)] = text
        elif key in ("options", "attributes"):
            raise errors.InvalidTopic(f"{subject}: set single options, such as max_attempts=5 or {key[:9]}.NAME=...")
        elif key not in hints:
            alike = inputs.alike(key, KNOWN)
            raise errors.InvalidTopic(f"{subject} has no option {key!r}{alike or ';'} {listed()}")
        else:
            given.settings[key] = converted(subject, key, text, hints[key])
    return given


@functools.cache
def _hints() -> dict[str, Any]:
    return {**typing.get_type_hints(Topic), **typing.get_type_hints(TopicOptions)}


def listed() -> str:
    """Return the end of a message that lists every option."""
    names = "".join(f", {prefix}NAME" for prefix in _prefixes())
    return f"the options are {', '.join(KNOWN)}{names} and attributes.NAME; see: emq topic options"


def _prefixes() -> tuple[str, ...]:
    """Return the beginnings of the attributes to which extensions give a meaning."""
    return tuple(e.prefix for e in extending.extensions() if e.prefix)


def check(topic: Topic, settings: Settings, given: Mapping[str, str] | None = None) -> None:
    """Raise `InvalidTopic` if an extension refuses the topic's attributes on hosts with these settings.

    Args:
        given: the attributes that change; None for a new topic.
    """
    for extension in extending.extensions():
        extension.check(topic, settings, is_new=given is None or extension.address in given)


def stored(topic: Topic, settings: Settings) -> Topic:
    """Return the topic as the catalog is to keep it."""
    for extension in extending.extensions():
        topic = extension.stored(topic, settings)
    return topic


def taker() -> extending.Extension:
    """Return the extension that takes messages to an address.

    Raises:
        InvalidTopic: no package is installed that does.
    """
    found = next(iter(extending.takers()), None)
    if found is None:
        raise errors.InvalidTopic("nothing is installed that takes messages to an address; leave --url out")
    return found


def without_secret(pair: str) -> str:
    """Return a `key=value` pair as it may be shown."""
    key, mark, text = pair.partition("=")
    return (
        f"{key}{mark}{secret_attributes.MASK}"
        if text and secret_attributes.is_secret(key.removeprefix(ATTRIBUTE))
        else pair
    )


def endpoint(topic: Topic) -> str:
    """Return where an extension takes the topic's messages; empty if nowhere."""
    attributes = topic.options.attributes
    found = extending.addressed(attributes)
    return "" if found is None else attributes[found.address]


def split(topic: Topic) -> str:
    """`3 groups`, or `8 slots` of a sorted topic."""
    return output.count(topic.groups, "slot" if topic.is_sorted else "group")


def cells(topic: Topic) -> tuple[output.Cell, ...]:
    """Return name, kind, qps, parts, priorities and state, for a list of topics or families."""
    priorities = ", ".join(topic.priorities) or "-"
    return topic.name, topic.kind.value, topic.qps, split(topic), priorities, state(topic)


def converted(subject: str, key: str, text: str, hint: Any) -> Any:
    optional = isinstance(hint, types.UnionType) and type(None) in typing.get_args(hint)
    if optional and text.lower() in ("none", "null", ""):
        return None
    if typing.get_origin(hint) is dict:
        return _levels(subject, key, text)
    value: Any
    if typing.get_origin(hint) is tuple:
        value = [times.in_seconds(key, part.strip()) for part in text.split(",") if part.strip()]
    else:
        value = times.in_seconds(key, text)
    try:
        return msgspec.convert(value, hint, strict=False)
    except msgspec.ValidationError as exc:
        raise errors.InvalidTopic(f"{subject}: {key}={text!r} does not fit{documents.remedy(exc, hint)}") from None


def _file(subject: str, key: str, name: str) -> str:
    try:
        return Path(name).read_text().removesuffix("\n")
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else exc
        raise errors.InvalidTopic(
            f"{subject}: {key}=@{name}: cannot read {name!r}: {why}; a value that begins with @ is written @@"
        ) from exc


def _levels(subject: str, key: str, text: str) -> dict[str, float]:
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
                f"{subject}: {key}: {part!r} is not NAME=DURATION; write remind=30m,final=2h, or {ROCKETMQ}"
            )
        found[name] = seconds
    return found
