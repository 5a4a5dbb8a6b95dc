"""`emq offsets`: show how far each queue of a topic is consumed, and set another place to go on from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from emq.runtime import errors
from emq_cli import output
from emq_cli.arguments import Topic, Yes
from emq_cli.entry import Room
from emq_cli.session import Session, command

if TYPE_CHECKING:
    from emq.app import App
    from emq.offsets.checkpoints import Checkpoint
    from emq.topics import model

app = typer.Typer(cls=Room, help="Show how far each queue of a topic is consumed, or set another place to go on from.")


class Change(NamedTuple):
    """Attributes:
    to: the offset to consume from next.
    again: messages that would be delivered again.
    skipped: unfinished messages that would not be delivered at all.
    """

    queue: str
    watermark: int
    to: int
    head: int
    tail: int
    again: int
    skipped: int


@command(app, "show")
async def show(session: Session, topic: Topic) -> None:
    """Show the checkpoint of each queue: its saved progress.

    Messages of a queue are numbered by offset. head: the first offset still stored. tail: the next one to be published.
    watermark: every message below it is finished. epoch: when the owner that saved the checkpoint got the group.

    Example: emq offsets show shop
    """
    from emq_trace import epochs

    async with session.app() as opened:
        found = await opened.admin.offsets(_with_offsets(await opened.catalog.get(topic)))
    rows = [(c.queue, c.watermark, head, tail, c.unfinished(head, tail), c.epoch) for c, head, tail in found]
    columns = ("queue", "watermark", "head", "tail", "unfinished", "epoch")
    data = [
        {**dict(zip(columns, row, strict=True)), "finished": c.finished}
        for row, (c, _, _) in zip(rows, found, strict=True)
    ]
    shown = [(*row[:-1], epochs.shown(row[-1]) if row[-1] else None) for row in rows]
    heads = (*columns[:-1], output.zoned("epoch"))
    session.show(data, lambda: output.table("", heads, shown, right=heads[1:]))


@command(app, "reset")
async def reset(
    session: Session,
    topic: Topic,
    to: Annotated[
        str, typer.Option(help="head: deliver all that is still stored; tail: skip all; or an offset.")
    ] = "head",
    queue: Annotated[
        list[str] | None,
        typer.Option(help="Only this queue, such as 0/low (group/priority); may be repeated. (default: all)"),
    ] = None,
    yes: Yes = False,
) -> None:
    """Set the offset from which hosts consume each queue of a topic. Shows the change and asks before it is made.

    Stop all hosts first: the command refuses while one runs, which would overwrite the change. Finished messages are
    removed after the topic's retention_s; those cannot come back.

    Example: emq offsets reset shop --to tail --queue 0/low --yes
    """
    if to not in ("head", "tail") and not (to.isascii() and to.isdecimal() and len(to) < 20):
        raise typer.BadParameter(f"{to[:40]!r} is not an offset; give head, tail or a number", param_hint="--to")
    columns = ("queue", "from", "to", "head", "tail", "again", "skipped")
    async with session.app() as opened:
        of_topic = _with_offsets(await opened.catalog.get(topic))
        found = _chosen(topic, await opened.admin.offsets(of_topic), queue)
        changes = [_change(c, head, tail, to) for c, head, tail in found]
        if not session.json:
            session.out.print(output.table("", columns, changes, right=columns[1:]))
        again, skipped = sum(c.again for c in changes), sum(c.skipped for c in changes)
        what = f"deliver {output.count(again, 'message')} again and skip {output.number(skipped)}"
        session.confirm(f"Set {output.count(len(changes), 'queue')} of topic {topic!r}: {what}?", yes)
        await refuse_if_consumed(opened)
        for change in changes:
            await opened.checkpoints.reset(change.queue, change.to)
    data = {"executed": True, "queues": [c._asdict() for c in changes]}
    session.say(f"{output.count(len(changes), 'queue')} set", data)


def _with_offsets(topic: model.Topic) -> model.Topic:
    if topic.is_sorted:
        raise errors.EMQError(
            f"topic {topic.name!r} is of kind {topic.kind}: its slots have no offsets; see: emq topic show {topic.name}"
        )
    return topic


async def refuse_if_consumed(opened: App) -> None:
    """Raise `StillConsumed` while a host runs on this store: the host would overwrite the change.

    On a store for one host, this takes the host's place until `opened` is closed, so that no host starts meanwhile. On
    a shared store, a host counts as running while its snapshot is fresh.
    """
    from emq.host import statistics
    from emq.observe import snapshots

    hosts = [s.host.host for s in await snapshots.load(opened) if s.live]
    named = f"host {', '.join(map(repr, hosts))}" if hosts else "a host"
    claim = None if opened.store.shared else getattr(opened.store, "claim_host", None)
    try:
        if claim is not None:
            claim()
            return
    except errors.HostConflict as exc:
        raise errors.StillConsumed(f"{named} is running; stop it (Ctrl-C or SIGTERM), then try again") from exc
    if hosts:
        raise errors.StillConsumed(
            f"{named} is running; stop it (Ctrl-C or SIGTERM), then try again; a killed host counts as running "
            f"for {statistics.LIVE_S:g} s more"
        )


def _chosen(
    topic: str, found: list[tuple[Checkpoint, int, int]], queues: list[str] | None
) -> list[tuple[Checkpoint, int, int]]:
    if not queues:
        return found
    by_name = {entry[0].queue: entry for entry in found}
    chosen = []
    for queue in queues:
        entry = by_name.get(queue) or by_name.get(f"{topic}/{queue}")
        if entry is None:
            known = ", ".join(name.removeprefix(f"{topic}/") for name in list(by_name)[:6])
            more = ", ..." if len(by_name) > 6 else ""
            raise errors.EMQError(f"topic {topic!r} has no queue {queue!r}; it has {known}{more}")
        chosen.append(entry)
    return chosen


def _change(checkpoint: Checkpoint, head: int, tail: int, to: str) -> Change:
    if to in ("head", "tail"):
        target = head if to == "head" else tail
    else:
        target = int(to)
        if not head <= target <= tail:
            raise errors.EMQError(
                f"offset {target} is outside of queue {checkpoint.queue!r}; give one from {head} to {tail}"
            )
    left = checkpoint.unfinished(head, tail)
    after = max(0, tail - target)
    # A reset forgets which messages above the watermark are finished.
    below = checkpoint.unfinished(head, target) if target > checkpoint.watermark else 0
    return Change(checkpoint.queue, checkpoint.watermark, target, head, tail, max(0, after - (left - below)), below)
