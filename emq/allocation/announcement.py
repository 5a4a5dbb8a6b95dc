"""What a host says of itself in the tree, and how it changes that."""

from __future__ import annotations

import asyncio

import msgspec

from emq import errors
from emq.allocation import records
from emq.allocation.records import Paths, Running
from emq.allocation.tree import protocol

RETRY_S = 0.2


class Announcement:
    """The node `running/<host>` of one session; nobody else writes it.

    Attributes:
        said: what it holds, as far as is known; None while there is none of this session's.
    """

    def __init__(self, coordination: protocol.Tree, paths: Paths, host: str) -> None:
        self._tree = coordination
        self._path = paths.host(host)
        self._host = host
        self._version = 0
        self._unsure = False  # the answer of a write was lost: others may have read what this host means no more
        self.said: Running | None = None

    async def make(self, running: Running) -> bool:
        """Say it for the first time; False while another one of this name is there."""
        try:
            await self._tree.create(self._path, records.encode(running), ephemeral=True)
        except protocol.NodeExists:
            node = await self._own()
            if node is None:
                return False
            # Made by a call whose answer was lost.
            self._version = await self._tree.write(self._path, records.encode(running), node.version)
        else:
            self._version = 0
        self.said, self._unsure = running, False
        return True

    async def say(self, **changes: object) -> bool:
        """Change what is said, if it does change; False if that did not succeed and is to be tried again.

        Raises:
            ClusterUnavailable: it may have been written; try again.
            NodeMissing: somebody deleted the node, and the others take this host for gone; make another.
        """
        said = self.said
        if said is None:
            return True
        running = msgspec.structs.replace(said, **changes)
        if running == said and not self._unsure:
            return True
        try:
            self._version = await self._tree.write(self._path, records.encode(running), self._version)
        except errors.ClusterUnavailable:
            self._unsure = True
            await self._look_again()
            raise
        except protocol.Conflict:
            await self._look_again()
            await asyncio.sleep(RETRY_S)
            return False
        self._unsure = False
        if self.said is said:
            self.said = running
        return True

    def forget(self) -> None:
        """The session is no more, and the node with it."""
        self.said = None

    async def conflict(self) -> errors.HostConflict:
        """Who has the name."""
        node = await self._tree.read(self._path)
        where = ""
        if node is not None:
            other = records.decode(node.data, Running, self._path)
            where = f" (process {other.pid} on {other.machine})"
        return errors.HostConflict(
            f"a host named {self._host!r} is a member of this cluster already{where}; stop it, or give this one "
            "another host_name"
        )

    async def _look_again(self) -> None:
        """A write may have been carried out whose answer was lost."""
        node = await self._own()
        if node is not None:
            self._version = node.version

    async def _own(self) -> protocol.Node | None:
        node = await self._tree.read(self._path)
        return node if node is not None and node.session == self._tree.session else None
