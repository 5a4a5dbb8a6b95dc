"""Topics as a TOML or JSON file: `topics`, a list of tables with the settings of one topic each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import tomli_w

from emq import errors
from emq.topics import documents, inputs
from emq.topics.model import Topic

_COMPUTED = ("active_groups", "groups", "divisions", "layout", "earlier")
_FIELDS = tuple(field for field in Topic.__struct_fields__ if field not in _COMPUTED)


def dump(topics: Iterable[Topic], fmt: str) -> str:
    """Return the topics as text; settings at their defaults are left out.

    Raises:
        ValueError: `fmt` is neither "toml" nor "json".
    """
    document = {"topics": [_plain(topic) for topic in topics]}
    if fmt == "toml":
        return tomli_w.dumps(document)
    if fmt == "json":
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
    raise ValueError(_unknown_format(fmt))


def load(text: str, fmt: str) -> list[Topic]:
    """Return the topics in the text; their values are not yet checked against the model's ranges.

    Raises:
        InvalidTopic: the text is not readable, a topic is in it twice, or a field is missing, unknown or of the wrong
            type.
        ValueError: `fmt` is neither "toml" nor "json".
    """
    if fmt not in ("toml", "json"):
        raise ValueError(_unknown_format(fmt))
    document = documents.parsed(text, fmt, "the list of topics", errors.InvalidTopic)
    entries = document.get("topics") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise errors.InvalidTopic("the file has no list 'topics'; write one entry under it for each topic")
    topics = [_topic(number, entry) for number, entry in enumerate(entries, 1)]
    names = [topic.name for topic in topics]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise errors.InvalidTopic(f"topic {inputs.shown(twice)} is in the file twice; keep one")
    return topics


def _plain(topic: Topic) -> dict[str, Any]:
    plain = msgspec.to_builtins(topic)
    if not plain["options"]:
        del plain["options"]
    return {key: value for key, value in plain.items() if key not in _COMPUTED}


def _topic(number: int, entry: Any) -> Topic:
    if not isinstance(entry, dict):
        raise errors.InvalidTopic(
            f"entry {number} of 'topics' is {documents.plain(entry) or 'a list'}; write a table with name and qps"
        )
    name = entry.get("name")
    source = f"topic {inputs.shown(name)}" if isinstance(name, str) else f"topic number {number}"
    if unknown := [key for key in entry if key not in _FIELDS]:
        given = inputs.shown(unknown[0])
        raise errors.InvalidTopic(f"{source}: there is no key {given}; the keys are {', '.join(_FIELDS)}")
    return documents.converted(entry, Topic, source, errors.InvalidTopic)


def _unknown_format(fmt: str) -> str:
    return f"format {fmt!r} is not known; choose toml or json"
