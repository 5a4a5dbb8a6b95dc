"""`emq notices`: switch operational notices on and off, and see what is open."""

from __future__ import annotations

from typing import Annotated

import typer

from emq.runtime import errors
from emq_cli import output, times
from emq_cli.entry import Room
from emq_cli.session import Session, command

app = typer.Typer(
    cls=Room,
    help="Hear of topics that are stuck, of dead letters, of hosts that are gone, and of disabled endpoints.",
    pretty_exceptions_enable=False,
)

QPS = 10.0
MOST_KEPT = 10_000


@command(app, "on")
async def on(
    session: Session,
    after: Annotated[
        float,
        typer.Option("--after", parser=times.spans(1, 86_400), metavar="SPAN", help="Time that a trouble must last."),
    ] = 300.0,
    url: Annotated[
        str, typer.Option(metavar="URL", help="Push each notice there, by HTTP POST.", show_default=False)
    ] = "",
) -> None:
    """Let the leading host publish notices to the topic emq.notices, which this command creates.

    Example: emq notices on --after 120 --url https://ops.example/hooks
    """
    from emq.topics.model import Topic, TopicOptions
    from emq_cli import topic_settings
    from emq_notices.notice import TOPIC
    from emq_notices.watching import AFTER

    attributes = {AFTER: f"{after:g}"} | ({"push.url": url} if url else {})
    options = TopicOptions(attributes=attributes, max_length=MOST_KEPT, overflow="drop_oldest")
    wanted = Topic(TOPIC, QPS, options=options)
    topic_settings.check(wanted, session.settings)
    async with session.app(create=True) as opened:
        if TOPIC in await opened.catalog.some([TOPIC]):
            await opened.catalog.set_attributes(TOPIC, attributes, {})
            text = f"notices are on, and were before: troubles of {after:g} s"
        else:
            await opened.admin.create([topic_settings.stored(wanted, session.settings)])
            text = f"notices are on: troubles of {after:g} s are messages of topic {TOPIC}"
    session.say(text, {"topic": TOPIC, "after_s": after, "url": url or None})


@command(app, "off")
async def off(session: Session) -> None:
    """Delete the topic emq.notices with the notices that nobody has read. Nobody watches any more.

    Example: emq notices off
    """
    from emq_notices.notice import TOPIC
    from emq_notices.told import Told

    async with session.app() as opened:
        await Told(opened.database, str(opened.settings.environment)).clear()
        try:
            messages = await opened.admin.delete(TOPIC, force=True)
        except errors.UnknownTopic:
            session.say("notices are off, and were before", {"deleted": 0})
            return
    session.say(f"notices are off; {output.count(messages, 'notice')} went", {"deleted": messages})


@command(app, "test")
async def test(session: Session) -> None:
    """Publish a notice of type notices.test, to see where notices arrive.

    Example: emq notices test
    """
    from emq_notices.notice import Notice, time_of
    from emq_notices.watching import publish

    async with session.app() as opened:
        text, at = "a test: notices arrive here", time_of(opened.clock.now())
        try:
            id_ = await publish(opened, Notice(type="notices.test", text=text, at=at))
        except errors.UnknownTopic:
            raise errors.UnknownTopic("notices are off; switch them on: emq notices on") from None
    session.say(f"published notice {id_}", {"id": id_})


@command(app, "list")
async def list_(session: Session) -> None:
    """List what was told and has not ended.

    Example: emq notices list
    """
    from emq_notices.judging import DEAD
    from emq_notices.notice import time_of
    from emq_notices.told import Told
    from emq_notices.watching import AUDITED

    async with session.app() as opened:
        known = await Told(opened.database, str(opened.settings.environment)).load()
    told = sorted((key, value) for key, value in known.items() if key != AUDITED)
    rows, data = [], []
    for (kind, subject), value in told:
        since, dead = (None, value) if kind == DEAD else (time_of(value / 1000), None)
        rows.append([subject, kind, since or output.count(value, "dead letter")])
        data.append({"subject": subject, "trouble": kind, "since": since, "dead": dead})
    session.page(
        data, lambda: output.table("", ("subject", "trouble", "since"), rows), none="nothing was told that lasts"
    )
