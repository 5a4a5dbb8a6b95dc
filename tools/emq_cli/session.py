"""Shared parts of all commands: options for store and database, `--json`, one-line errors, exit codes."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import msgspec
import typer

from emq.runtime import errors, plurals
from emq_cli import arguments, exit_codes, extras
from emq_cli.entry import Command, one_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from emq.app import App
    from emq.observe.dead_letters import Letter
    from emq.observe.planned import Planned
    from emq.runtime.settings import Settings

ACTOR = "command line"
"""What audit logs have for changes by commands."""

_Listed = TypeVar("_Listed", "Letter", "Planned")

LISTED_BYTES = 64 << 20
"""Most bytes of payloads in a list that is printed as JSON, beside its last one."""

PIPE_WIDTH = 160
"""Columns of a table that does not go to a terminal."""


@dataclasses.dataclass
class Session:
    """One run of a command.

    Attributes:
        overrides: settings from the command line; None where not given.
        settings_file: the file of all other settings.
        json: print data as JSON.
    """

    overrides: Mapping[str, Any]
    settings_file: str | None = None
    json: bool = False

    @functools.cached_property
    def settings(self) -> Settings:
        from emq.runtime import settings

        return settings.load(self.settings_file, **self.overrides)

    def with_overrides(self, **overrides: str | None) -> Session:
        """Return this session with more settings from the command line."""
        return dataclasses.replace(self, overrides={**self.overrides, **overrides})

    def app(self, *, recorded: bool = False, patient: bool = False, create: bool = False) -> App:
        """An `App` with the effective settings, to be entered.

        Args:
            create: set up a new database; for commands that create topics or consume. The others raise `NoDatabase`.
            recorded: keep a trail if the settings ask for one; for commands that publish or consume.
            patient: wait for store and database; for hosts.
        """
        from emq.app import App
        from emq.trail.sink import NullTrail

        app = App(options=self.settings, trail=None if recorded else NullTrail(), patient=patient, create=create)
        app.operator = ACTOR
        return app

    def show(self, data: object, human: Callable[[], RenderableType]) -> None:
        """Print `data` as one JSON document with `--json`, else the result of `human`.

        Args:
            data: plain values, structs or dataclasses (a named tuple becomes a list).
        """
        if self.json:
            print_json(data)
        else:
            self.out.print(human())

    def page(self, data: Sequence[object], table: Callable[[], RenderableType], *, none: str, more: str = "") -> None:
        """Print a page of a list: one JSON document with `--json`, else the table, or `none` if the page is empty.

        Args:
            more: the line below the table; empty if nothing follows the page.
        """
        if self.json:
            print_json(data)
        elif not data:
            self.out.print(none, soft_wrap=True)
        else:
            self.out.print(table())
            if more:
                self.out.print(more)

    async def listed(self, entries: AsyncIterator[_Listed], most: int) -> list[_Listed]:
        """Return the first `most` entries: for a table without payloads, for JSON with 64 MiB of payloads at most."""
        found: list[_Listed] = []
        size = 0
        async for entry in entries:
            found.append(entry if self.json else entry._replace(payload=b""))
            size += len(found[-1].payload)
            if len(found) == most:
                break
            if size >= LISTED_BYTES:
                listed = plurals.count(len(found), "entry", "entries")
                text = f"the list ends after {listed}, whose payloads are {size >> 20} MiB; narrow it down"
                self.err.print(text)
                break
        return found

    def say(self, text: str, data: Mapping[str, object]) -> None:
        """Print one line, or `data` as JSON. Long lines are not folded, so a pipe gets each line whole."""
        if self.json:
            print_json(data)
        else:
            self.out.print(text, soft_wrap=True)

    @functools.cached_property
    def out(self) -> Console:
        return console()

    @functools.cached_property
    def err(self) -> Console:
        return console(stderr=True)

    def confirm(self, question: str, yes: bool) -> None:
        """Return if the user agrees; one Ctrl-C ends the question.

        Raises:
            EMQError: the user does not agree; nothing was changed.
            InvalidSettings: nobody can be asked, and `yes` is False.
        """
        if yes:
            return
        if not sys.stdin.isatty():
            raise errors.InvalidSettings(f"{question} Add --yes to agree: standard input is not a terminal")
        # In an event loop, the first Ctrl-C would only cancel the task that waits here for the answer.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            agreed = typer.confirm(question, err=True)
        except typer.Abort:
            fail("interrupted; nothing was changed", exit_codes.INTERRUPTED)
        finally:
            signal.signal(signal.SIGINT, before)
        if not agreed:
            raise errors.EMQError("nothing was changed")


def command(
    group: typer.Typer, name: str, *, json: bool = True, endless: bool = False, settings: Sequence[str] = ()
) -> Callable[[Any], Any]:
    """Decorator: make a function that takes a `Session` and its own parameters a command of `group`.

    The command gets the options that name EMQ's store and database, and `--json`. A coroutine function runs in an
    event loop of its own. `EMQError` and Ctrl-C end the command with one line and the code in `emq_cli.exit_codes`.

    Args:
        json: offer `--json`.
        endless: the command runs until Ctrl-C, which ends it with exit code 0.
        settings: other settings that the command takes as options; see `emq_cli.arguments.SETTINGS`.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(function, eval_str=True)
        shared = {name: arguments.SETTINGS[name] for name in (*settings, *arguments.WHERE)}
        more = {"settings_file": arguments.SettingsFile, **({"as_json": arguments.Json} if json else {})}
        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in list(own.parameters.values())[1:]] + [
            inspect.Parameter(
                key, inspect.Parameter.KEYWORD_ONLY, default=None if key != "as_json" else False, annotation=hint
            )
            for key, hint in {**shared, **more}.items()
        ]

        def call(settings_file: str | None = None, as_json: bool = False, **given: Any) -> None:
            _refuse_broken_text({"settings_file": settings_file, **given})
            session = Session({key: given.pop(key) for key in shared}, settings_file, as_json)
            guard(lambda: function(session, **given), endless=endless)

        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {p.name: p.annotation for p in parameters}
        paragraphs = (inspect.getdoc(function) or "").split("\n\n")
        call.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        group.command(name, cls=Command)(call)
        return function

    return register


