"""The last steps of a host: none of them keeps the others from being taken, whatever error it meets."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest

from emq.allocation.member import ClusterMembership
from emq.allocation.membership import Seat
from support.ensemble import MemoryEnsemble
from support.rig import Rig, Seen
from support.virtual import virtual


async def generation(least: int) -> int:
    return least


@pytest.mark.parametrize(
    ("part", "step"),
    [
        ("membership.hand_over", "handing its groups over"),
        ("letting_go.release", "letting go of the groups"),
        ("work.checkpointer.save", "saving the last progress"),
        ("membership.leave", "leaving the cluster"),
    ],
)
@virtual
async def test_an_error_in_a_last_step_leaves_out_that_step_alone(
    r: Rig, caplog: pytest.LogCaptureFixture, part: str, step: str
) -> None:
    await r.topic("t", 20)
    await r.producer.publish_many("t", [b"x"] * 5)
    ensemble = MemoryEnsemble(r.clock)
    membership = ClusterMembership(Seat(ensemble.tree(), "online", "a", generation, r.clock))
    host = r.host(seen := Seen(), "a", membership=membership)
    running = asyncio.create_task(host.run())
    while len(seen) < 5:
        await asyncio.sleep(0.1)
    at: Any = host
    *path, name = part.split(".")
    for attribute in path:
        at = getattr(at, attribute)
    with mock.patch.object(at, name, side_effect=RuntimeError("the handler is closed")):
        host.stop()
        await running
    assert f"stopping without {step}" in caplog.text
    assert bool(ensemble.sessions) == (name == "leave")
    assert await r.lag("t") == (5 if part == "work.checkpointer.save" else 0)
