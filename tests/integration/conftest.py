"""What several integration tests begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import emq_shell
from support.emq_processes import Shell
from support.tree_watcher import TreeWatcher


@pytest.fixture
def emq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """Processes of commands in an empty directory, without settings from the environment."""
    emq_shell.enter(tmp_path, monkeypatch)
    shell = Shell()
    yield shell
    shell.close()


@pytest.fixture
async def watch() -> AsyncIterator[Callable[..., TreeWatcher]]:
    """Makes trees over ZooKeeper, and closes them."""
    watchers: list[TreeWatcher] = []

    def make(url: str, timeout_s: float = 4.0, **more: Any) -> TreeWatcher:
        watchers.append(TreeWatcher(url, timeout_s, **more))
        return watchers[-1]

    yield make
    for watcher in watchers:
        await watcher.tree.close()
