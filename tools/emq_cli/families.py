"""`emq family`: settings for all topics below a prefix, which the first publish to a name makes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from emq_cli import output
from emq_cli.arguments import Yes
from emq_cli.entry import Room
from emq_cli.session import Session, command
from emq_cli.topic_arguments import GroupQps, KindOption, Priorities, Settings, Slots, Url

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
    (a-zA-Z0-9._@-). A topic that holds nothing for idle_s (300) falls asleep, and wakes with the next publish.

    Example: emq family create 'orders.*' --qps 50 --priorities high,low

    Example: emq family create 'mail.*' --qps 5 --set max_attempts=8 --set max_topics=5000 --set idle_s=3600
    """
    from emq.topics.families import IDLE_S, Family
    from emq_cli import family_settings, topic_settings

    options, bounds = family_settings.apart(name, [f"idle_s={IDLE_S:g}", *(settings or [])])
    topic = topic_settings.asked(name, topic_settings.Wish(qps, kind, slots, group_qps, priorities, url, options))
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
    """List the families, each with the number of its topics that are awake.

    Example: emq family list
    """
    from emq_cli import family_settings, topic_settings

    async with session.app() as opened:
        found = await opened.families.list()
    columns = ("family", "kind", "qps of each", "split into", "priorities", "state", "topics", "at most")
    rows: list[tuple[output.Cell, ...]] = [
        (*topic_settings.cells(stored.family.topic), stored.live, stored.family.bounds.max_topics) for stored in found
    ]
    data: list[dict[str, Any]] = [{**family_settings.data(stored.family), "topics": stored.live} for stored in found]
    right, spare = ("qps of each", "split into", "topics", "at most"), ("priorities", "split into")
    empty = "no families; make one: emq family create 'orders.*' --qps 50"
    session.page(data, lambda: output.table("", columns, rows, right=right, spare=spare), none=empty)


@command(app, "show")
async def show(session: Session, name: Name) -> None:
    """Show a family: its settings and bounds, how many topics it has, and which have settings of their own.

    Example: emq family show 'orders.*'
    """
    from emq_cli import family_settings

    async with session.app() as opened:
        stored = await opened.families.get(name)
        topics = await opened.families.topics(name)
    own = {topic.name: list(topic.own) for topic in topics if topic.own}
    data = {**family_settings.data(stored.family), "topics": stored.live, "own": own}
    session.show(data, lambda: family_settings.render(stored, own))


@command(app, "set")
async def set_(
    session: Session,
    name: Name,
    settings: Annotated[
        list[str],
        typer.Argument(metavar="KEY=VALUE", help="One or several, such as qps=100 max_attempts=5 max_topics=5000"),
    ],
) -> None:
    """Change settings and bounds of a family, and at once of all its topics in what is not their own.

    Example: emq family set 'orders.*' qps=100 max_attempts=5 idle_s=none
    """
    from emq.topics import changing
    from emq.topics.model import called
    from emq_cli import family_settings, topic_settings

    options, bounds = family_settings.of_bounds(name, settings)
    given = topic_settings.parse(called(name), options)
    changing.validate(called(name), given.settings)
    async with session.app() as opened:
        topic = (await opened.families.get(name)).family.topic
        made = await opened.families.set(name, given.changes(topic, session.settings), bounds)
    keys = ", ".join([*given.settings, *given.attributes, *bounds])
    text = f"family {name!r}: changed {keys}, and {output.count(len(made.after), 'topic')}"
    session.say(text, {**family_settings.data(made.family), "changed": len(made.after)})


@command(app, "pause")
async def pause(session: Session, name: Name) -> None:
    """Stop consuming all topics of a family; publishing goes on.

    Example: emq family pause 'orders.*'
    """
    await _set_state(session, name, "paused", "is paused: its topics take messages and start none")


@command(app, "resume")
async def resume(session: Session, name: Name) -> None:
    """Let all topics of a paused or draining family publish and consume again.

    A topic that was paused by itself stays paused.

    Example: emq family resume 'orders.*'
    """
    await _set_state(session, name, "active", "is active")


@command(app, "drain")
async def drain(session: Session, name: Name) -> None:
    """Refuse new messages for all topics of a family, and make no new topics; hosts consume the rest.

    A topic that was paused by itself goes on taking messages.

    Example: emq family drain 'orders.*'
    """
    await _set_state(
        session, name, "draining", "is draining: its topics take no new messages and deliver those that they have"
    )


@command(app, "delete")
async def delete(
    session: Session,
    name: Name,
    force: Annotated[
        bool, typer.Option("--force", help="Delete its topics, too, with the messages that they still hold.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Delete a family that has no topics.

    Example: emq family delete 'orders.*' --force --yes
    """
    async with session.app() as opened:
        stored = await opened.families.get(name)
        topics = f" and its {output.count(stored.live, 'topic')} with their messages" if force and stored.live else ""
        session.confirm(f"Delete family {name!r}{topics}?", yes)
        gone, messages = await opened.families.delete(name, force=force)
    text = f"deleted family {name!r}, {output.count(gone, 'topic')} and {output.count(messages, 'message')}"
    session.say(text, {"deleted": name, "topics": gone, "messages": messages})


async def _set_state(session: Session, name: str, state: str, text: str) -> None:
    from emq.topics.model import State
    from emq_cli import family_settings

    async with session.app() as opened:
        made = await opened.families.set(name, {"state": State(state)})
    session.say(f"family {name!r} {text}", {**family_settings.data(made.family), "changed": len(made.after)})
