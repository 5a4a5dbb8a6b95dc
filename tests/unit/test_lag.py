"""What a topic still has to do."""

from __future__ import annotations

from emq.offsets import lag
from emq.offsets.checkpoints import Checkpoint
from emq.runtime.clock import SystemClock
from emq.storage.log_store import Put
from support.rig import rig


async def test_messages_in_a_store_that_came_back_shorter_are_not_finished_by_a_checkpoint_beyond_its_tail() -> None:
    async with rig(SystemClock()) as r:
        topic = await r.topic("t", 50)
        queue = topic.queue(0, 0)
        await r.store.log.put([Put(queue, [b"x"] * 3)])
        await r.checkpoints.save([Checkpoint(queue, 1, 3)])
        assert await lag.unfinished(r.store.log, r.checkpoints, [queue]) == [1]
        await r.checkpoints.save([Checkpoint(queue, 1, 10)])
        assert await lag.unfinished(r.store.log, r.checkpoints, [queue]) == [3]
