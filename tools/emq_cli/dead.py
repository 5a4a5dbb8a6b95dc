"""`emq dead`: look at dead letters, put them back, or throw them away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emq.runtime import errors
from emq.runtime.inputs import is_pattern
from emq_cli import output, times
from emq_cli.arguments import Identity, NameOrPattern, OneId, Pattern, Topic, Yes, one_of
from emq_cli.entry import Room
from emq_cli.patterns import matched, none
from emq_cli.progress import Bar
from emq_cli.session import Session, command

if TYPE_CHECKING:
    from rich.console import RenderableType

    from emq.app import App
    from emq.observe.dead_letters import Letter, Selection

app = typer.Typer(
    cls=Room,
    help="Look at dead letters (messages that EMQ gave up), put them back, or throw them away.",
)

Chosen = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID]...", help="Only the letters of these messages. (default: all)", show_default=False),
]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Only letters that died at or after this time: 2030-01-31T12:00, or an age such as 15m, 2h, 7d.",
    ),
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Only letters that died before this time.")]
Reason = Annotated[
    str, typer.Option(metavar="TEXT", help="Only letters whose reason contains this text; case does not matter.")
]
Ids = Annotated[
    list[str] | None, typer.Option("--id", metavar="ID", help="The same as an argument ID; may be repeated.")
]
Identities = Annotated[
    list[str] | None,
    typer.Option(
        "--identity",
        metavar="IDENTITY",
        help="Only the letter of this message, where several have one id; may be repeated.",
    ),
]


@command(app, "list")
async def list_(
    session: Session,
    pattern: Pattern = "*",
    since: Since = None,
    until: Until = None,
    reason: Reason = "",
    limit: Annotated[int, typer.Option(min=1, help="Most letters to list.")] = 50,
) -> None:
    """List dead letters, topic by topic, oldest first in each group.

    Example: emq dead list 'shop.*' --since 2h --reason timeout
    """
    from emq.observe import dead_letters

    async with session.app() as opened:
        selection = _selection(opened, since, until, reason)
        topics = await opened.catalog.matching(pattern)
        letters = (letter for topic in topics async for letter in dead_letters.find(opened.store, topic, selection))
        found = await session.listed(letters, limit + 1)
    session.page(
        [_data(letter) for letter in found[:limit]],
        lambda: _table(found[:limit]),
        none=f"no dead letters in the {opened.place}" if topics else none(pattern, opened.place),
        more=f"these are the first {limit}; --limit shows more" if len(found) > limit else "",
    )


@command(app, "show")
async def show(session: Session, topic: Topic, message_id: OneId = None, identity: Identity = None) -> None:
    """Show one dead letter in full, with its identity and the history of its failed attempts.

    Example: emq dead show shop 3WXbJQ4Gn1lM1
    """
    from emq.observe import dead_letters

    message_id, by_identity = one_of(message_id, identity)
    async with session.app() as opened:
        of_topic = await opened.catalog.get(topic)
        name = frozenset([message_id])
        wanted = dead_letters.Selection(uids=name) if by_identity else dead_letters.Selection(ids=name)
        letter = await anext(dead_letters.find(opened.store, of_topic, wanted), None)
    if letter is None:
        raise errors.EMQError(
            f"topic {topic!r} has no dead letter {message_id!r}; list them with: emq dead list {topic}"
        )
    session.show(_data(letter), lambda: _facts(letter))


@command(app, "replay")
async def replay(
    session: Session,
    pattern: NameOrPattern,
    chosen: Chosen = None,
    since: Since = None,
    until: Until = None,
    reason: Reason = "",
    ids: Ids = None,
    identities: Identities = None,
    rate: Annotated[float | None, typer.Option(help="Most letters to put back in a second.")] = None,
    priority: Annotated[
        float | None,
        typer.Option(help="For a topic of kind priority: the new priority of the letters. (default: 17, the lowest)"),
    ] = None,
) -> None:
    """Put dead letters back into their topics. Each starts again with its first attempt, at its own priority.

    Safe to interrupt: each letter is at all times either a dead letter or waiting in the topic, never both.

    Example: emq dead replay shop --reason 'HTTP 503' --rate 10
    """
    from emq.observe import dead_letters

    if rate is not None and not rate > 0:
        raise typer.BadParameter(f"{rate} must be above 0", param_hint="--rate")
    async with session.app(recorded=True) as opened:
        selection = _selection(opened, since, until, reason, [*(chosen or ()), *(ids or ())], identities)
        topics = await opened.catalog.matching(pattern)
        dead = sum(lag.dead for lag in await opened.admin.slot_lag(topics))
        with Bar(session, "replaying", None if selection != dead_letters.EVERY else dead) as bar:
            count = await opened.replay_dead_letters(
                pattern, selection, rate_per_s=rate, priority=priority, on_replayed=bar.set
            )
    said = f"replayed {output.count(count, 'dead letter')} of {_named(pattern, len(topics))}"
    _refuse_missing(said, count, selection)
    session.say(said, {"replayed": count})


@command(app, "purge")
async def purge(
    session: Session,
    pattern: NameOrPattern,
    chosen: Chosen = None,
    since: Since = None,
    until: Until = None,
    reason: Reason = "",
    ids: Ids = None,
    identities: Identities = None,
    yes: Yes = False,
) -> None:
    """Throw dead letters away for good.

    Example: emq dead purge shop --until 30d --yes
    """
    from emq.observe import dead_letters

    async with session.app() as opened:
        selection = _selection(opened, since, until, reason, [*(chosen or ()), *(ids or ())], identities)
        topics = await opened.catalog.matching(pattern)
        what = "all dead letters" if selection == dead_letters.EVERY else "the selected dead letters"
        session.confirm(f"Throw away {what} of {_named(pattern, len(topics))} for good?", yes)
        count = await opened.purge_dead_letters(pattern, selection)
    said = f"threw away {output.count(count, 'dead letter')} of {_named(pattern, len(topics))}"
    _refuse_missing(said, count, selection)
    session.say(said, {"purged": count})


def _named(pattern: str, topics: int) -> str:
    """Return a topic, or how many topics match a pattern."""
    return matched(topics, pattern) if is_pattern(pattern) else f"topic {pattern!r}"


def _refuse_missing(said: str, count: int, selection: Selection) -> None:
    """Raise `EMQError` if some ids have no dead letter; the others have been served."""
    wanted = len(selection.ids) + len(selection.uids)
    if (missing := wanted - count) > 0:
        asked = output.count(wanted, "id")
        raise errors.EMQError(f"{said}; {missing} of the {asked} found no dead letter; see: emq dead list")


def _selection(
    opened: App,
    since: str | None,
    until: str | None,
    reason: str,
    ids: Iterable[str] = (),
    identities: Iterable[str] | None = None,
) -> Selection:
    from emq.observe.dead_letters import EVERY

    selection = EVERY._replace(reason=reason, ids=frozenset(ids), uids=frozenset(identities or ()))
    if since is not None:
        selection = selection._replace(since_ms=max(0, times.ago_ms(since, "--since", opened.clock.now())))
    if until is not None:
        selection = selection._replace(until_ms=times.ago_ms(until, "--until", opened.clock.now()))
    return selection


def _data(letter: Letter) -> dict[str, Any]:
    """Return a letter as plain values."""
    history = [
        {"time_ms": a.at_ms, "time": output.when(a.at_ms), "reason": a.reason, "place": a.place} for a in letter.history
    ]
    return output.with_payload({**letter._asdict(), "died": output.when(letter.dead_ms), "history": history})


def _table(letters: Sequence[Letter]) -> RenderableType:
    rows = [(d.topic, d.id, d.priority, d.attempts, output.when_briefly(d.dead_ms), d.reason) for d in letters]
    died = output.zoned("died", (letter.dead_ms for letter in letters))
    return output.table("", ("topic", "id", "priority", "tries", died, "reason"), rows, right=("tries",))


def _facts(letter: Letter) -> RenderableType:
    from rich.console import Group

    facts = output.facts(
        (
            ("id", letter.id),
            *([("identity", letter.uid)] if letter.uid != letter.id else []),
            ("topic", letter.topic),
            ("group", str(letter.group)),
            ("priority", letter.priority),
            ("tries", str(letter.attempts)),
            ("died", output.when_in_zone(letter.dead_ms)),
            ("reason", letter.reason),
            ("payload", output.payload(letter.payload)),
        )
    )
    if not letter.history:
        return facts
    time = output.zoned("time", (each.at_ms for each in letter.history))
    rows, before = [], None
    for at_ms, *failure in letter.history:
        rows.append((output.when(at_ms), *(["the same", ""] if failure == before else failure)))
        before = failure
    return Group(facts, "", output.table("Failed attempts", (time, "reason", "in your code"), rows))
