"""Commands of `emq`, run in this process."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from emq import App
from emq_cli import exit_codes
from emq_cli.commands import app

FAILURES = (exit_codes.FAILED, exit_codes.WRONG, exit_codes.UNREACHABLE)


class Shell:
    """Runs commands.

    Attributes:
        error: standard error of the last command.
    """

    def __init__(self) -> None:
        self._runner = CliRunner()
        self.error = ""

    def __call__(self, line: str, *more: str, code: int | Sequence[int] = 0, stdin: str | bytes | None = None) -> str:
        """Standard output of a command, whose exit code must be `code`, or one of these."""
        result = self._runner.invoke(app, [*line.split(), *more], input=stdin, prog_name="emq")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code in ((code,) if isinstance(code, int) else code), result.output
        self.error = result.stderr
        return result.stdout

    def json(self, line: str, *more: str, code: int = 0, stdin: str | bytes | None = None) -> Any:
        return json.loads(self(line, *more, "--json", code=code, stdin=stdin))

    def refused(self, line: str, *more: str, code: int | None = None, stdin: str | bytes | None = None) -> str:
        """The one line with which a command fails; without `code`, with any code of a failure."""
        self(line, *more, code=FAILURES if code is None else (code,), stdin=stdin)
        assert self.error.count("\n") == 1, self.error
        assert self.error.startswith("emq: ")
        return self.error


def enter(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this the current directory, and remove all settings from the environment."""
    monkeypatch.chdir(directory)
    for name in [name for name in os.environ if name.startswith("EMQ_") and name != "EMQ_REQUIRE_SERVERS"]:
        monkeypatch.delenv(name)


def shell(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    enter(directory, monkeypatch)
    return Shell()


def opened(work: Callable[[App], Any]) -> Any:
    """Do something to the store of the commands."""

    async def run() -> Any:
        async with App() as made:
            return await work(made)

    return asyncio.run(run())
