"""`key=value` from the command line, made into settings and bounds of a family."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from emq.topics import asking, families, secret_attributes
from emq.topics.families import BOUNDS, Bounds, Family
from emq.topics.family_rows import Stored
from emq.topics.model import Topic, called
from emq_cli import output, topic_settings
from emq_cli.topic_options import written

SHOWN = 20
"""Topics with settings of their own that are shown; JSON has all."""


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
    subject = called(families.of_prefix(name))
    for pair in pairs:
        key, mark, text = pair.partition("=")
        if mark and key in BOUNDS:
            given[key] = topic_settings.converted(subject, key, text, hints[key])
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


def render(stored: Stored, own: Mapping[str, Sequence[str]]) -> RenderableType:
    """Return a family in full: its settings that are not the defaults, its bounds, and the topics that differ."""
    topic, bounds = stored.family.topic, stored.family.bounds
    given = families.differing(topic, Topic("", topic.qps))
    idle_s = topic.options.idle_s
    idle = "never falls asleep" if idle_s is None else f"falls asleep after {output.number(idle_s)} s"
    lines = [
        ("family", topic.name),
        ("state", topic.state.value),
        ("qps", f"{output.number(topic.qps)} for each topic, over {topic_settings.split(topic)}"),
        ("topics", f"{stored.live:,} of at most {bounds.max_topics:,} awake"),
        ("names", f"up to {bounds.name_length} bytes behind {stored.family.prefix!r}, of {bounds.alphabet}"),
        ("an idle topic", idle),
        *(
            (name, written(asking.value(topic, name)) or "none")
            for name in given
            if name not in ("state", "attributes", "idle_s")
        ),
        *secret_attributes.masked(topic.options.attributes).items(),
    ]
    parts: list[RenderableType] = [output.facts(lines)]
    if own:
        rows = [(name, ", ".join(own[name])) for name in [*own][:SHOWN]]
        parts.append(output.table("topics with settings of their own", ("topic", "its own"), rows))
        if len(own) > SHOWN:
            parts.append(Text(f"... and {len(own) - SHOWN:,} more; --json has all"))
    return Group(*parts)
