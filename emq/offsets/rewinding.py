"""How far checkpoints hold for a store that may have come back from a crash without its last messages."""

from __future__ import annotations

from collections.abc import Mapping

from emq import errors
from emq.offsets.checkpoints import Checkpoint
from emq.storage.answers import FAILURES, Failure, of_each
from emq.storage.store import Bounds, LogStore, Read, group_of


async def rewound(
    log: LogStore,
    saved: Mapping[str, Checkpoint],
    bounds: Mapping[str, Bounds],
    epochs: Mapping[str, int],
    waiting: dict[str, Failure],
) -> dict[str, Checkpoint]:
    """The checkpoints that do not hold, taken back as far as they do; answers only those.

    The marks of each are tried from the newest on until one is still in the store. Where none is, and where there are
    none and the watermark is beyond the tail, the queue has to be read from its head.

    Args:
        saved: checkpoints by queue.
        bounds: of the same queues.
        epochs: of each group, its new owner's, which has raised the fence.
        waiting: groups that the store cannot serve are added here.
    """
    found: dict[str, Checkpoint] = {}
    doubtful = {name: checkpoint.marks for name, checkpoint in saved.items() if checkpoint.marks}
    hopeless = [name for name, c in saved.items() if not c.marks and c.watermark > bounds[name].tail]
    while doubtful:
        reads = [Read(name, 0, 0, epochs[group_of(name)], marks[0]) for name, marks in doubtful.items()]
        for read, answer in zip(reads, await of_each(log.read(reads), len(reads)), strict=True):
            marks = doubtful.pop(read.queue)
            if isinstance(answer, errors.MessagesLost):
                if left := marks[1:]:
                    doubtful[read.queue] = left
                else:
                    hopeless.append(read.queue)
            elif isinstance(answer, FAILURES):
                waiting[group_of(read.queue)] = answer
            elif len(marks) < len(saved[read.queue].marks):
                found[read.queue] = saved[read.queue].rewound(marks[0].offset + 1, marks)
    for name in hopeless:
        found[name] = saved[name].rewound(bounds[name].head, ())
    return {name: checkpoint._replace(epoch=epochs[group_of(name)]) for name, checkpoint in found.items()}
