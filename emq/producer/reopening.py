"""Waits for a group of the catalog that the store has not opened yet.

The process that grows a topic, or gives up its deletion, changes the catalog first, and opens the group's queues, lane
or slot a moment later. The host that sealed the group opens it, too, once it reads that the topic has grown.
"""

from __future__ import annotations

import asyncio

from emq import errors

TRIES = 20
"""Most tries to publish a message whose group turns out to be sealed. With the pauses between them they last 9.5 s."""

STEP_S = 0.05
"""Seconds added to the pause before each further try."""


async def pause(tries: int) -> None:
    """Wait before the next try, after `tries` tries. No pause after the first: mostly a new look is enough."""
    await asyncio.sleep((tries - 1) * STEP_S)


def unopened(topic: str) -> errors.StoreUnavailable:
    """Return the error for the publisher after the last try."""
    waited_s = TRIES * (TRIES - 1) / 2 * STEP_S
    return errors.StoreUnavailable(
        f"a group of topic {topic!r} was closed in the store, and nobody has opened it in {waited_s:g} s; nothing was "
        f"published; publish again, and if that fails as well, open it: emq topic set {topic} qps=... (if the database "
        "was restored from an older copy, with a qps that changes the number of groups)"
    )
