"""`emq store`: list, adopt or purge messages in the store that the catalog does not know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from emq_cli import output
from emq_cli.arguments import Yes
from emq_cli.entry import Room
from emq_cli.session import Session, command

if TYPE_CHECKING:
    from emq.offsets.orphans import Orphan

COLUMNS = ("topic", "kind", "groups", "priorities", "ready", "delayed", "dead", "remedy")

app = typer.Typer(cls=Room, help="Look at what the store holds that the catalog does not know.")


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
