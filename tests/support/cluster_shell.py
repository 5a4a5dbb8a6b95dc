"""Commands on a cluster in memory."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from emq.allocation.tree.protocol import Tree
from emq.topics.model import Topic, split
from emq_cli import cluster, forecast, session
from emq_cli.cluster import DatabaseView
from emq_trace import cluster_view
from support import emq_shell
from support.members import Cluster

TOPICS = [split(Topic("orders", 400)), split(Topic("mails", 90)), split(Topic("odd", 0.5))]
QUOTAS = forecast.quotas_of(TOPICS)


class Shell:
    """Runs commands, as functions on a cluster in memory and as `emq` in a directory of their own.

    Attributes:
        command: runs `emq`.
        known: the database's contents.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self.command = emq_shell.Shell()
        self.known = DatabaseView(TOPICS, QUOTAS, 1, [], loads=QUOTAS)

    def meet(self) -> Cluster:
        """Return a cluster in memory, at which the commands look from now on; its hosts offer the loads of `known`."""
        meeting = Cluster(self.known.loads)

        @contextlib.asynccontextmanager
        async def tree_of(session: object) -> AsyncIterator[Tree]:
            async with cluster_view.opened(meeting.ensemble.tree(), "memory") as tree:
                yield tree

        async def known(session: object) -> DatabaseView:
            return self.known

        self._monkeypatch.setattr(cluster, "tree_of", tree_of)
        self._monkeypatch.setattr(cluster, "known", known)
        return meeting

    async def __call__(self, command: Callable[..., Coroutine[Any, Any, None]], *arguments: Any, **options: Any) -> str:
        as_json = options.pop("json", False)
        made = session.Session({"cluster": "zookeeper://z"}, json=as_json)
        self._capsys.readouterr()
        await command(made, *arguments, **options)
        return self._capsys.readouterr().out

    async def json(self, command: Callable[..., Coroutine[Any, Any, None]], *arguments: Any, **options: Any) -> Any:
        return json.loads(await self(command, *arguments, json=True, **options))
