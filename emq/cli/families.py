"""`emq family`: settings for all topics below a prefix, which the first publish to a name makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from emq.cli import output
from emq.cli.entry import Room
from emq.cli.session import Session, command
from emq.cli.topics import GroupQps, KindOption, Priorities, Settings, Slots, Url

if TYPE_CHECKING:
    from emq.topics.family_rows import Stored

app = typer.Typer(cls=Room, help="Give settings to all topics below a prefix; the first publish to a name makes it.")

Name = Annotated[
    str,
    typer.Argument(metavar="FAMILY", help="A prefix and a star, in quotes, such as 'orders.*'.", show_default=False),
]
Qps = Annotated[
    float, typer.Option(help="Most messages of each topic started in a second; may be below 1.", show_default=False)
]


@command(app, "create")
async def create(
    session: Session,
    name: Name,
    qps: Qps,
    kind: KindOption = None,
    slots: Slots = None,
    group_qps: GroupQps = None,
    priorities: Priorities = None,
    url: Url = None,
    settings: Settings = None,
) -> None:
    """Create a family: a publish to a name below its prefix makes the topic, with the family's settings.

    Bounds of what publishers may cause are options, too: max_topics (100,000), name_length (64), alphabet
    (a-zA-Z0-9._@-). A topic that holds nothing for idle_s (300) goes, and comes back with the next publish.

    Example: emq family create 'orders.*' --qps 50 --priorities high,low

    Example: emq family create 'mail.*' --qps 5 --set max_attempts=8 --set max_topics=5000 --set idle_s=3600
    """
    from emq.cli import family_settings, topic_settings
    from emq.topics.families import Family

    options, bounds = family_settings.apart(name, settings or [])
    kind_name = kind and kind.value
    topic = topic_settings.asked(name, topic_settings.Wish(qps, kind_name, slots, group_qps, priorities, url, options))
    topic_settings.check(topic, session.settings)
    family = Family(topic_settings.stored(topic, session.settings), bounds)
    async with session.app(create=True) as opened:
        made = await opened.families.create(family)
    of_kind = f", {made.topic.kind}" if made.topic.is_sorted else ""
    text = (
        f"family {name!r}: {output.number(made.topic.qps)} a second for each topic, in "
        f"{topic_settings.split(made.topic)}{of_kind}"
    )
    session.say(text, family_settings.data(made))


@command(app, "list")
async def list_(session: Session) -> None:
    """List the families, each with the number of its topics now.

    Example: emq family list
    """
    from emq.cli import family_settings, topic_settings

    async with session.app() as opened:
        found = await opened.families.list()
    columns = ("family", "kind", "qps of each", "split into", "priorities", "state", "topics", "at most")
    rows: list[tuple[output.Cell, ...]] = [_row(stored, topic_settings.split(stored.family.topic)) for stored in found]
    data: list[dict[str, Any]] = [{**family_settings.data(stored.family), "topics": stored.live} for stored in found]
    right, spare = ("qps of each", "split into", "topics", "at most"), ("priorities", "split into")
    empty = "no families; make one: emq family create 'orders.*' --qps 50"
    session.page(data, lambda: output.table("", columns, rows, right=right, spare=spare), none=empty)


def _row(stored: Stored, split: str) -> tuple[output.Cell, ...]:
    topic, bounds = stored.family.topic, stored.family.bounds
    return (
        *(topic.name, topic.kind.value, topic.qps, split, ", ".join(topic.priorities) or "-", topic.state.value),
        *(stored.live, bounds.max_topics),
    )
