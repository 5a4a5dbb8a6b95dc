"""`emq trace`: tell the life of one message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from emq.runtime import errors
from emq_cli import output
from emq_cli.arguments import Identity, OneId, one_of
from emq_cli.progress import Bar
from emq_cli.session import Session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from emq_trace.facts import Place
    from emq_trace.lookup import Trace

MANY_MESSAGES, MANY_SEGMENTS = 5_000, 500
"""Messages or trail files to search, from which on a progress bar is shown."""


async def trace(
    session: Session,
    message_id: OneId = None,
    identity: Identity = None,
    topic: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="The message's topic; needed if no trail is kept.", show_default=False),
    ] = None,
) -> None:
    """Show the life of one message and, while it is not finished, where it is and why it waits.

    Its life comes from the trail, the files in which hosts write down each event (see the setting trail); its place
    comes from the store and from the hosts' latest snapshots. Changes nothing. Exits with 1 if neither the trail nor
    the store knows the message.

    Example: emq trace 3WXbJQ4Gn1lM1 --topic shop
    """
    from emq.observe import snapshots
    from emq_trace import lookup

    message_id, by_identity = one_of(message_id, identity)
    async with session.app() as opened:
        hosts = [seen.host for seen in await snapshots.load(opened) if seen.live]
        with Bar(session, "searching", visible=False) as bar:

            def advance(what: str, done: int, total: int) -> None:
                many = total >= (MANY_SEGMENTS if what == "the trail" else MANY_MESSAGES)
                bar.set(done, description=f"searching {what}", total=total, visible=many)

            found = await lookup.look_up(opened, message_id, topic, hosts, advance, by_identity=by_identity)
    if session.json or not found.is_unknown:
        session.show(_data(found), lambda: _shown(found))
    if found.is_unknown:
        text = f"nothing is known of message {message_id!r} of topic {found.topic_name!r}"
        raise errors.EMQError("; ".join([text, *found.notes]))


def _data(found: Trace) -> dict[str, Any]:
    return {
        "id": found.id,
        "topic": found.topic_name,
        "state": found.state,
        "timeline": [line._asdict() for line in found.lines],
        "events": [{k: v for k, v in e._asdict().items() if v is not None} for e in found.events],
        "place": found.place,
        "why": [reason._asdict() for reason in found.reasons],
        "notes": list(found.notes),
    }


def _shown(found: Trace) -> RenderableType:
    from rich.console import Group

    from emq_trace.waiting_reasons import moment

    parts: list[RenderableType] = [output.plain(f"message {found.id} of topic {found.topic_name!r}: {found.state}"), ""]
    if found.lines:
        rows = [(moment(line.time_us / 1000), line.event, line.detail) for line in found.lines]
        head = output.zoned("time", (line.time_us / 1000 for line in found.lines))
        parts += [output.table("", (head, "event", "detail"), rows), ""]
    if found.place is not None:
        parts.append(output.plain(_where(found.place)))
    for i, reason in enumerate(found.reasons):
        lead = f"{found.state} because " if i == 0 and reason.name != found.state else "also " if i else ""
        parts.append(output.plain(f"{lead}{reason.name}: {reason.text}"))
    parts += [output.plain(f"note: {note}") for note in found.notes]
    if not found.lines and found.reasons:
        parts.append(f"times are in {output.zone()}")
    return Group(*parts)


def _where(place: Place) -> str:
    parts = [f"{place.where} {place.name}"]
    if place.offset is not None:
        parts.append(f"offset {place.offset:,}")
    if place.where != "queue" and place.priority:
        parts.append(f"priority {place.priority}")
    if place.attempt > 1:
        parts.append(f"attempt {place.attempt} comes next")
    return ", ".join(parts)
