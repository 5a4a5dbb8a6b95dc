"""Tells of groups that somebody outside of the cluster took."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from emq.runtime import errors

TELL_S = 5.0
"""Seconds until a host reports that a stranger took a group. By then it knows whether the topic was deleted."""

Closing = Callable[[Collection[str]], Awaitable[Collection[str]]]
"""Returns those of the groups whose topics are being deleted."""


async def none_closing(_: Collection[str]) -> Collection[str]:
    """Know of no deletion."""
    return ()


class Strangers:
    """Decides, a while after a store has refused groups that the plan gives to this host, who has them.

    A deletion of their topic takes groups over, too, and may take its time. Other hosts take the groups of a host whose
    lease has ended, before that host hears of it.

    Args:
        is_ours: whether the cluster still gives a group or bucket to this host.
        closing: see `Closing`.
        complain: called with a line for the log.
    """

    def __init__(self, is_ours: Callable[[str], bool], closing: Closing, complain: Callable[[str], None]) -> None:
        self._is_ours = is_ours
        self._closing = closing
        self._complain = complain
        self._due: dict[str, tuple[float, str]] = {}
        self._telling: asyncio.Task[None] | None = None

    def refused(self, group: str, planned: str) -> None:
        """A store refused a group that the plan gives to this host, by its own name or by that of its bucket."""
        loop = asyncio.get_running_loop()
        self._due.setdefault(group, (loop.time() + TELL_S, planned))
        if self._telling is None or self._telling.done():
            self._telling = loop.create_task(self._tell(), name="emq strangers of the cluster")

    def clear(self) -> None:
        """Forget all groups: they belong to other hosts of the cluster now."""
        self._due.clear()

    def end(self) -> None:
        """Tell nothing more."""
        self.clear()
        if self._telling is not None:
            self._telling.cancel()

    async def _tell(self) -> None:
        loop = asyncio.get_running_loop()
        while self._due:
            await asyncio.sleep(next(iter(self._due.values()))[0] - loop.time())
            planned = {group: by for group, (due_s, by) in self._due.items() if due_s <= loop.time()}
            for group in planned:
                del self._due[group]
            try:
                closing = await self._closing(planned) if any(map(self._is_ours, planned.values())) else planned
            except errors.EMQError:
                continue  # a stranger takes the groups again
            for group, by in planned.items():
                if group not in closing and self._is_ours(by):
                    self._complain(
                        f"a host outside of this cluster took group {group}; all hosts of one store must have the same "
                        "`database` and `cluster`; this host asks for each such group again after a while"
                    )