def guard(run: Callable[[], Coroutine[Any, Any, Any] | object], *, endless: bool = False) -> None:
    """Run a command; an `EMQError` becomes one line on standard error and its exit code."""
    try:
        result = run()
        if inspect.iscoroutine(result):
            import asyncio  # here, so that `--help` does not load it

            asyncio.run(result)
    except errors.EMQError as exc:
        fail(str(exc), exit_codes.of(exc))
    except ModuleNotFoundError as exc:
        if (known := extras.missing(exc)) is None:
            raise
        fail(str(known), exit_codes.of(known))
    except OSError as exc:
        if exc.filename is None:
            raise
        fail(f"{exc.filename!r}: {exc.strerror}", exit_codes.WRONG)
    except KeyboardInterrupt:
        if not endless:
            fail("interrupted", exit_codes.INTERRUPTED)


def fail(text: str, code: int) -> NoReturn:
    """Print one line to standard error; raises `typer.Exit` with one of `emq_cli.exit_codes`."""
    typer.echo(f"emq: {one_line(text)}", err=True)
    raise typer.Exit(code)


def _refuse_broken_text(arguments: Mapping[str, object]) -> None:
    """Raise `typer.BadParameter` for bytes that are not UTF-8; file names may hold any."""
    for name, given in arguments.items():
        for text in given if isinstance(given, list) else [given]:
            if isinstance(text, str) and any("\ud800" <= c <= "\udfff" for c in text):
                raise typer.BadParameter(f"{text!a} is not valid UTF-8", param_hint=name.replace("_", " "))


def print_json(data: object, *, indent: bool = True) -> None:
    """Print one JSON document; `indent` False puts it on one line."""
    try:
        text = msgspec.json.encode(data)
    except UnicodeEncodeError:  # the name of a file that is not UTF-8
        import json

        text = json.dumps(msgspec.to_builtins(data)).encode()
    typer.echo(msgspec.json.format(text, indent=2) if indent else text)


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints text as it is: names and payloads are not markup."""
    from rich.console import Console

    made = functools.partial(Console, stderr=stderr, markup=False, emoji=False, highlight=False)
    usual = made(soft_wrap=False)
    if usual.is_dumb_terminal:
        # Rich takes 80 columns for granted there.
        width, height = shutil.get_terminal_size()
        return made(width=width, height=height)
    # A file or a pipe has no columns: a wide table keeps all its text there.
    return usual if usual.is_terminal else made(width=PIPE_WIDTH)
