"""What a call waits for besides its answer: that a replica or the disk has it too.

WAIT and WAITAOF speak of the writes of their own connection, so they follow the call in its pipeline.
"""

from __future__ import annotations

import enum
import time
from typing import Any

import redis.exceptions

from emq import errors
from emq.storage.durability import Durability

DURABILITY_TIMEOUT_MS = 5_000
"""How long a publish waits for the replica or the disk before its outcome is reported as unknown."""

FOLLOWED_TIMEOUT_MS = 200
"""How long a call whose answer is acted upon waits for a replica that may take over."""

ALONE_S = 5.0
"""How long nobody waits for a replica after one did not answer in time."""


class Confirm(enum.Enum):
    """States no more than the server can tell.

    FOLLOWED is for what is acted upon elsewhere once it was answered: a message that was read is handled and its offset
    checkpointed. Were it lost when a replica takes over, another message would get its offset and be passed over. It
    fails nothing: without a replica that answers, nobody could take over either.
    """

    NOTHING = ()
    FOLLOWED = ("WAIT", 1, FOLLOWED_TIMEOUT_MS)
    REPLICATED = ("WAIT", 1, DURABILITY_TIMEOUT_MS)
    FSYNCED = ("WAITAOF", 1, 0, DURABILITY_TIMEOUT_MS)

    @property
    def wait_s(self) -> float:
        """How long the server may wait before it answers."""
        return float(self.value[-1]) / 1000 if self.value else 0.0


DEMANDED = {
    Durability.ACCEPTED: Confirm.NOTHING,
    Durability.REPLICATED: Confirm.REPLICATED,
    Durability.FSYNCED: Confirm.FSYNCED,
}


class Confirmations:
    """What one server is asked to confirm, and what its answers mean.

    Args:
        url: of the server, for messages.
        followed: whether a replica may take over from it.
    """

    def __init__(self, url: str, followed: bool) -> None:
        self._url = url
        self._followed = followed
        self._alone_until = 0.0

    def needed(self, durability: Durability, outlives: bool) -> Confirm:
        """What a call is to wait for.

        Args:
            outlives: its answer is acted upon elsewhere.
        """
        if outlives and self._followed and durability is Durability.ACCEPTED:
            return Confirm.NOTHING if time.monotonic() < self._alone_until else Confirm.FOLLOWED
        return DEMANDED[durability]

    def failure(self, confirm: Confirm, answer: Any) -> errors.StoreUnavailable | None:
        """What the answer to WAIT or WAITAOF means for the calls before it; None if they are confirmed."""
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
        if isinstance(answer, Exception) or count < 1:  # a master that is deposed meanwhile answers UNBLOCKED
            return errors.OutcomeUnknown(
                f"{self._url} took the write but did not confirm it as {wanted} "
                f"within {DURABILITY_TIMEOUT_MS / 1000:g} s"
            )
        return None
