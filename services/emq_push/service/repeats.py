"""Repeats of requests with an Idempotency-Key, except those with messages, which `publishing` recognises.

A row says that a request was begun, before it does anything, and gets its answer at the end. A repeat gets the answer,
or is refused while there is none: what was asked for is never done twice. A request that was refused, or that failed
without a change, leaves no row, so its repeat is carried out.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import sqlalchemy as sa

from emq_push.records.accepted import Accepted, Repeat
from emq_push.service.parts import Parts
from emq_push.service.refusals import IN_PROGRESS, Conflict, Invalid

UNDER_WAY_US = 15_000_000
"""Microseconds after which a request without an answer counts as broken off."""
LOOK_S = 0.05
LOOKS = 20
"""Seconds between two looks for the answer of a request that is under way, and the most looks of one repeat."""


class Place(NamedTuple):
    """Where the row of a request is.

    Attributes:
        tenant: that of the caller's bearer key, with which the row goes; empty for none.
        key: the id of the bearer key, a space, and the Idempotency-Key. That of a request with messages has no space.
    """

    tenant: str
    key: str


class Repeats:
    """The requests of the last 24 hours by their Idempotency-Keys.

    Args:
        parts: of the service.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._rows = Accepted(parts.environment)

    async def begin(self, place: Place, digest: str) -> str:
        """Note that a request begins, and return an empty text; or return the answer that it got before.

        Args:
            digest: of the request, to tell another request with the same key.

        Raises:
            Invalid: the key came with another request before.
            Conflict: the request is under way, or broke off before its answer was noted.
        """
        for left in range(LOOKS, -1, -1):
            found = await self._found_or_begun(place, digest)
            if found is None:
                return ""
            if found.digest != digest:
                text = "this Idempotency-Key came with another request before; give each request a key of its own"
                raise Invalid("idempotency_key_reused", text)
            if found.answer:
                return found.answer
            if self._parts.now_us() - found.created_us > UNDER_WAY_US:
                text = "the first request with this Idempotency-Key broke off, so it may have been carried out or not"
                raise Conflict("outcome_unknown", f"{text}; look, and repeat it under another key if it was not")
            if left:
                await asyncio.sleep(LOOK_S)
        text = "the first request with this Idempotency-Key is still under way; repeat it in a second"
        raise Conflict(IN_PROGRESS, text)

    async def _found_or_begun(self, place: Place, digest: str) -> Repeat | None:
        """Return the request of a place; None if this one is the first there."""

        def look(connection: sa.Connection) -> Repeat | None:
            found = self._rows.repeats(connection, [place]).get(place)
            if found is None:
                self._rows.add_repeats(connection, {place: Repeat(digest, "")}, self._parts.now_us())
            return found

        try:
            return await self._parts.write(look)
        except sa.exc.IntegrityError:  # somebody else was quicker, and may be refused before we look again
            return Repeat(digest, "", self._parts.now_us())

    async def end(self, place: Place, answer: str) -> None:
        """Note the answer of a request. Raises `DatabaseUnavailable`; then repeats are refused."""
        await self._parts.write(lambda c: self._rows.answer_repeat(c, place.tenant, place.key, answer))

    async def undo(self, place: Place) -> None:
        """Forget a request that changed nothing. Raises `DatabaseUnavailable`; then repeats are refused."""
        await self._parts.write(lambda c: self._rows.drop_repeat(c, place.tenant, place.key))
