"""The last steps of a stop: each gets its share of the time, so that a silent server does not hold up the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

from emq.runtime import errors

log = logging.getLogger(__name__)

LAST_STEPS_S = 4.0
"""Seconds, beyond `drain_s`, that the last steps of a stop (let go, save, leave) together wait for servers."""

LEAST_STEP_S = 0.5
"""Seconds that each of the last steps may take, even if the earlier steps have used up the time."""

CANCEL_AGAIN_S = 2.0


class LastSteps:
    """Bounds the time of the last steps; it runs from `begin`, else from the first step."""

    def __init__(self) -> None:
        self._ends_s = 0.0

    def begin(self, drain_s: float = 0.0) -> None:
        """Begin the time of the last steps; they have `drain_s` seconds more than usual."""
        self._ends_s = asyncio.get_running_loop().time() + drain_s + LAST_STEPS_S

    @contextlib.asynccontextmanager
    async def step(self, what: str, within_s: float | None = None) -> AsyncIterator[None]:
        """Give one step its share of the time; skip the rest of the step when a server is silent, or after any error.

        Args:
            within_s: seconds that the step has, apart from the time of the others; None for a share of that.
        """
        now = asyncio.get_running_loop().time()
        if within_s is None and not self._ends_s:
            self.begin()
        until = max(self._ends_s, now + LEAST_STEP_S) if within_s is None else now + within_s
        try:
            async with asyncio.timeout_at(until):
                yield
        except TimeoutError:
            log.warning("stopping without %s: no answer in time", what)
        except errors.EMQError as exc:
            log.warning("stopping without %s: %s", what, exc)
        except Exception:  # the steps after it matter no less
            log.exception("stopping without %s", what)


async def end_all(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks until all have ended; a library may have taken the first cancellation for its own time-out."""
    running = set(tasks)
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=CANCEL_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)
