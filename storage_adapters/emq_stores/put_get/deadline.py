"""Deadlines for the calls of a PUT/GET storage, so that no client can hang forever."""

from __future__ import annotations

import asyncio

from emq.runtime import errors
from emq_stores.put_get.client import PutGetClient


class DeadlineClient:
    """A client whose calls end after `answer_s` seconds, whatever the storage does.

    Attributes:
        client: the storage's own client.
    """

    def __init__(self, client: PutGetClient, answer_s: float) -> None:
        self.client = client
        self._answer_s = answer_s

    async def put(self, queue: str, body: bytes) -> int:
        """See `PutGetClient.put`. Raises `OutcomeUnknown` at the deadline."""
        try:
            async with asyncio.timeout(self._answer_s):
                return await self.client.put(queue, body)
        except TimeoutError:
            raise errors.OutcomeUnknown(f"queue {queue!r}: no answer to a PUT within {self._answer_s:g} s") from None

    async def get(self, queue: str, offset: int) -> bytes | None:
        """See `PutGetClient.get`. Raises `StoreUnavailable` at the deadline."""
        try:
            async with asyncio.timeout(self._answer_s):
                return await self.client.get(queue, offset)
        except TimeoutError:
            text = f"queue {queue!r}: no answer to GET({offset}) within {self._answer_s:g} s"
            raise errors.StoreUnavailable(text) from None
