"""`key=value` from the command line, made into settings and bounds of a family."""

from __future__ import annotations

import typing
from collections.abc import Iterable
from typing import Any

import msgspec

from emq.cli import topic_settings
from emq.topics import secret_attributes
from emq.topics.families import BOUNDS, Bounds, Family


def apart(name: str, pairs: Iterable[str]) -> tuple[list[str], Bounds]:
    """Return the pairs that are settings of topics, and the bounds that the others give.

    Raises:
        InvalidTopic: a bound is not of its type.
    """
    options, given = of_bounds(name, pairs)
    return options, Bounds(**given)


def of_bounds(name: str, pairs: Iterable[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the pairs that are settings of topics, and the given bounds by name."""
    options: list[str] = []
    given: dict[str, Any] = {}
    hints = typing.get_type_hints(Bounds)
    for pair in pairs:
        key, mark, text = pair.partition("=")
        if mark and key in BOUNDS:
            given[key] = topic_settings.converted(name, key, text, hints[key])
        else:
            options.append(pair)
    return options, given


def data(family: Family) -> dict[str, Any]:
    """Return all settings and bounds of a family, defaults included."""
    topic = secret_attributes.without_secrets(family.topic)
    given = msgspec.structs.asdict(topic)
    fields = {key: given[key] for key in ("qps", "group_qps", "priorities", "state", "groups", "kind", "slots")}
    return {
        "name": family.name,
        **fields,
        "options": msgspec.structs.asdict(topic.options),
        "bounds": msgspec.structs.asdict(family.bounds),
    }
