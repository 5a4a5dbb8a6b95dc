"""What a host says of itself, when answers get lost."""

from __future__ import annotations

import asyncio

import pytest

from emq.allocation import records
from emq.allocation.announcement import Announcement
from emq.allocation.records import Paths, Running
from emq.runtime import errors
from support.ensemble import MemoryEnsemble
from support.virtual import LoopClock, virtual


@virtual
async def test_what_was_said_without_an_answer_is_taken_back_if_it_is_meant_no_more() -> None:
    ensemble, paths = MemoryEnsemble(LoopClock()), Paths("online")
    tree = ensemble.tree()
    await tree.open(lambda state: None)
    announcement = Announcement(tree, paths, "a")
    assert await announcement.make(Running("life", "machine", 1, 1.0, 0.0, draining=("t/0",)))
    ensemble.loses_answer = lambda operation, path: operation == "write"
    with pytest.raises(errors.ClusterUnavailable):
        await announcement.say(draining=())
    ensemble.loses_answer = lambda operation, path: False
    await asyncio.sleep(2)  # it connects again
    while not await announcement.say(draining=("t/0",)):
        await asyncio.sleep(0.1)
    node = await tree.read(paths.host("a"))
    assert node is not None
    assert records.decode(node.data, Running, "a").draining == ("t/0",)
    await tree.close()
