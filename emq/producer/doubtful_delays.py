"""Looks after delayed messages that were stored while the database was away, because their groups may be gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from emq.runtime import errors, plurals

MESSAGES = 10_000
BYTES = 64 << 20
"""Most messages, and most bytes of their payloads, that may be in doubt at a time."""

log = logging.getLogger(__name__)

ASK_AGAIN_S = 1.0


class _Sized(Protocol):
    @property
    def size(self) -> int:
        """Bytes of the payload."""


Item = TypeVar("Item", bound=_Sized)


class Doubts(Generic[Item]):
    """Looks after the messages in doubt as soon as the database is back.

    A doubt stays open only if this process ends before the database is back. It matters only if other processes reached
    the database meanwhile, since no group is retired without the database.

    Args:
        place: places messages again whose group is gone; returns the messages that need another look. Raises
            `DatabaseUnavailable` while the database is away; then nothing was done.
    """

    def __init__(self, place: Callable[[Sequence[Item]], Awaitable[Sequence[Item]]]) -> None:
        self._place = place
        self._items: list[Item] = []
        self._bytes = 0
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._items)

    def refuse_more(self) -> None:
        """Raise `DatabaseUnavailable` if too many messages are in doubt. Call this before you store a message."""
        if len(self._items) >= MESSAGES or self._bytes >= BYTES:
            raise errors.DatabaseUnavailable(
                f"{len(self._items)} delayed messages wait for the database to confirm their groups; nothing was "
                "published; try again when it answers"
            )

    def put(self, items: Sequence[Item]) -> None:
        """Take over messages that were stored, and whose groups may be gone."""
        self._items += items
        self._bytes += sum(item.size for item in items)
        if self._items and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._settle(), name="emq confirm delayed messages")

    async def _settle(self) -> None:
        while self._items:
            await asyncio.sleep(ASK_AGAIN_S)
            items, self._items, self._bytes = self._items, [], 0
            try:
                left: Sequence[Item] = await self._place(items)
            except (errors.DatabaseUnavailable, errors.StoreUnavailable, errors.StoreFull):
                left = items
            except Exception:  # messages in doubt must not be forgotten
                log.exception("%s could not be confirmed; trying again", plurals.count(len(items), "delayed message"))
                left = items
            self._items += left
            self._bytes += sum(item.size for item in left)
