"""The coordination tree of `emq.allocation.tree.protocol` over a ZooKeeper ensemble."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from kazoo import exceptions
from kazoo.protocol.states import EventType

from emq.allocation.tree import protocol as tree
from emq.allocation.tree.protocol import Node, OnChange, SessionState
from emq.allocation.tree.watches import Aspect, Watches
from emq.allocation.zookeeper.cluster_url import Address
from emq.allocation.zookeeper.kazoo_client import Access
from emq.allocation.zookeeper.session import Session
from emq.runtime import errors

_AGAIN_S = 0.1


class ZooKeeperTree(tree.Tree):
    """A client with a session of its own; see `emq.allocation.tree.protocol.Tree`. Made by `tree_of`.

    While no server answers, calls raise `ClusterUnavailable` at once; no call takes longer than the session's
    time-out. A call that is cancelled may still happen.

    Args:
        create: if False, `open` leaves a missing chroot missing; reading then finds nothing.
    """

    def __init__(self, address: Address, access: Access, timeout_s: float, *, create: bool = True) -> None:
        self.session = 0
        self.timeout_s = timeout_s
        self._address = address
        self._access = access
        self._root = address.chroot
        self._create = create
        self._session = Session(address, access, timeout_s, self._session_changed)
        self._on_session: Callable[[SessionState], None] = lambda state: None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watches = Watches()

    async def open(self, on_session: Callable[[SessionState], None]) -> None:
        self._on_session = on_session
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                await self._session.open()
                with contextlib.suppress(errors.ClusterUnavailable):
                    await self._enter()
                    return
                await asyncio.sleep(_AGAIN_S)
        except BaseException:
            await self.close()
            raise

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        tree.check(path, data)
        made = await self._make(self._root + path, data, ephemeral=ephemeral, sequence=sequence)
        return made.removeprefix(self._root)

    async def read(self, path: str, on_change: OnChange | None = None) -> Node | None:
        full = self._full(path)
        watch = self._watch(full, "node", on_change)
        while True:
            with contextlib.suppress(exceptions.NoNodeError):
                data, stat = await self._session.call("get", full, watch)
                return Node(data or b"", stat.version, stat.ephemeralOwner, stat.mtime / 1000)
            # `exists` watches a missing node; if the node exists by then, read it again.
            if watch is None or await self._session.call("exists", full, watch) is None:
                return None

    async def children(self, path: str, on_change: OnChange | None = None) -> list[str]:
        full = self._full(path)
        watch = self._watch(full, "children", on_change)
        while True:
            with contextlib.suppress(exceptions.NoNodeError):
                return sorted(await self._session.call("get_children", full, watch))
            if watch is None or await self._session.call("exists", full, watch) is None:
                return []

    async def write(self, path: str, data: bytes, version: int) -> int:
        tree.check(path, data)
        try:
            stat = await self._session.call("set", self._full(path), data, version)
        except exceptions.NoNodeError:
            raise tree.NodeMissing(f"node {path} does not exist; create it") from None
        except exceptions.BadVersionError:
            raise tree.Conflict(f"node {path} has not version {version} any more; read it again") from None
        return int(stat.version)

    async def delete(self, path: str) -> None:
        await self._remove(self._full(path))

    async def close(self) -> None:
        await self._session.close()
        self.session = 0
        self._watches.clear()

    # -------------------------------------------------------------------------------------------------- nodes

    async def _enter(self) -> None:
        """Check that we may use the chroot. If it is missing, create it, unless told not to."""
        try:
            try:
                await self._session.call("get_children", self._root or "/")
            except exceptions.NoNodeError:
                if self._create:
                    with contextlib.suppress(tree.NodeExists):
                        await self._make(self._root)
        except errors.ForeignTree as exc:
            raise errors.InvalidSettings(f"cluster: {exc}") from exc

    async def _make(self, full: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        shared = len(full) < len(self._root)
        acl = self._access.shared_acl if shared else self._access.own_acl
        while True:
            try:
                made = await self._session.call("create", full, data, acl=acl, ephemeral=ephemeral, sequence=sequence)
                return str(made)
            except exceptions.NodeExistsError:
                path = full.removeprefix(self._root)
                raise tree.NodeExists(f"node {path} is there already; read it, or choose another name") from None
            except exceptions.NoNodeError:
                with contextlib.suppress(tree.NodeExists):
                    await self._make(full.rpartition("/")[0])

    async def _remove(self, full: str) -> None:
        while True:
            try:
                await self._session.call("delete", full)
                return
            except exceptions.NoNodeError:
                return
            except exceptions.NotEmptyError:
                with contextlib.suppress(exceptions.NoNodeError):
                    for name in await self._session.call("get_children", full):
                        await self._remove(f"{full}/{name}")

    def _full(self, path: str) -> str:
        return self._root + path if path != "/" else self._root or "/"

    # ------------------------------------------------------------------------------------------------ watches

    def _watch(self, full: str, kind: Literal["node", "children"], on_change: OnChange | None) -> _Watch | None:
        """Register `on_change` before the read: kazoo may report a change before it delivers the read's reply."""
        if on_change is None:
            return None
        aspect = Aspect(full, kind)
        self._watches.add(aspect, on_change)
        return _Watch(self, aspect)

    def tell(self, aspect: Aspect) -> None:
        """Report a change to the loop. A thread of kazoo calls this."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                self._loop.call_soon_threadsafe(self._watches.call, aspect)

    def _session_changed(self, state: SessionState) -> None:
        self.session, self.timeout_s = self._session.id, self._session.timeout_s
        self._on_session(state)
        if state is SessionState.CONNECTED:
            # kazoo forgot its watches with the connection, and reported no change meanwhile.
            self._watches.call_all()


@dataclasses.dataclass(frozen=True)
class _Watch:
    """The function that kazoo calls at a change. kazoo keeps equal watches once, so repeated reads add none."""

    tree: ZooKeeperTree
    aspect: Aspect

    def __call__(self, event: Any) -> None:
        if event.type != EventType.NONE:  # NONE: the connection broke; the next connection calls the outstanding ones
            self.tree.tell(self.aspect)
