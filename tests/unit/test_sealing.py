"""A queue is sealed only if all that it holds is finished, also after its store came back without its last messages."""

from __future__ import annotations

import pytest

from emq.offsets.checkpoints import Checkpoint, CheckpointStore
from emq.offsets.sealing import seal_finished
from emq.runtime import errors
from emq.storage import marks
from emq.storage.log_store import Put
from support.rig import Rig
from support.virtual import virtual

QUEUE = "orders/1/mid"
FIRST, SECOND, NEW = b"first", b"second", b"published after the loss"


@pytest.mark.parametrize(
    ("holds", "watermark", "is_sealed"),
    [
        ([FIRST, SECOND], 2, True),
        ([FIRST, SECOND], 1, False),
        ([FIRST, NEW], 2, False),  # the store has given the offset of a finished message to a new one
        ([FIRST], 2, False),  # what is there may be old or new
        ([NEW], 2, False),
        ([], 2, True),
    ],
)
@virtual
async def test_only_what_is_certainly_finished_is_dropped(
    r: Rig, holds: list[bytes], watermark: int, is_sealed: bool
) -> None:
    """Where the checkpoint has finished one or two messages, and its owner has read both."""
    log, checkpoints = r.store.real.log, CheckpointStore(r.db, "online")
    first = log.first_offset
    read = (marks.of(first + 1, SECOND), marks.of(first, FIRST))
    await checkpoints.fence({QUEUE: 7})
    await checkpoints.save([Checkpoint(QUEUE, 7, first + watermark, (), read[2 - watermark :])])
    for body in holds:
        await log.put([Put(QUEUE, [body])])
    assert await seal_finished(log, checkpoints, [QUEUE]) is is_sealed
    [bounds] = await log.bounds([QUEUE])
    assert bounds.tail - bounds.head == (0 if is_sealed else len(holds) - (watermark == 1))
    [answer] = await log.put([Put(QUEUE, [b"late"])])
    assert isinstance(answer, errors.QueueSealed) is is_sealed
