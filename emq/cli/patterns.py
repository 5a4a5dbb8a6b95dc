"""Topics chosen by a pattern: optional, and the same in every command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from emq.cli import output

if TYPE_CHECKING:
    from emq.app import App
    from emq.topics.model import Topic

Pattern = Annotated[
    str,
    typer.Argument(
        metavar="[TOPIC|PATTERN]",
        help="A topic's name, or a shell pattern such as 'shop.*'. (default: all)",
        show_default=False,
    ),
]


NameOrPattern = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC|PATTERN", help="A topic's name, or a shell pattern such as 'shop.*'.", show_default=False
    ),
]


async def matching(app: App, pattern: str) -> list[Topic]:
    """Return the topics that match a pattern. Raises `UnknownTopic` if a plain name is not there."""
    return [*await app.catalog.matching(pattern)]


def is_pattern(text: str) -> bool:
    """As in `emq.topics.catalog`, which is not loaded for `--help`."""
    from emq.topics import catalog

    return catalog.is_pattern(text)


def matched(topics: int, pattern: str) -> str:
    """Return `1 topic that matches 'a*'`, `2 topics that match 'a*'`."""
    return f"{output.count(topics, 'topic')} that match{'es' if topics == 1 else ''} {pattern!r}"


def none(pattern: str, place: str) -> str:
    """Say that no topic matches; `place` names the store and the database (`App.place`)."""
    if pattern == "*":
        return f"there are no topics yet in the {place}; create one with: emq topic create NAME --qps 10"
    return f"no topic matches {pattern!r} in the {place}"
