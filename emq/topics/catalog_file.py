"""Topics as a TOML or JSON file: `topics`, a list of tables with the settings of one topic each; and `families`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import tomli_w

from emq.runtime import documents, errors, extending, inputs
from emq.topics import family_file
from emq.topics.families import Family
from emq.topics.model import Topic, TopicOptions
from emq.topics.secret_attributes import without_secrets

_COMPUTED = ("active_groups", "groups", "divisions", "layout", "earlier", "shared_s", "family", "asleep_s")
_FIELDS = tuple(field for field in Topic.__struct_fields__ if field not in _COMPUTED)
_OPTIONS = TopicOptions.__struct_fields__


def dump(topics: Iterable[Topic], fmt: str, families: Iterable[Family] = (), *, secrets: bool = False) -> str:
    """Return topics and families as text; options at their defaults are left out, secrets masked unless asked for.

    Raises:
        ValueError: `fmt` is neither "toml" nor "json".
    """
    document: dict[str, Any] = {"topics": [_plain(t if secrets else without_secrets(t)) for t in topics]}
    if of_families := family_file.plain(families, secrets=secrets):
        document["families"] = of_families
    if fmt == "toml":
        return tomli_w.dumps(document)
    if fmt == "json":
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
    raise ValueError(_unknown_format(fmt))


def load(text: str, fmt: str) -> list[Topic]:
    """Return the topics in the text; see `load_all`."""
    return load_all(text, fmt)[0]


def load_all(text: str, fmt: str) -> tuple[list[Topic], Sequence[Family]]:
    """Return topics and families in the text; their values are not yet checked against the model's ranges.

    Raises:
        InvalidTopic: the text is not readable, a topic is in it twice, or a field is missing, unknown or of the wrong
            type.
        ValueError: `fmt` is neither "toml" nor "json".
    """
    if fmt not in ("toml", "json"):
        raise ValueError(_unknown_format(fmt))
    document = documents.parsed(text, fmt, "the list of topics", errors.InvalidTopic)
    families = family_file.load(document)
    entries = document.get("topics", [] if families else None) if isinstance(document, dict) else None
    if not isinstance(entries, list):
        entry = "a table [[topics]]" if fmt == "toml" else "an object"
        raise errors.InvalidTopic(f"the file has no list 'topics'; write {entry} in it for each topic")
    topics = [_topic(number, entry, fmt) for number, entry in enumerate(entries, 1)]
    names = [topic.name for topic in topics]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise errors.InvalidTopic(f"topic {inputs.shown(twice)} is in the file twice; keep one")
    return topics, families


def _plain(topic: Topic) -> dict[str, Any]:
    plain = msgspec.to_builtins(topic)
    if not plain["options"]:
        del plain["options"]
    if not plain["own"]:
        del plain["own"]
    return {key: value for key, value in plain.items() if key not in _COMPUTED}


def _topic(number: int, entry: Any, fmt: str) -> Topic:
    if not isinstance(entry, dict):
        raise errors.InvalidTopic(
            f"entry {number} of 'topics' is {documents.plain(entry) or 'a list'}; write a table with name and qps"
        )
    name = entry.get("name")
    source = f"topic {inputs.shown(name)}" if isinstance(name, str) else f"topic number {number}"
    if unknown := [key for key in entry if key not in _FIELDS]:
        raise errors.InvalidTopic(f"{source}: {_misplaced(unknown[0], (), fmt)}")
    options = entry.get("options")
    if isinstance(options, dict) and (unknown := [key for key in options if key not in _OPTIONS]):
        raise errors.InvalidTopic(f"{source}: {_misplaced(unknown[0], ('options',), fmt)}")
    return documents.converted(entry, Topic, source, errors.InvalidTopic)


def _misplaced(key: str, table: tuple[str, ...], fmt: str) -> str:
    """Return the text for a wrong key, with the key's right place; `table` is the path below the topic."""
    given = f"there is no key {inputs.shown('.'.join((*table, key)))}"
    home: tuple[str, ...] | None = None
    owner = next((e for e in extending.extensions() if e.prefix and f"{key}.".startswith(e.prefix)), None)
    if owner is not None:
        given += f'; the settings of {owner.prefix.rstrip(".")} are attributes, such as "{owner.address}"'
        home = ("options", "attributes")
    elif key == "attributes" or key in _OPTIONS:
        home = ("options",)
    elif key in _FIELDS:
        home = ()
    if home is not None:
        return f"{given}; put it under {_heading(home, fmt)}"
    known, others = (_OPTIONS, _FIELDS) if table else (_FIELDS, _OPTIONS)
    return f"{given}{inputs.alike(key, [*known, *others])}; the keys are {', '.join(known)}"


def _heading(table: tuple[str, ...], fmt: str) -> str:
    """Return a table as a file has it, such as `[topics.options]`; the topic itself is `[[topics]]`."""
    if fmt == "json":
        return f'"{table[-1]}"' if table else "the topic itself"
    return f"[{'.'.join(('topics', *table))}]" if table else "[[topics]]"


def _unknown_format(fmt: str) -> str:
    return f"format {fmt!r} is not known; choose toml or json"
