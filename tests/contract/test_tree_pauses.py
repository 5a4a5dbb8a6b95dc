"""A client of the tree that is paused in the middle of a change holds up the others for less than their leases last."""

from __future__ import annotations

import asyncio
import time

import pytest
import sqlalchemy as sa

from emq.allocation.heartbeat import LEASE_SHARE
from emq.allocation.tree.database import DatabaseTree, nodes
from emq.allocation.tree.database.session import RENEWALS
from emq.allocation.tree.protocol import SessionState
from emq.runtime import errors

TIMEOUT_S = 6.0


async def test_a_client_that_is_paused_within_a_change_costs_the_others_no_lease(
    fresh_postgres: str,
) -> None:
    """SQLite cannot take a lock away from a process."""
    url = fresh_postgres
    paused, other = DatabaseTree(url, TIMEOUT_S), DatabaseTree(url, TIMEOUT_S)
    states: list[SessionState] = []
    await paused.open(lambda state: None)
    await other.open(states.append)
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stand_still(connection: sa.Connection, session: int) -> None:
        nodes.renew(connection, session)
        loop.call_soon_threadsafe(began.set)
        time.sleep(TIMEOUT_S * 2 / 3)

    standing = asyncio.create_task(paused._session.change(stand_still))
    try:
        await began.wait()
        waited = time.monotonic()
        await other.create("/t", b"x")
        assert time.monotonic() - waited < TIMEOUT_S * (LEASE_SHARE - 1 / RENEWALS)
        assert states == [SessionState.CONNECTED]
    finally:
        with pytest.raises(errors.ClusterUnavailable):  # the server has ended its connection
            await standing
        await asyncio.sleep(TIMEOUT_S / 3)  # its thread still stands
        await paused.close()
        await other.close()
