"""The announcement: the node in which a host tells the cluster about itself."""

from __future__ import annotations

import asyncio

import msgspec

from emq.allocation import records
from emq.allocation.records import Paths, Running
from emq.allocation.tree import protocol
from emq.runtime import errors

RETRY_S = 0.2


class Announcement:
    """The node `running/<host>` of one session; nobody else writes it.

    Attributes:
        said: the record in the node, as far as this host knows; None while this session has no node.
    """

    def __init__(self, coordination: protocol.Tree, paths: Paths, host: str) -> None:
        self._tree = coordination
        self._path = paths.host(host)
        self._host = host
        self._version = 0
        self._unsure = False  # the reply to a write was lost: others may have read a record that is out of date
        self.said: Running | None = None

    async def make(self, running: Running) -> bool:
        """Create the node; return False while another host of this name has one."""
        try:
            await self._tree.create(self._path, records.encode(running), ephemeral=True)
        except protocol.NodeExists:
            node = await self._own()
            if node is None:
                return False
            # A call whose reply was lost made this node.
            self._version = await self._tree.write(self._path, records.encode(running), node.version)
        else:
            self._version = 0
        self.said, self._unsure = running, False
        return True

    async def say(self, **changes: object) -> bool:
        """Write changed fields of the record, if their values differ; return False if the caller must try again.

        Raises:
            ClusterUnavailable: the write may have happened; try again.
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
        """Note that the session ended, and the node with it."""
        self.said = None

    async def conflict(self) -> errors.HostConflict:
        """Return the error that names the process which has this host's name."""
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
        """Read the node's version again: a write whose reply was lost may have happened."""
        node = await self._own()
        if node is not None:
            self._version = node.version

    async def _own(self) -> protocol.Node | None:
        node = await self._tree.read(self._path)
        return node if node is not None and node.session == self._tree.session else None
