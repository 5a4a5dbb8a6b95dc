"""`emq topic`: create, look at, change and delete topics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from emq.runtime import errors, private_files
from emq.runtime.inputs import is_pattern
from emq_cli import many_topics, output
from emq_cli.arguments import NameOrPattern, Pattern, Yes
from emq_cli.entry import Room
from emq_cli.patterns import none
from emq_cli.session import Session, command
from emq_cli.topic_arguments import GroupQps, KindOption, Priorities, Settings, Slots, Url

if TYPE_CHECKING:
    from emq.topics.model import Topic

app = typer.Typer(cls=Room, help="Create, look at, change and delete topics.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The topic's name.", show_default=False)]


Qps = Annotated[
    float | None,
    typer.Option(help="Most messages started in a second; may be below 1. Below a family: as the family has it."),
]
Handshake = Annotated[
    str | None,
    typer.Option(
        metavar="ORIGIN",
        help="First ask the endpoint for permission, in the name of this DNS name of yours (CloudEvents webhooks).",
    ),
]
ExistOk = Annotated[bool, typer.Option("--exist-ok", help="If the topic exists, leave it as it is.")]


@command(app, "create")
async def create(
    session: Session,
    name: Name,
    qps: Qps = None,
    kind: KindOption = None,
    slots: Slots = None,
    group_qps: GroupQps = None,
    priorities: Priorities = None,
    url: Url = None,
    settings: Settings = None,
    handshake: Handshake = None,
    exist_ok: ExistOk = False,
) -> None:
    """Create a topic.

    Example: emq topic create prices --qps 50 --kind range_merge --slots 8 --set time_range_ms=5000

    Example: emq topic create mail --qps 20 --set delay_levels=remind=30m,final=2h
    """
    from emq.topics import rules
    from emq_cli import topic_settings

    rules.validate_plain(name)
    wish = topic_settings.Wish(qps, kind, slots, group_qps, priorities, url, settings)
    topic = topic_settings.asked(name, wish)
    topic_settings.check(topic, session.settings)
    if handshake is not None:
        topic = await topic_settings.taker().agreed(topic, handshake, session.settings)
    topic = topic_settings.stored(topic, session.settings)
    async with session.app(create=True) as opened:
        if qps is None:
            if (family := await opened.families.above(name)) is None:
                raise errors.InvalidTopic(f"topic {name!r}: give its qps, such as --qps 50; no family gives it one")
            if not topic.own:
                topic = (await opened.families.get(family)).family.made(name)
        [made] = await opened.admin.create([topic], exist_ok=exist_ok)
    kept = " (was there)" if exist_ok and not _is_as_asked(made, topic) else ""
    of_kind = f", {made.kind}" if made.is_sorted else ""
    text = f"topic {name!r}: {output.number(made.qps)} a second in {topic_settings.split(made)}{of_kind}{kept}"
    session.say(text, _data(made))


_LIFE = ("divisions", "layout", "earlier")
"""Fields that come from a topic's history. A list leaves them out, so that lists of equal settings are equal."""


@command(app, "list")
async def list_(session: Session, pattern: Pattern = "*") -> None:
    """List topics.

    Example: emq topic list 'shop.*'
    """
    from emq_cli import topic_settings

    async with session.app() as opened:
        topics = await opened.catalog.matching(pattern)
    endpoints = {t.name: topic_settings.endpoint(t) for t in topics}
    more = [("endpoint", endpoints), ("family", {t.name: t.family for t in topics})]
    more = [(column, values) for column, values in more if any(values.values())]
    columns = ("topic", "kind", "qps", "split into", "priorities", "state", *(column for column, _ in more))
    rows: list[tuple[output.Cell, ...]] = [
        (*topic_settings.cells(t), *(values[t.name] or "-" for _, values in more)) for t in topics
    ]
    data = [{k: v for k, v in _data(t).items() if k not in _LIFE} for t in topics]
    right, spare = ("qps", "split into"), ("priorities", "split into")
    empty = none(pattern, opened.place)
    session.page(data, lambda: output.table("", columns, rows, right=right, spare=spare), none=empty)


