"""When connections begin: one after the other, so that a crowd of them does not hold up what has a connection."""

from __future__ import annotations

import asyncio
import itertools
import ssl

from emq_push.wire import Wire

STEP_S = 0.001
"""Seconds between connections, if few wait. To begin one takes the event loop as long as several requests, with name
look-up and TLS as long as dozens. Twenty in a row would hold up the messages of other endpoints for up to 20 ms."""
STEPS = 250
"""If more wait than that, several begin in one step, so that none waits for more than about so many steps."""

Place = tuple[str | None, int | None, str, ssl.SSLContext | None]
"""Host, port, scheme and settings of TLS: requests with the same ones share connections."""


class Turns:
    """Gives turns to requests that need a connection, in the order in which they ask."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[Wire | None], Place] = {}
        self._at: dict[Place, dict[asyncio.Future[Wire | None], None]] = {}
        self._step: asyncio.TimerHandle | None = None

    async def take(self, place: Place) -> Wire | None:
        """Wait for a turn, if one was taken within the last step.

        Returns:
            None for a turn, or a connection to the place that has become free meanwhile.
        """
        loop = asyncio.get_running_loop()
        if self._step is None:
            self._step = loop.call_later(STEP_S, self._next)
            return None
        turn: asyncio.Future[Wire | None] = loop.create_future()
        self._waiting[turn] = place
        self._at.setdefault(place, {})[turn] = None
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and (wire := turn.result()) is not None:
                wire.close()
            raise
        finally:
            self._forget(turn)

    def hand_over(self, place: Place, wire: Wire) -> bool:
        """Give a free connection to the request that has waited longest for the place; False if none waits."""
        for turn in self._at.get(place, ()):
            if not turn.done():  # else it was cancelled, and will soon be forgotten
                self._forget(turn)
                turn.set_result(wire)
                return True
        return False

    def _next(self) -> None:
        turns = list(itertools.islice(self._waiting, max(1, len(self._waiting) // STEPS)))
        for turn in turns:
            self._forget(turn)
            if not turn.done():
                turn.set_result(None)
        self._step = asyncio.get_running_loop().call_later(STEP_S, self._next) if turns else None

    def _forget(self, turn: asyncio.Future[Wire | None]) -> None:
        place = self._waiting.pop(turn, None)
        if place is not None:
            del self._at[place][turn]
            if not self._at[place]:
                del self._at[place]
