"""The identity of a store: a random name that the store keeps, so that two stores are never taken for one.

The identity is the body of a waiting entry in some special lanes. A lane never replaces an entry of the same id, so the
first add decides, on every store.

A store on several servers has one identity, not one for each server. A store may move data between its servers, and
checkpoints must keep their meaning. Each of the lanes holds a copy, and the lanes lie on different servers as a rule.
So the store keeps its identity as long as one server keeps its copy; the next host puts the lost copies back. The marks
of its queues show what the emptied server has lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter

from emq.runtime import errors
from emq.storage.answers import FAILURES, Failure
from emq.storage.lane_store import LaneAdd, LaneStore

COPIES = 4
"""Number of lanes that hold a copy. More copies outlive more servers, and each costs a store one small entry."""

LANES = tuple(f"identity of this store/{index}" for index in range(COPIES))
"""No topic can have these lanes: a topic's name has no spaces."""

PATIENCE_S = 0.5
"""Seconds that the others have to answer once a server has answered. A silent server must not keep a host from the
groups of the others."""

_SILENT = "the store's server with a copy of its identity does not answer"

_ID = "identity"

_NEVER_MS = 1 << 46
"""Due time of the entries, which nobody claims: the year 4199."""


async def find(lanes: LaneStore) -> str | None:
    """Return the store's identity, or None if it has none yet. Changes nothing.

    Raises:
        StoreUnavailable: a server that may have the identity does not answer, and no other server has it; try again.
    """
    found, failure = _of(await _copies(lanes))
    if found is None and failure is not None:
        raise failure
    return found


async def keep(lanes: LaneStore, wanted: str | None = None) -> str:
    """Return the store's identity; give the store one if it has none.

    Safe to repeat, and to call from several processes.

    Args:
        wanted: the identity to give, such as the one that the store had before it was emptied; None for a random one.

    Raises:
        StoreFull: the store has no identity, and no room for one.
        StoreUnavailable: no server that may have the identity answers; try again.
    """
    copies = await _copies(lanes)
    found, failure = _of(copies)
    if found is None:
        first = next((i for i, copy in enumerate(copies) if copy is None), None)
        if first is None:
            raise failure or errors.StoreUnavailable(_SILENT)
        # Callers at the same time agree on the copy in the first lane, or in the first one on a server that answers: a
        # silent server must not keep hosts from a new store. A store with an identity has copies on other servers, too.
        answer = (await lanes.add([_add(LANES[first], wanted or secrets.token_hex(6))]))[0]
        if isinstance(answer, errors.EMQError):
            raise answer
        copies[first] = await _copy(lanes, LANES[first])
        found, failure = _of([copies[first]])
        if found is None:
            raise failure or errors.StoreUnavailable("the store has forgotten its identity at once; try again")
    missing = [_add(lane, found) for lane, copy in zip(LANES, copies, strict=True) if copy is None]
    if missing:
        with contextlib.suppress(*FAILURES):  # the other copies suffice; the next host tries again
            await lanes.add(missing)
    return found


def _add(lane: str, identity: str) -> LaneAdd:
    return LaneAdd(lane, _ID, identity.encode(), _NEVER_MS)


async def _copies(lanes: LaneStore) -> list[str | Failure | None]:
    """Return the copy in each lane; once one has answered, wait only `PATIENCE_S` for the others."""
    asked = [asyncio.create_task(_copy(lanes, lane), name="emq identity") for lane in LANES]
    try:
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(asked, timeout=PATIENCE_S)
        return [task.result() if task.done() else errors.StoreUnavailable(_SILENT) for task in asked]
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def _copy(lanes: LaneStore, lane: str) -> str | Failure | None:
    """Return the identity that stands in one lane."""
    try:
        entries = await lanes.waiting(lane, 0, 1)
    except FAILURES as exc:
        return exc
    return entries[0].body.decode(errors="replace") if entries else None


def _of(copies: list[str | Failure | None]) -> tuple[str | None, Failure | None]:
    """Return the identity that most copies have, the first one of equals; and a failure, if there is one."""
    read = Counter(copy for copy in copies if isinstance(copy, str))
    failures = [copy for copy in copies if isinstance(copy, FAILURES)]
    return (read.most_common(1)[0][0] if read else None), (failures[0] if failures else None)