@command(app, "show")
async def show(session: Session, name: Name) -> None:
    """Show a topic: its settings, and the quota and backlog of each of its groups or slots.

    A group (of a sorted topic: a slot) is the part of a topic that one host owns. Its quota is its part of the topic's
    qps. For the columns, see `emq lag --help`.

    Example: emq topic show prices
    """
    from emq.observe import snapshots
    from emq_cli import topic_view
    from emq_trace import backlog as backlogs
    from emq_trace import host_totals

    async with session.app() as opened:
        topic = await opened.catalog.get(name)
        [backlog] = await backlogs.of(opened.admin, [topic])
        held_by = ""
        if topic.options.budget is not None or topic.shared_s:
            busy = host_totals.topics(await snapshots.load(opened))
            held_by = next((found.held_by for found in busy if found.name == name), "")
        if topic.is_sorted:
            slots = await topic_view.slots(opened.store, topic, opened.clock.now_us() // 1000)
            session.show(
                {**_data(topic), "held_by": held_by, "lag": backlog, "slot_list": [s._asdict() for s in slots]},
                lambda: topic_view.render_slots(topic, slots, backlog, held_by),
            )
            return
        groups = topic_view.groups(topic, await opened.admin.offsets(topic))
    lag = topic_view.lag(topic, groups, backlog)
    session.show(
        {**_data(topic), "held_by": held_by, "lag": lag, "group_list": [g._asdict() for g in groups]},
        lambda: topic_view.render(topic, groups, backlog, held_by),
    )


@command(app, "set")
async def set_(
    session: Session,
    pattern: NameOrPattern,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="One or several, such as qps=100 max_attempts=5 push.url=https://..."),
    ] = None,
    inherit: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Take this setting from the topic's family again; may be repeated."),
    ] = None,
    yes: Yes = False,
) -> None:
    """Change settings of a topic while it is in use: hosts and producers follow within seconds.

    Write lists with commas, none for no value, and @FILE for the text in a file. An empty value removes an attribute
    (push.NAME, attributes.NAME). With a pattern, the command shows how many topics match, and asks. In a topic of a
    family, the setting is the topic's own from then on.

    Example: emq topic set shop qps=100 max_attempts=5 delay_levels=remind=30m,final=2h

    Example: emq topic set orders.acme --inherit qps

    Example: emq topic set 'shop.*' handler_timeout_s=30 --yes
    """
    from emq.topics import changing
    from emq_cli import topic_settings

    settings, inherit = settings or [], inherit or []
    if not settings and not inherit:
        raise errors.InvalidTopic(f"topic {pattern!r}: give a setting, such as qps=100, or --inherit with its name")
    given = topic_settings.parse(f"topic {pattern!r}", settings)
    changing.validate(f"topic {pattern!r}", given.settings)
    keys = ", ".join([*given.settings, *given.attributes, *inherit])
    async with session.app() as opened:

        async def set_one(name: str) -> Topic:
            topic = await (opened.admin.inherit(name, inherit) if inherit else opened.catalog.get(name))
            if not settings:
                return topic
            return await opened.update_topic(name, **given.changes(topic, session.settings))

        if is_pattern(pattern):
            question = f"Set {' '.join(map(topic_settings.without_secret, settings))} for"
            await many_topics.change(session, opened, pattern, question, f"changed {keys} of", set_one, yes)
            return
        changed = await set_one(pattern)
    session.say(f"topic {pattern!r}: changed {keys}", _data(changed))


@command(app, "options")
async def options(
    session: Session,
    pattern: Annotated[
        str,
        typer.Argument(
            metavar="[PATTERN]", help="Shell pattern over names, such as 'max_*'. (default: all)", show_default=False
        ),
    ] = "*",
) -> None:
    """List every option of a topic with its type, default, unit and meaning.

    Give them as KEY=VALUE: to `emq topic set`, and with --set to `emq topic create`.

    Example: emq topic options 'max_*'
    """
    from emq_cli import topic_options

    found = topic_options.matching(pattern)
    session.show([option._asdict() for option in found], lambda: topic_options.render(found))


@command(app, "pause")
async def pause(session: Session, pattern: NameOrPattern, yes: Yes = False) -> None:
    """Stop consuming a topic; publishing goes on.

    With a pattern, the command shows how many topics match, and asks.

    Example: emq topic pause shop

    Example: emq topic pause 'shop.*' --yes
    """
    await _set_state(session, pattern, yes, "Pause", "paused", "paused", "is paused: it takes messages and starts none")


@command(app, "resume")
async def resume(session: Session, pattern: NameOrPattern, yes: Yes = False) -> None:
    """Let a paused or draining topic publish and consume again.

    With a pattern, the command shows how many topics match, and asks.

    Example: emq topic resume shop

    Example: emq topic resume 'shop.*' --yes
    """
    await _set_state(session, pattern, yes, "Resume", "resumed", "active", "is active")


@command(app, "drain")
async def drain(session: Session, pattern: NameOrPattern, yes: Yes = False) -> None:
    """Refuse new messages for a topic; hosts consume the rest until it is empty.

    With a pattern, the command shows how many topics match, and asks.

    Example: emq topic drain shop

    Example: emq topic drain 'shop.*' --yes
    """
    text = "is draining: it takes no new messages and delivers those that it has"
    await _set_state(session, pattern, yes, "Drain", "set to drain", "draining", text)


