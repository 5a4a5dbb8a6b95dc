"""Families in a TOML or JSON file of topics: `families`, a table with the settings and bounds of each by its name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from emq.runtime import documents, errors, inputs
from emq.topics import families, model
from emq.topics.families import BOUNDS, Bounds, Family
from emq.topics.model import Topic, TopicOptions
from emq.topics.secret_attributes import without_secrets

NONE = "none"
"""Stands for no `idle_s`: TOML has no word for no value, and a family that does not say it gives its topics one."""

_FIELDS = ("qps", "group_qps", "priorities", "kind", "slots", "state", "options")
_OPTIONS = TopicOptions.__struct_fields__


def plain(found: Iterable[Family], *, secrets: bool = False) -> dict[str, Any]:
    """Return families as a file has them, in plain values; secrets are masked unless asked for."""
    return {family.name: _plain(family, secrets) for family in found}


def _plain(family: Family, secrets: bool) -> dict[str, Any]:
    topic = family.topic if secrets else without_secrets(family.topic)
    given = msgspec.to_builtins(topic)
    fields = {key: given[key] for key in _FIELDS if given[key] or key == "qps"}
    options = {"idle_s": NONE, **fields.pop("options", {})}
    return {**fields, **msgspec.to_builtins(family.bounds), "options": options}


def load(document: Any) -> Sequence[Family]:
    """Return the families of a document; their values are not yet checked against the model's ranges.

    Raises:
        InvalidTopic: a field is missing, unknown or of the wrong type.
    """
    tables = document.get("families", {}) if isinstance(document, dict) else {}
    if not isinstance(tables, dict):
        raise errors.InvalidTopic("'families' of the file is no table; write [families.\"orders.*\"] for each family")
    return [_family(name, table) for name, table in tables.items()]


def _family(name: str, table: Any) -> Family:
    source = f"family {inputs.shown(name)}"
    if not isinstance(table, dict):
        raise errors.InvalidTopic(f"{source} is {documents.plain(table) or 'a list'}; write a table with its qps")
    known = (*_FIELDS, *BOUNDS)
    for key in table:
        if key not in known:
            place = f'; put it under [families."{name}".options]' if key in _OPTIONS else inputs.alike(key, known)
            place = place or f"; the keys are {', '.join(known)}"
            raise errors.InvalidTopic(f"{source}: there is no key {key!r}{place}")
    bounds = {key: value for key, value in table.items() if key in BOUNDS}
    settings = {key: value for key, value in table.items() if key not in BOUNDS}
    if isinstance(options := settings.get("options", {}), dict):
        idle_s = options.get("idle_s", families.IDLE_S)
        settings["options"] = {**options, "idle_s": None if idle_s == NONE else idle_s}
    topic = documents.converted({"name": name, **settings}, Topic, source, errors.InvalidTopic)
    return Family(topic, documents.converted(bounds, Bounds, source, errors.InvalidTopic))


def changes(there: Family, wanted: Family) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings and bounds in which a family is to become another one.

    Raises:
        InvalidTopic: a setting differs that never changes.
    """
    topic = model.settings_of(wanted.topic)
    names = families.differing(topic, there.topic)
    settings = {name: getattr(topic.options if name in _OPTIONS else topic, name) for name in names}
    return settings, msgspec.structs.asdict(wanted.bounds)
