"""What somebody records of finished messages, such as the attempts of pushes: written before progress is saved."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from emq import errors

log = logging.getLogger(__name__)

AGAIN_S = 1.0
"""Seconds between two tries to write records."""

Write = Callable[[], Awaitable[None]]
"""Writes all records that wait; returns at once if none do. Raises `EMQError` if they can be written later."""


class Records:
    """The records of all who keep some on this host.

    The order makes records true after a crash: a message is finished, then its record is written, then the host saves
    that the message is finished. A host that crashes between these steps delivers the message again, and records that.

    Args:
        writes: one for each who keeps records; the sequence may grow.
    """

    def __init__(self, writes: Sequence[Write] = ()) -> None:
        self._writes = writes

    async def written(self) -> None:
        """Return once all records up to now are written. Raises `EMQError`: ask again later."""
        for write in self._writes:
            await write()

    async def written_at_last(self) -> None:
        """Do what `written` does, again and again until it succeeds."""
        said = False
        while True:
            try:
                return await self.written()
            except errors.EMQError as exc:
                if not said:
                    said = True
                    log.warning("messages that ran wait to be settled until their records are written: %s", exc)
            await asyncio.sleep(AGAIN_S)
