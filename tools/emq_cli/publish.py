"""`emq publish`: messages from arguments, or JSON lines from standard input."""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from emq.runtime import errors
from emq_cli import exit_codes, output, times
from emq_cli.progress import Bar
from emq_cli.session import Session, fail

if TYPE_CHECKING:
    import asyncio

    from emq_cli.message_lines import Publisher, Told

STDIN = "-"

SHOWN_IDS = 20
"""Most ids of messages that are printed; JSON has all."""


MissedName = Literal["skip", "once", "all"]
"""Treatment of occurrences missed while no host ran, as in `emq.timetable.schedule`."""


def _when(text: str, metavar: str = "TIME") -> Any:
    """Return an option that says when a message starts or ends."""
    return typer.Option(metavar=metavar, help=text, rich_help_panel="When")


def _repeated(text: str, metavar: str | None = None, low: int | None = None) -> Any:
    """Return an option of a message that is published again and again."""
    return typer.Option(metavar=metavar, help=text, min=low, rich_help_panel="Again and again")


TopicName = Annotated[
    str | None,
    typer.Argument(metavar="TOPIC", help="The topic's name; a JSON line may name another.", show_default=False),
]
Payloads = Annotated[
    list[str] | None,
    typer.Argument(metavar="PAYLOAD", help="One message each; '-' reads JSON lines from standard input."),
]
Key = Annotated[str | None, typer.Option(help="Messages with the same key run one at a time, in order.")]
Priority = Annotated[
    str | None,
    typer.Option(help="One of the topic's priorities (default: the middle one); a number for kind priority."),
]
Headers = Annotated[list[str] | None, typer.Option(help="A header, NAME=VALUE; may be repeated.")]
MergeKey = Annotated[
    str | None,
    typer.Option(help="In a sorted topic with merge=key: messages with the same merge key merge into one."),
]
Delay = Annotated[
    str | None, _when("Start after this time: 90s, 15m, 2h, or a delay level of the topic.", "TIME|LEVEL")
]
At = Annotated[str | None, _when("Start at this time: 2030-01-31T12:00+01:00, or in 15m.")]
TimeRange = Annotated[str | None, _when("For kind range_merge: merge equal messages for this long, then start.")]
Ttl = Annotated[str | None, _when("Give the message up, as a dead letter, if it has not started after this time.")]
Every = Annotated[str | None, _repeated("Publish it again each time this much has passed, such as 5m.", "TIME")]
Repeat = Annotated[
    int | None, _repeated("With --every: number of messages after the first. (default: without end)", low=0)
]
Cron = Annotated[
    str | None,
    _repeated("Publish at these times: minute hour day month weekday, such as '0 9 * * 1-5'.", "EXPR"),
]
Zone = Annotated[str | None, _repeated("Time zone of --cron. (default: UTC)", "ZONE")]
Missed = Annotated[
    MissedName | None,
    _repeated("Occurrences missed while no host ran: skip them, publish the last once, or publish all."),
]


def publish(
    session: Session,
    topic: TopicName = None,
    payloads: Payloads = None,
    key: Key = None,
    priority: Priority = None,
    header: Headers = None,
    merge_key: MergeKey = None,
    delay: Delay = None,
    at: At = None,
    time_range: TimeRange = None,
    ttl: Ttl = None,
    every: Every = None,
    repeat: Repeat = None,
    cron: Cron = None,
    tz: Zone = None,
    missed: Missed = None,
) -> None:
    """Publish messages: the payloads given, or JSON lines from standard input.

    Each line is a JSON object with "payload" (a string, or any JSON, which is sent as written). It may also have
    "topic", "key", "priority", "headers" (an object of strings), "delay", "delay_ms", "at", "ttl_s", "time_range_ms"
    and "merge_key"; the options are the defaults for lines without these. The command ends at the first wrong line;
    the lines before it are published and counted.

    Example: emq publish shop 'order 7 is paid' --priority high --delay 30s

    Example: emq publish reports daily --cron '0 9 * * 1-5' --tz Europe/Berlin
    """
    import asyncio

    from emq_cli.message_lines import Told

    if topic == STDIN:
        topic, payloads = None, [STDIN]
    again = _again(every, repeat, cron, tz, missed, {"--time-range": time_range, "--merge-key": merge_key})
    _refuse_two({"--delay": delay, "--at": at, "--time-range": time_range} if again is None else {})
    _check_time(at)
    told = Told(
        topic=topic,
        key=key,
        priority=priority,
        headers=_headers(header or ()),
        delay=delay,
        at=at,
        ttl_s=None if ttl is None else times.given_span_s(ttl, "--ttl"),
        time_range_ms=None if time_range is None else round(times.given_span_s(time_range, "--time-range") * 1000),
        merge_key=merge_key,
    )
    if payloads and payloads != [STDIN]:
        asyncio.run(_publish_arguments(session, told, payloads, again))
    elif again is not None:
        raise errors.InvalidMessage("--every and --cron go with payloads as arguments, not with lines; give a payload")
    elif not payloads and sys.stdin.isatty():
        raise typer.BadParameter("give a payload, or JSON lines on standard input ('-' to type them)")
    else:
        _publish_lines(session, told)


