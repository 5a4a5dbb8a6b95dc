"""Seals queues whose messages are all finished."""

from __future__ import annotations

from collections.abc import Sequence

from emq.offsets.checkpoints import CheckpointStore
from emq.storage.answers import served
from emq.storage.log_store import LogStore, Trim


async def seal_finished(log: LogStore, checkpoints: CheckpointStore, queues: Sequence[str]) -> bool:
    """Seal queues; return False if one holds unfinished messages. Others may be sealed even then. See `sealed`."""
    return all(await sealed(log, checkpoints, queues))


async def sealed(log: LogStore, checkpoints: CheckpointStore, queues: Sequence[str]) -> list[bool]:
    """Seal the queues that hold no unfinished message; return for each whether it is sealed.

    A store may have lost its last messages, and given their offsets to new ones. So messages below a checkpoint are
    dropped only if the store still has the message that the owner read last. Otherwise the queue stays open until its
    owner has noticed the loss.

    Args:
        queues: as many as one call may have.

    Raises:
        StoreUnavailable, StoreFull, DatabaseUnavailable: try again; some may be sealed.
    """
    saved = await checkpoints.load(queues)
    trims = []
    for queue, bounds in zip(queues, served(await log.bounds(queues)), strict=True):
        checkpoint = saved.get(queue)
        if checkpoint is None or checkpoint.watermark > bounds.tail:
            trims.append(Trim(queue, bounds.head, None, seal=True))
            continue
        # Up to the watermark and no further: a message that came later keeps its queue from being sealed.
        mark = checkpoint.marks[0] if checkpoint.marks else None
        trims.append(Trim(queue, checkpoint.watermark, None, seal=True, mark=mark))
    return [answer is True for answer in served(await log.trim(trims))]
