"""`emq schedule`: list delayed messages and schedules, and take them back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from emq.runtime import errors
from emq_cli import output
from emq_cli.arguments import Identity, OneId, Pattern, Topic, one_of
from emq_cli.entry import Room
from emq_cli.patterns import none
from emq_cli.session import Session, command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from emq.observe.planned import Planned

app = typer.Typer(cls=Room, help="List delayed messages and schedules, and take them back.")

UPCOMING = 5
"""Occurrences shown of a schedule."""


@command(app, "list")
async def list_(
    session: Session,
    pattern: Pattern = "*",
    limit: Annotated[int, typer.Option(min=1, help="Most entries on a page.")] = 50,
    page: Annotated[int, typer.Option(min=1, help="Number of the page.")] = 1,
) -> None:
    """List delayed messages, schedules and retries by the time at which they are due.

    Example: emq schedule list shop
    """
    from emq.observe import planned as book

    async with session.app() as opened:
        topics = await opened.catalog.matching(pattern)
        entries = book.find(opened.store.lanes, topics, skip=(page - 1) * limit, limit=limit + 1)
        found = await session.listed(entries, limit + 1)
    empty = f"nothing waits for its time in the {opened.place}" if page == 1 else f"there is no page {page}"
    session.page(
        [_data(planned) for planned in found[:limit]],
        lambda: _table(found[:limit]),
        none=empty if topics else none(pattern, opened.place),
        more=f"--page {page + 1} shows more" if len(found) > limit else "",
    )


@command(app, "show")
async def show(session: Session, topic: Topic, message_id: OneId = None, identity: Identity = None) -> None:
    """Show one delayed message, retry or schedule in full, with the next occurrences of a schedule.

    Example: emq schedule show reports 3WXbJQ4Gn1lM1
    """
    from emq.observe import planned as book

    message_id, by_identity = one_of(message_id, identity)
    async with session.app() as opened:
        of_topic = await opened.catalog.get(topic)
        planned = await book.get(opened.store.lanes, of_topic, message_id, by_identity=by_identity)
    if planned is None:
        named = f"{'identity' if by_identity else 'id'} {message_id!r}"
        raise errors.EMQError(
            f"nothing with {named} waits in topic {topic!r}; see what waits: emq schedule list {topic}"
        )
    session.show(_data(planned, next_=True), lambda: _facts(planned))


@command(app, "recall")
async def recall(
    session: Session,
    topic: Topic,
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID]...", help="Ids, as `emq schedule list` shows them.", show_default=False),
    ] = None,
    identities: Annotated[
        list[str] | None,
        typer.Option(
            "--identity",
            metavar="IDENTITY",
            help="The message of this identity, where several have one id; may be repeated.",
        ),
    ] = None,
) -> None:
    """Take back delayed messages before they start, or end schedules.

    A message is either taken back or delivered, never both. Messages that an ended schedule has already published stay.
    Exits with 1 if one of the ids does not wait.

    Example: emq schedule recall reports 3WXbJQ4Gn1lM1
    """
    named = list(dict.fromkeys([*(ids or ()), *(identities or ())]))
    if not named:
        raise typer.BadParameter("give an ID or --identity")
    async with session.app(recorded=True) as opened:
        recalled = await opened.admin.recall(topic, ids or (), identities or ())
    missing = [name for name in named if name not in recalled]
    data = {"recalled": [name for name in named if name in recalled], "not_waiting": missing}
    session.say(f"recalled {output.count(len(recalled), 'message')} of {topic!r}", data)
    if missing:
        raise errors.EMQError(
            f"not recalled, since not waiting in topic {topic!r}: {', '.join(missing)}; see what waits: "
            f"emq schedule list {topic}"
        )


@command(app, "levels")
async def levels(
    session: Session,
    topic: Annotated[
        str | None,
        typer.Argument(metavar="[TOPIC]", help="The topic's name. (default: RocketMQ's 18 levels)", show_default=False),
    ] = None,
) -> None:
    """List the delay levels of a topic: names for delays, as in `emq publish --delay LEVEL`.

    Without a topic, lists RocketMQ's levels; `emq topic set TOPIC delay_levels=rocketmq` gives them to a topic.
    """
    from emq.timetable import delay_levels as named

    if topic is None:
        found = named.ROCKETMQ
    else:
        async with session.app() as opened:
            found = (await opened.catalog.get(topic)).options.delay_levels
    if not session.json and not found:
        session.out.print(
            f"topic {topic!r} has no delay levels; set them: emq topic set {topic} delay_levels=remind=30m,final=2h"
        )
        return
    ordered = dict(sorted(found.items(), key=lambda level: level[1]))
    rows = [(name, seconds, named.written(seconds * 1000)) for name, seconds in ordered.items()]
    session.show(ordered, lambda: output.table("", ("level", "seconds", "delay"), rows, right=("seconds",)))


def _data(planned: Planned, *, next_: bool = False) -> dict[str, Any]:
    """Return an entry as plain values."""
    data = {**planned._asdict(), "due": output.when(planned.due_ms)}
    del data["schedule"]
    if next_:
        data["next"] = [{"number": n, "due_ms": ms, "due": output.when(ms)} for n, ms in _upcoming(planned)]
    return output.with_payload(data)


def _table(found: Sequence[Planned]) -> RenderableType:
    rows = [
        (p.topic, p.id, p.kind, p.priority, p.attempts, output.when_briefly(p.due_ms), p.text or "-") for p in found
    ]
    columns = ("topic", "id", "kind", "priority", "tries", output.zoned("due", (p.due_ms for p in found)), "what")
    return output.table("", columns, rows, right=("tries",))


def _upcoming(planned: Planned) -> list[tuple[int, int]]:
    from emq.timetable import occurrences

    return occurrences.upcoming(planned.schedule, UPCOMING) if planned.schedule is not None else []


def _facts(planned: Planned) -> RenderableType:
    upcoming = enumerate(_upcoming(planned))
    nexts = (
        ("" if place else "next", f"{output.when(due_ms)}  {planned.id}.{number}")
        for place, (number, due_ms) in upcoming
    )
    lines = (
        ("id", planned.id),
        *([("identity", planned.uid)] if planned.uid != planned.id else []),
        ("topic", planned.topic),
        ("group", str(planned.group)),
        ("priority", planned.priority),
        ("key", "-" if planned.key is None else planned.key),
        ("kind", planned.kind),
        ("due", output.when_in_zone(planned.due_ms)),
        ("tries", str(planned.attempts)),
        ("what", planned.text or "-"),
        *nexts,
        ("payload", output.payload(planned.payload)),
    )
    return output.facts(lines)
