"""`emq store`: messages that the catalog does not know, and the servers on which the store lies."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from emq_cli import output
from emq_cli.arguments import Yes
from emq_cli.entry import Room
from emq_cli.session import Session, command

if TYPE_CHECKING:
    from emq.offsets.orphans import Orphan

MOVED = ("from", "to", "parts")
COLUMNS = ("topic", "kind", "groups", "priorities", "ready", "delayed", "dead", "remedy")

app = typer.Typer(cls=Room, help="Look after the store: messages that the catalog does not know, its servers.")


@command(app, "orphans")
async def orphans(
    session: Session,
    adopt: Annotated[
        str, typer.Option(metavar="TOPIC", help="Create this topic, so that hosts consume its messages.")
    ] = "",
    purge: Annotated[str, typer.Option(metavar="TOPIC", help="Delete the messages of this topic.")] = "",
    qps: Annotated[float, typer.Option(min=0.0, help="With --adopt: starts a second of the topic.")] = 0.0,
    priorities: Annotated[
        str, typer.Option(help="With --adopt: its priorities, highest first, if they are not high, mid and low.")
    ] = "",
    kind: Annotated[
        str, typer.Option(help="With --adopt, for a sorted topic: range_merge, priority or fixed_time.")
    ] = "",
    yes: Yes = False,
) -> None:
    """List messages that are in no queue, lane or slot of a topic of the catalog; nobody consumes them.

    They are there after the database was restored from an older copy. Adopt a topic to have its messages consumed, or
    purge it. A topic that the catalog has with fewer groups ("grow it") needs more qps. If the topic was created again
    with another kind or other priorities ("delete the topic"), delete it: the messages stay, to be adopted or purged.

    Example: emq store orphans

    Example: emq store orphans --adopt shop --qps 100
    """
    if adopt and purge:
        raise typer.BadParameter("adopt a topic or purge it", param_hint="--purge")
    if adopt and not qps:
        raise typer.BadParameter("say how many starts a second the topic may make", param_hint="--qps")
    from emq_cli import adoption

    async with session.app() as opened:
        if adopt:
            from emq.storage.slot_store import SlotKind

            if kind and kind not in [each.value for each in SlotKind]:
                raise typer.BadParameter(f"{kind!r} is not known", param_hint="--kind")
            names = [name.strip() for name in priorities.split(",") if name.strip()]
            topic = await adoption.adopt(opened.admin, adopt, qps, names, SlotKind(kind) if kind else None)
            groups = output.count(topic.groups, "group")
            session.say(f"adopted topic {adopt!r} with {groups}", {"adopted": adopt, "groups": topic.groups})
            return
        if purge:
            session.confirm(f"Delete all messages of topic {purge!r}, which the catalog does not know?", yes)
            dropped = await adoption.purge(opened.admin, purge)
            session.say(
                f"purged {output.count(dropped, 'message')} of topic {purge!r}", {"purged": purge, "messages": dropped}
            )
            return
        found = await adoption.find(opened.admin)
    rows = [_row(orphan) for orphan in found]
    session.show(
        [dict(zip(COLUMNS, row, strict=True)) for row in rows],
        lambda: (
            output.table("", COLUMNS, rows, right=("groups", "ready", "delayed", "dead"))
            if rows
            else "the catalog knows the topics and groups of all messages in the store"
        ),
    )


@command(app, "spread")
async def spread(session: Session) -> None:
    """Give each server of the URL an equal part of the store, while hosts and producers go on.

    For a store on a list of servers (redis+servers://). To add a server, add it to the URL and run this command; to
    remove one, leave it out of the URL and run this command. Only then change the URL of the hosts and producers, one
    after the other. A part that moves takes no calls for a second or so, so its groups wait. If this command was
    interrupted, run it again.

    Example: emq store spread --store redis+servers://valkey1,valkey2,valkey3
    """
    from emq.runtime import errors
    from emq.storage.opening import open_store

    opened = await open_store(session.settings.store, session.settings.environment)
    try:
        move = getattr(opened, "spread", None)
        if move is None:
            raise errors.InvalidSettings("only a store on a list of servers is spread, such as redis+servers://one,two")
        moved = Counter([(part.source, part.target) async for part in move()])
    finally:
        await opened.close()
    rows = [(source, target, parts) for (source, target), parts in sorted(moved.items())]
    session.show(
        [dict(zip(MOVED, row, strict=True)) for row in rows],
        lambda: (
            output.table("", MOVED, rows, right=("parts",)) if rows else "each server has its part; nothing to move"
        ),
    )


def _row(orphan: Orphan) -> tuple[output.Cell, ...]:
    return (
        orphan.topic,
        "sorted" if orphan.is_sorted else "log",
        orphan.groups,
        ", ".join(orphan.priorities),
        orphan.ready,
        orphan.delayed,
        orphan.dead,
        "grow it" if orphan.is_beyond else "delete the topic" if orphan.is_known else "adopt or purge it",
    )
