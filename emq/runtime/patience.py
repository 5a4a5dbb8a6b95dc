"""Waits for a server that does not answer yet."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from emq.runtime import errors

log = logging.getLogger(__name__)

AGAIN_S = (0.2, 0.5, 1.0, 2.0)
"""Seconds between attempts; the last one repeats. They are short, since a starting server is up within seconds."""

SAY_EVERY_S = 30.0

T = TypeVar("T")


async def waited(
    server: str,
    opened: Callable[[], Awaitable[T]],
    on_wait: Callable[[str], Awaitable[None]] | None = None,
    on_bug: Callable[[Exception], None] | None = None,
) -> T:
    """Repeat `opened` until its server answers, and return its result. Ends early by cancellation.

    Args:
        server: the server's name in the log.
        on_wait: called with the reason after each failure.
        on_bug: called with an error of no known kind, after which the call is repeated, too; None: it is raised.

    Raises:
        EMQError: any error of `opened` other than `StoreUnavailable` and `DatabaseUnavailable`.
    """
    attempts, said_s = 0, float("-inf")
    while True:
        try:
            result = await opened()
        except (errors.StoreUnavailable, errors.DatabaseUnavailable) as exc:
            if time.monotonic() - said_s >= SAY_EVERY_S:
                said_s = time.monotonic()
                log.warning("%s; waiting for %s, trying again", exc, server)
            if on_wait is not None:
                await on_wait(str(exc))
        except errors.EMQError:
            raise
        except Exception as exc:
            if on_bug is None:
                raise
            on_bug(exc)
        else:
            if attempts:
                log.info("%s answers", server)
            return result
        await asyncio.sleep(AGAIN_S[min(attempts, len(AGAIN_S) - 1)])
        attempts += 1