async def _publish_arguments(
    session: Session, told: Told, payloads: Sequence[str], again: dict[str, Any] | None
) -> None:
    from emq.producer.outcomes import all_published
    from emq_cli import message_lines

    assert told.topic is not None  # it comes before the payloads
    async with session.app(recorded=True) as app:
        topic = await app.producer.topic(told.topic)
        if again is None:
            now_us = app.clock.now_us()
            messages = [message_lines.outgoing(topic, payload.encode(), told, now_us) for payload in payloads]
            ids = all_published(await app.producer.send(messages))
        else:
            if told.delay is not None:
                again["delay_ms"] = message_lines.delay_ms_of(topic, told.delay)
            said = {name: getattr(told, name) for name in ("key", "headers", "ttl_s")}
            said["at"] = told.at_s(app.clock.now())
            said["priority"] = message_lines.priority_of(topic, told.priority)
            ids = [await app.schedule(topic.name, payload, **again, **said) for payload in payloads]
    shown = ", ".join(ids[:SHOWN_IDS])
    if len(ids) > SHOWN_IDS:
        shown += f" and {len(ids) - SHOWN_IDS:,} more; --json prints all ids"
    if again is None:
        text = f"published {output.count(len(ids), 'message')} to {told.topic!r}: {shown}"
        session.say(text, {"published": len(ids), "ids": ids})
    else:
        which = "it" if len(ids) == 1 else "the first"
        hint = f"look at {which} with: emq schedule show {told.topic} {ids[0]}"
        text = f"made {output.count(len(ids), 'schedule')} for {told.topic!r}: {shown}; {hint}"
        session.say(text, {"scheduled": len(ids), "ids": ids})


def _again(
    every: str | None,
    repeat: int | None,
    cron: str | None,
    tz: str | None,
    missed: MissedName | None,
    others: dict[str, str | None],
) -> dict[str, Any] | None:
    """Return arguments for `Producer.schedule`, or None. Raises `InvalidMessage` if options do not go together."""
    if every is None and cron is None:
        for option, value in {"--repeat": repeat, "--tz": tz, "--missed": missed}.items():
            if value is not None:
                goes_with = "--cron" if option == "--tz" else "--every or --cron"
                raise errors.InvalidMessage(f"{option} {value} goes with {goes_with}; give that, too")
        return None
    for option, value in others.items():
        if value is not None:
            raise errors.InvalidMessage(f"{option} {value} does not go with --every and --cron; leave it out")
    every_s = None if every is None else times.given_span_s(every, "--every")
    again = {"every_s": every_s, "repeat": repeat, "cron": cron, "tz": tz, "missed": missed}
    return {name: value for name, value in again.items() if value is not None}


def _check_time(at: str | None) -> None:
    if at is not None:
        try:
            times.ahead(at, 0.0)  # the time is known once the app is open
        except ValueError as exc:
            raise typer.BadParameter(str(exc), param_hint="--at") from None


def _refuse_two(whens: dict[str, str | None]) -> None:
    given = [option for option, value in whens.items() if value is not None]
    if len(given) > 1:
        raise errors.InvalidMessage(f"{' and '.join(given)} both say when; give only one of them")


def _publish_lines(session: Session, defaults: Told) -> None:
    import asyncio

    from emq_cli.message_lines import Publisher

    with asyncio.Runner() as runner:
        app = session.app(recorded=True)
        patience = _Patience(runner)
        patience.run(app.__aenter__())
        try:
            publisher = Publisher(app, defaults)
            problem = _follow(session, patience, publisher)
        finally:
            patience.run(app.__aexit__(None, None, None))
    published, topics = publisher.published, len(publisher.topics)
    if problem is None:
        text = f"published {output.count(published, 'message')} to {output.count(topics, 'topic')}"
        session.say(text, {"published": published})
        return
    if session.json:
        session.say("", {"published": published, "error": problem.text})
    fail(f"{problem.text}; {output.count(published, 'message')} published before", problem.code)


class _Problem(NamedTuple):
    """Attributes: text: one line for the user; code: one of `emq_cli.exit_codes`."""

    text: str
    code: int


def _follow(session: Session, patience: _Patience, publisher: Publisher) -> _Problem | None:
    """Publish the lines of standard input, chunk by chunk; return the failure, or None."""
    from emq_cli import message_lines

    status = os.fstat(sys.stdin.fileno()) if session.err.is_terminal else None
    size = status.st_size if status is not None and stat.S_ISREG(status.st_mode) else None
    bar = Bar(session, "publishing", size, count="{task.fields[published]:,} published", published=0)
    with bar, patience.asked_for():
        done = 0
        try:
            for chunk in message_lines.chunks(sys.stdin.buffer):
                patience.run(publisher.publish(chunk))
                done += sum(map(len, chunk)) + len(chunk)
                bar.set(done, published=publisher.published)
        except message_lines.BadLine as exc:
            return _Problem(str(exc), exit_codes.of(exc.reason))
        except errors.EMQError as exc:
            return _Problem(str(exc), exit_codes.of(exc))
        except KeyboardInterrupt:
            return _Problem("interrupted", exit_codes.INTERRUPTED)
        except OSError as exc:
            return _Problem(f"standard input cannot be read: {exc.strerror}", exit_codes.WRONG)
    return None


class _Patience:
    """Makes Ctrl-C wait for a batch under way, so that the count of published messages is right.

    A wait for input ends at once. A second Ctrl-C does not wait.
    """

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._busy = False
        self._wanted = False

    def run(self, work: Coroutine[Any, Any, object]) -> None:
        self._busy = True
        try:
            self._runner.run(work)
        finally:
            self._busy = False
        if self._wanted:
            self._wanted = False
            raise KeyboardInterrupt

    @contextmanager
    def asked_for(self) -> Iterator[None]:
        before = signal.signal(signal.SIGINT, self._on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._busy and not self._wanted:
            self._wanted = True
        else:
            raise KeyboardInterrupt


def _headers(pairs: Sequence[str]) -> dict[str, str] | None:
    headers = {}
    for pair in pairs:
        name, mark, value = pair.partition("=")
        if not mark or not name:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--header")
        headers[name] = value
    return headers or None
