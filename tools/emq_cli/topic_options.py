"""The options of topics, for `emq topic options`: all texts come from the fields of the model."""

from __future__ import annotations

import fnmatch
from typing import Any

from rich.console import RenderableType

from emq.runtime import errors, extending, inputs
from emq.topics.model import SORTED_OPTIONS, Topic
from emq.topics.options import Described, TopicOptions, described
from emq_cli import output


def matching(pattern: str) -> list[Described]:
    """Return the settings and options of a topic whose names match a shell pattern.

    Raises:
        InvalidTopic: no name matches.
    """
    every = [*described(Topic), *described(TopicOptions)]
    found = [option for option in every if fnmatch.fnmatchcase(option.name, pattern)]
    if not found:
        alike = inputs.alike(pattern, [option.name for option in every])
        raise errors.InvalidTopic(f"no option of a topic is named {pattern!r}{alike or '; see: emq topic options'}")
    return found


def render(found: list[Described]) -> RenderableType:
    """Return a table with a line for each option."""
    rows = [(o.name, o.type, written(o.default) or "-", o.unit or "-", _meaning(o)) for o in found]
    return output.table("", ("option", "type", "default", "unit", "meaning"), rows)


def written(value: Any) -> str:
    """Return a value as `emq topic set` takes it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return ",".join(map(written, value))
    if isinstance(value, dict):
        return ",".join(f"{name}={written(one)}" for name, one in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _meaning(option: Described) -> str:
    if option.name == "attributes":
        return " ".join([option.meaning, *(f"{e.prefix.rstrip('.')}: {e.help}." for e in extending.takers())])
    return f"Sorted kinds only. {option.meaning}" if option.name in SORTED_OPTIONS else option.meaning
