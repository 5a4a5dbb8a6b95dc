"""Confirmation: a call may wait until a replica or the disk has its writes as well.

The commands WAIT and WAITAOF cover the writes of their own connection, so they follow the call in its pipeline.
"""

from __future__ import annotations

import enum
import time
from typing import Any

import redis.exceptions

from emq.runtime import errors
from emq.storage.durability import Durability

DURABILITY_TIMEOUT_MS = 5_000
"""Milliseconds that a publish waits for the replica or the disk, before it fails with `OutcomeUnknown`."""

FOLLOWED_TIMEOUT_MS = 200
"""Milliseconds that a call waits for a replica that may take over, if the caller acts on the answer elsewhere."""

ALONE_S = 5.0
"""Seconds without such waits after a replica did not answer in time."""


class Confirm(enum.Enum):
    """The confirmation that a call waits for: none, of a replica that may take over, of any replica, of the disk.

    FOLLOWED is for calls whose answer the caller acts on elsewhere. A host handles a message that it read, and
    checkpoints the message's offset. If the message were lost when a replica takes over, another message would get
    this offset and be passed over. FOLLOWED never fails a call: a replica that does not answer cannot take over either.
    """

    NOTHING = None  # not (): before Python 3.11.4, an enum makes an object of an empty tuple
    FOLLOWED = ("WAIT", 1, FOLLOWED_TIMEOUT_MS)
    REPLICATED = ("WAIT", 1, DURABILITY_TIMEOUT_MS)
    FSYNCED = ("WAITAOF", 1, 0, DURABILITY_TIMEOUT_MS)

    @property
    def wait_s(self) -> float:
        """Return the seconds that the server may wait for the confirmation before it answers."""
        return float(self.value[-1]) / 1000 if self.value else 0.0


DEMANDED = {
    Durability.ACCEPTED: Confirm.NOTHING,
    Durability.REPLICATED: Confirm.REPLICATED,
    Durability.FSYNCED: Confirm.FSYNCED,
}


class Confirmations:
    """Chooses the confirmations to ask of one server, and reads the server's answers.

    Args:
        url: URL of the server, for error texts.
        followed: True if a replica may take over from the server.
    """

    def __init__(self, url: str, followed: bool) -> None:
        self._url = url
        self._followed = followed
        self._alone_until = 0.0

    def needed(self, durability: Durability, outlives: bool) -> Confirm:
        """Return the confirmation that a call waits for.

        Args:
            outlives: True if the caller acts on the call's answer elsewhere.
        """
        if outlives and self._followed and durability is Durability.ACCEPTED:
            return Confirm.NOTHING if time.monotonic() < self._alone_until else Confirm.FOLLOWED
        return DEMANDED[durability]

    def failure(self, confirm: Confirm, answer: Any) -> errors.StoreUnavailable | None:
        """Return the error that an answer to WAIT or WAITAOF means for the calls before it; None if confirmed."""
        count = answer[0] if isinstance(answer, list) else answer
        if confirm is Confirm.FOLLOWED:
            if isinstance(answer, Exception) or count < 1:
                self._alone_until = time.monotonic() + ALONE_S
            return None
        wanted = "replicated" if confirm is Confirm.REPLICATED else "fsynced"
        if isinstance(answer, redis.exceptions.ResponseError) and "UNBLOCKED" not in str(answer):
            return errors.OutcomeUnknown(
                f"{self._url} cannot confirm durability {wanted!r} ({answer}); the write was applied. "
                "Set appendonly yes on the server (fsynced needs Redis >= 7.2 or Valkey), or choose another durability"
            )
        if isinstance(answer, Exception) or count < 1:  # a master that is deposed while it waits answers UNBLOCKED
            return errors.OutcomeUnknown(
                f"{self._url} took the write but did not confirm it as {wanted} "
                f"within {DURABILITY_TIMEOUT_MS / 1000:g} s"
            )
        return None
