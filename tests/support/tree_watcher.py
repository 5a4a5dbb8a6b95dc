"""A tree over ZooKeeper with the states that its session goes through."""

from __future__ import annotations

import asyncio
from typing import Any

from emq.allocation import zookeeper
from emq.allocation.tree.protocol import SessionState
from emq.runtime import settings


class TreeWatcher:
    """Attributes:
    states: all since it was made.
    sessions: the tree's session at each of them.
    """

    def __init__(self, url: str, timeout_s: float = 4.0, **more: Any) -> None:
        self.tree = zookeeper.tree_of(settings.Settings(cluster=url, session_timeout_s=timeout_s, **more))
        self.states: list[SessionState] = []
        self.sessions: list[int] = []
        self._changed = asyncio.Event()

    async def open(self) -> zookeeper.ZooKeeperTree:
        async with asyncio.timeout(30):
            await self.tree.open(self._note)
        return self.tree

    def _note(self, state: SessionState) -> None:
        self.states.append(state)
        self.sessions.append(self.tree.session)
        self._changed.set()

    async def sees(self, *states: SessionState) -> None:
        """Wait until the session went through exactly these states since the tree was opened."""
        async with asyncio.timeout(30):
            while self.states[1:] != list(states):
                self._changed.clear()
                await self._changed.wait()

    async def comes_to(self, state: SessionState) -> None:
        """Wait until the session is in this state, whatever states it went through."""
        async with asyncio.timeout(30):
            while self.states[-1] is not state:
                self._changed.clear()
                await self._changed.wait()
