"""`emq run --reload`: when the child is started, stopped and started again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from emq.runtime import errors
from emq_cli import reloading
from emq_cli.reloading import Reloader
from support.waiting import until

# Each line is one write of the system: a signal may come within a print, and Python refuses a print inside that one.
CHILD = """
import os, signal, sys, time
code = compile(open("shop.py").read(), "shop.py", "exec")
lines = os.open("told.txt", os.O_WRONLY | os.O_APPEND)
def tell(line):
    os.write(lines, (line + "\\n").encode())
def stop(*_):
    tell("stopped")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
exec(code)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reloading, "DEBOUNCE_MS", 50)
    monkeypatch.setattr(reloading, "DRAIN_S", 0.1)
    monkeypatch.setattr(reloading, "STOP_S", 0.1)
    (tmp_path / "told.txt").touch()
    return tmp_path


@contextlib.asynccontextmanager
async def reloader(directory: Path) -> AsyncIterator[Reloader]:
    made = Reloader([sys.executable, "-S", "-c", CHILD], dict(os.environ), directory)
    running = asyncio.create_task(made.run())
    try:
        yield made
        await asyncio.wait_for(running, 20)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def told() -> list[str]:
    return Path("told.txt").read_text().splitlines()


def saved(text: str) -> None:
    Path("shop.py").write_text(text)


async def test_a_change_starts_the_app_again_and_a_broken_module_waits(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved("tell('one')")
    async with reloader(directory) as made:
        await until(lambda: told() == ["one"])
        saved("tell('two')")
        await until(lambda: told() == ["one", "stopped", "two"])
        saved("tell('broken'")
        await until(lambda: "status 1; it starts again when a file changes" in caplog.text)
        saved("tell('three')")
        await until(lambda: told()[-1] == "three")
        signal.raise_signal(signal.SIGINT)
    assert told() == ["one", "stopped", "two", "stopped", "three", "stopped"]
    assert made._child is not None
    assert made._child.returncode == 0


async def test_other_files_change_nothing(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    saved("tell('one')")
    async with reloader(directory):
        await until(lambda: told() == ["one"])
        (directory / "notes.txt").write_text("x")
        (directory / ".venv").mkdir()
        (directory / ".venv" / "library.py").write_text("x = 1")
        (directory / "other.py").write_text("x = 1")
        await until(lambda: told() == ["one", "stopped", "one"])
        signal.raise_signal(signal.SIGTERM)
    assert "changed: other.py; starting again" in caplog.text


@pytest.mark.parametrize("again", [False, True])
async def test_an_app_that_hears_no_signal_is_killed(directory: Path, again: bool) -> None:
    deaf = "signal.signal(signal.SIGTERM, lambda *_: tell('no'))"
    saved(f"{deaf}\ntell('one')\nfor _ in range(600): time.sleep(0.1)")  # bounded: this test may be killed
    async with reloader(directory) as made:
        await until(lambda: told() == ["one"])
        signal.raise_signal(signal.SIGINT)
        if again:
            await until(lambda: "no" in told())
            signal.raise_signal(signal.SIGINT)
    assert made._child is not None
    assert made._child.returncode == -signal.SIGKILL


async def test_a_directory_that_cannot_be_watched_is_named(directory: Path) -> None:
    saved("tell('one')")

    async def run() -> None:
        async with reloader(directory / "nowhere"):
            pass

    with pytest.raises(errors.InvalidSettings, match=r"cannot watch .*nowhere"):
        await run()
    await until(lambda: told() in ([], ["one", "stopped"], ["stopped"]))