@command(app, "delete")
async def delete(
    session: Session,
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Delete it with the messages that it still holds.")] = False,
    yes: Yes = False,
) -> None:
    """Delete a topic with its dead letters and checkpoints.

    Example: emq topic delete shop --force --yes
    """
    async with session.app() as opened:
        topic = await opened.catalog.get(name)
        session.confirm(f"Delete topic {topic.name!r} and its dead letters?", yes)
        dropped = await opened.admin.delete(name, force=force)
    session.say(
        f"deleted topic {name!r} and {output.count(dropped, 'message')}", {"deleted": name, "messages": dropped}
    )


@command(app, "export", json=False)
async def export(
    session: Session,
    pattern: Pattern = "*",
    fmt: Annotated[str, typer.Option("--format", help="toml or json.")] = "toml",
    file: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file instead.")] = None,
    secrets: Annotated[bool, typer.Option("--secrets", help="With the secrets of push, for a backup.")] = False,
) -> None:
    """Print topics and families as a file for `emq topic import`, which keeps secrets that are masked in the file.

    Example: emq topic export 'shop.*' -o topics.toml
    """
    if fmt not in ("toml", "json"):
        raise typer.BadParameter(f"{fmt!r} is not known; choose toml or json", param_hint="--format")
    from emq.topics import catalog_file

    async with session.app() as opened:
        topics, families = await opened.catalog.list(pattern), await opened.families.matching(pattern)
        if not families:  # then a name without a topic is a mistake
            topics = [*await opened.catalog.matching(pattern)]
        text = catalog_file.dump(topics, fmt, families, secrets=secrets)
    if file is None:
        typer.echo(text, nl=False)
        return
    try:
        (private_files.write_text if secrets else Path.write_text)(file, text)
    except OSError as exc:
        raise errors.EMQError(f"cannot write {file}: {exc.strerror}") from exc


@command(app, "import")
async def import_(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .toml or .json file of topics.", show_default=False)],
) -> None:
    """Create or update the topics in a file, all of them or none; other topics stay as they are.

    Families in the file come first, one by one.

    Example: emq topic import topics.toml
    """
    from emq.topics import catalog_file, secret_attributes
    from emq_cli import topic_settings

    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise errors.EMQError(f"cannot read {file}: {exc.strerror if isinstance(exc, OSError) else exc}") from exc
    asked, families = catalog_file.load_all(text, "json" if file.suffix == ".json" else "toml")
    for topic in [*asked, *(family.topic for family in families)]:
        if secret_attributes.MASK not in topic.options.attributes.values():
            topic_settings.check(topic, session.settings)
    async with session.app(create=True) as opened:
        for family in families:
            stored = topic_settings.stored(family.topic, session.settings)
            await opened.families.put(msgspec.structs.replace(family, topic=stored))
        there = {topic.name: topic for topic in await opened.catalog.list()}
        for i, topic in enumerate(asked):
            topic = secret_attributes.unmasked(topic, there.get(topic.name))
            topic_settings.check(topic, session.settings)
            asked[i] = topic_settings.stored(topic, session.settings)
        topics = await opened.admin.put_many(asked)
    of_families = f"{output.count(len(families), 'family', 'families')} and " if families else ""
    data = {"topics": [t.name for t in topics], **({"families": [f.name for f in families]} if families else {})}
    session.say(f"{of_families}{output.count(len(topics), 'topic')} from {file}", data)


async def _set_state(
    session: Session, pattern: str, yes: bool, question: str, done: str, state: str, text: str
) -> None:
    from emq.topics.model import State

    async with session.app() as opened:

        async def set_one(name: str) -> Topic:
            return await opened.update_topic(name, state=State(state))

        if is_pattern(pattern):
            await many_topics.change(session, opened, pattern, question, done, set_one, yes)
            return
        topic = await set_one(pattern)
    session.say(f"topic {pattern!r} {text}", _data(topic))


def _is_as_asked(made: Topic, asked: Topic) -> bool:
    """Return whether a topic has the requested settings; slots and priorities of a sorted one follow from others."""
    from emq.topics import asking, model

    if made.family:
        return not asking.differences(asked, made, asked.own)
    if asked.is_sorted:
        asked = msgspec.structs.replace(asked, slots=model.split(asked).slots, priorities=())
    return model.settings_of(made) == model.settings_of(asked)


def _data(topic: Topic) -> dict[str, Any]:
    """Return all fields of a topic, defaults included."""
    from emq.topics import secret_attributes

    topic = secret_attributes.without_secrets(topic)
    return {**msgspec.structs.asdict(topic), "options": msgspec.structs.asdict(topic.options)}
