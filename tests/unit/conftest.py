"""A unit test starts no process and no server; one that needs some belongs to `tests/integration`."""

from __future__ import annotations

import multiprocessing.process
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from emq.database import Database
from support.emq_shell import Shell, shell

if TYPE_CHECKING:
    from support.http_receiver import HttpReceiver
    from support.push_api import Api


@pytest.fixture(autouse=True)
def _no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a unit test starts a process; move it to tests/integration")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse)


@pytest.fixture
def emq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Commands in an empty directory, without settings from the environment."""
    return shell(tmp_path, monkeypatch)


@pytest.fixture
async def db() -> AsyncIterator[Database]:
    """A database in memory, with the engine's tables."""
    database = await Database.open("sqlite://")
    yield database
    await database.close()


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    """The push service's API over an app in memory."""
    from support import push_api  # the engine's own tests run without what it imports

    async with push_api.opened() as opened:
        yield opened


@pytest.fixture
async def receiver() -> AsyncIterator[HttpReceiver]:
    """An endpoint that takes everything."""
    from support.http_receiver import HttpReceiver

    async with HttpReceiver(lambda _: 204).running() as made:
        yield made
