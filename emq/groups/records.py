"""Records of finished messages, such as the attempts of pushes: written before progress is saved."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from emq.runtime import errors

log = logging.getLogger(__name__)

AGAIN_S = 1.0
"""Seconds between two tries to write records."""


class Keeper(Protocol):
    """Keeps records of one kind; see `emq.database.batch_writer.BatchWriter`.

    Attributes:
        kind: its word for the records, such as "records of attempts".
        waiting: number of records that are not written yet.
        lost: records so far that were left out, since too many waited or no table takes them.
    """

    @property
    def kind(self) -> str: ...

    @property
    def waiting(self) -> int: ...

    @property
    def lost(self) -> int: ...

    async def flush(self) -> None:
        """Write all records that wait; return at once if none do. Raises `EMQError` if they can be written later."""


class Records:
    """All writers of records on this host.

    The order makes records true after a crash: a message is finished, then its record is written, then the host saves
    that the message is finished. A host that crashes between these steps delivers the message again, and records that.

    Args:
        keepers: all who keep records; the sequence may grow.
    """

    def __init__(self, keepers: Sequence[Keeper] = ()) -> None:
        self.keepers = keepers

    async def written(self) -> None:
        """Return once all records up to now are written. Raises `EMQError`: ask again later."""
        for keeper in self.keepers:
            await keeper.flush()

    async def written_at_last(self) -> None:
        """Repeat `written` until it succeeds."""
        said = False
        while True:
            try:
                return await self.written()
            except errors.EMQError as exc:
                if not said:
                    said = True
                    log.warning("handled messages wait to be settled until their records are written: %s", exc)
            await asyncio.sleep(AGAIN_S)
