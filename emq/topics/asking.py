"""Topics as programs ask for them: checks the arguments, and compares them with a topic that exists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from emq.runtime import documents, errors
from emq.runtime.inputs import alike, shown
from emq.topics import secret_attributes
from emq.topics.model import Kind, Topic, TopicOptions, called
from emq.topics.rules import validate_text

_UNASKED: Mapping[str, object] = {"kind": Kind.LOG, "slots": 0}
"""Values that ask for nothing: a topic below a family then has what the family has."""

_OPTIONS = TopicOptions.__struct_fields__
SETTINGS = ("qps", "group_qps", "priorities", "kind", "slots", *_OPTIONS)
"""The names that a program may give a value when it creates a topic."""


def topic_of(name: str, arguments: Mapping[str, Any]) -> Topic:
    """Return the topic that `arguments` ask for, with all values of their types; nothing is stored.

    Below a family the topic gets these settings as its own, and all others from the family.

    Args:
        name: the topic's name.
        arguments: fields of `Topic`, and options by their names.

    Raises:
        InvalidTopic: an argument is unknown or of a wrong type; the text names the argument and its value.
    """
    validate_text(name)
    for key in arguments:
        if key not in SETTINGS:
            hint = alike(key, SETTINGS) or f"; the options are {', '.join(_OPTIONS)}"
            raise errors.InvalidTopic(f"{called(name)} has no option {shown(key)}{hint}")
    if "kind" in arguments and arguments["kind"] not in tuple(Kind):
        raise errors.InvalidTopic(
            f"{called(name)}: kind {shown(arguments['kind'])} is not known; choose {', '.join(Kind)}"
        )
    options = {key: value for key, value in arguments.items() if key in _OPTIONS}
    fields = {key: value for key, value in arguments.items() if key not in _OPTIONS}
    for key in ("priorities", "weights", "backoff_s"):
        if isinstance(arguments.get(key), str | bytes):
            raise errors.InvalidTopic(f"{called(name)}: {key} {shown(arguments[key])} is one text; give a list")
    own = tuple(key for key in SETTINGS if key in arguments and arguments[key] != _UNASKED.get(key))
    return checked(Topic(name, **fields, options=TopicOptions(**options), own=own))


def checked(topic: Topic) -> Topic:
    """Return the topic with all values of their types, since a struct does not check them when it is made.

    Raises:
        InvalidTopic: a value has a wrong type.
    """
    try:
        plain = msgspec.to_builtins(topic)
    except TypeError as exc:
        raise errors.InvalidTopic(f"{called(topic.name)}: {exc}; give texts and numbers") from exc
    return documents.converted(plain, Topic, called(topic.name), errors.InvalidTopic)


def differences(asked: Topic, there: Topic, names: Iterable[str] = SETTINGS) -> dict[str, str]:
    """Return how the existing topic differs from `asked`, as text: each setting's name with the two values.

    Args:
        names: the settings to compare. `slots` 0 asks for no number, and sorted topics have no priorities.
    """
    found: dict[str, str] = {}
    for name in names:
        if (name == "slots" and not asked.slots) or (name == "priorities" and asked.is_sorted):
            continue
        wanted, has = value(asked, name), value(there, name)
        if wanted != has and name == "attributes":
            wanted, has = secret_attributes.masked(wanted), secret_attributes.masked(has)
            others = wanted if wanted != has else f"{wanted} with another secret"
            found[name] = f"{name} is {shown(has)}, not {shown(others)}"
        elif wanted != has:
            found[name] = f"{name} is {shown(_plain(has))}, not {shown(_plain(wanted))}"
    return found


def value(topic: Topic, name: str) -> Any:
    """Return a setting or an option of the topic."""
    return getattr(topic.options if name in _OPTIONS else topic, name)


def _plain(value: object) -> object:
    """Return a value as people write it: names without their enums, 50 for 50.0."""
    plain = msgspec.to_builtins(value)
    return int(plain) if isinstance(plain, float) and plain.is_integer() else plain
