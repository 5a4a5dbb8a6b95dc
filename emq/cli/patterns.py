"""Topics chosen by a pattern: optional, and the same in every command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

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


async def matching(app: App, pattern: str) -> list[Topic]:
    """Return the topics that match a pattern. Raises `UnknownTopic` if a plain name is not there."""
    topics = await app.catalog.list(pattern)
    if not topics and not is_pattern(pattern):
        await app.catalog.get(pattern)
    return topics


def is_pattern(text: str) -> bool:
    """Return True if a text has wildcards."""
    return bool(set("*?[") & set(text))


def none(pattern: str) -> str:
    """Say that no topic matches."""
    if pattern == "*":
        return "there are no topics yet; create one with: emq topic create NAME --qps 10"
    return f"no topic matches {pattern!r}"
