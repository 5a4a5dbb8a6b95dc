"""`emq publish`: messages from arguments, or JSON lines from standard input."""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emq import errors
from emq.cli import output
from emq.cli.session import Session, fail

if TYPE_CHECKING:
    import asyncio

    from emq.cli.lines import Publisher

STDIN = "-"


def publish(
    session: Session,
    topic: Annotated[
        str | None,
        typer.Argument(metavar="TOPIC", help="Where to; a line that names a topic goes there.", show_default=False),
    ] = None,
    payloads: Annotated[
        list[str] | None, typer.Argument(metavar="PAYLOAD", help="One message each; '-' reads lines instead.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Messages of one key run one at a time, in order.")] = None,
    priority: Annotated[str | None, typer.Option(help="One of the topic's; the middle one if left out.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="NAME=VALUE; may be repeated.")] = None,
) -> None:
    """Publish messages: the payloads given, or JSON lines from standard input.

    A line is an object with "payload" (a string, or any JSON, which is sent as it is written) and, if wanted,
    "topic", "key", "priority" and "headers" (an object of strings). The options hold where a line says nothing.
    At a line that is not right it ends: those before are published and counted.
    """
    if topic == STDIN:
        topic, payloads = None, [STDIN]
    headers = _headers(header or ())
    if payloads and payloads != [STDIN]:
        import asyncio

        assert topic is not None  # it comes before them
        asyncio.run(_publish_arguments(session, topic, payloads, key, priority, headers))
    elif not payloads and sys.stdin.isatty():
        raise typer.BadParameter("give a payload, or JSON lines on standard input ('-' to type them)")
    else:
        from emq.cli.lines import Defaults

        _publish_lines(session, Defaults(topic, key, priority, headers))


async def _publish_arguments(
    session: Session,
    topic: str,
    payloads: Sequence[str],
    key: str | None,
    priority: str | None,
    headers: dict[str, str] | None,
) -> None:
    async with session.app(recorded=True) as app:
        ids = await app.publish_many(topic, payloads, key=key, priority=priority, headers=headers)
    shown = ", ".join(ids[:3]) + (" ..." if len(ids) > 3 else "")
    session.say(
        f"published {output.count(len(ids), 'message')} to {topic!r}: {shown}", {"published": len(ids), "ids": ids}
    )


def _publish_lines(session: Session, defaults: Any) -> None:
    import asyncio

    from emq.cli.lines import Publisher

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
        session.say("", {"published": published, "error": problem})
    fail(f"{problem}; {output.count(published, 'message')} published before")


def _follow(session: Session, patience: _Patience, publisher: Publisher) -> str | None:
    """Publish what standard input brings, chunk by chunk; answers what went wrong, if anything."""
    from emq.cli import lines

    with _progress(session) as advance, patience.asked_for():
        try:
            for chunk in lines.chunks(sys.stdin.buffer):
                patience.run(publisher.publish(chunk))
                advance(sum(map(len, chunk)) + len(chunk), publisher.published)
        except errors.EMQError as exc:
            return str(exc)
        except KeyboardInterrupt:
            return "interrupted"
    return None


class _Patience:
    """Ctrl-C ends a wait for input at once; while a batch is on its way it waits until that has arrived.

    So what is counted as published is what was published. A second Ctrl-C does not wait.
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


@contextmanager
def _progress(session: Session) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal; yields what is to be told (bytes read, messages published so far)."""
    if session.json or not session.err.is_terminal:
        yield lambda _bytes, _published: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("publishing"),
        BarColumn(),
        TextColumn("{task.fields[published]:,} messages"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=session.err, transient=True) as progress:
        status = os.fstat(sys.stdin.fileno())
        task = progress.add_task("", total=status.st_size if stat.S_ISREG(status.st_mode) else None, published=0)
        yield lambda size, published: progress.update(task, advance=size, published=published)


def _headers(pairs: Sequence[str]) -> dict[str, str] | None:
    headers = {}
    for pair in pairs:
        name, mark, value = pair.partition("=")
        if not mark or not name:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--header")
        headers[name] = value
    return headers or None
