"""Rewinds checkpoints for a store that may have come back from a crash without its last messages."""

from __future__ import annotations

from collections.abc import Mapping

from emq.offsets.checkpoints import Checkpoint
from emq.runtime import errors
from emq.storage.answers import FAILURES, Failure, of_each
from emq.storage.log_store import Bounds, LogStore, Read
from emq.storage.names import group_of


async def rewound(
    log: LogStore,
    saved: Mapping[str, Checkpoint],
    bounds: Mapping[str, Bounds],
    epochs: Mapping[str, int],
    waiting: dict[str, Failure],
) -> dict[str, Checkpoint]:
    """Find the checkpoints that do not hold; return these only, taken back as far as needed.

    The function looks for the marks of each checkpoint in the store, from the newest on, until it finds one. The queue
    has to be read from its head if the store has none of the marks, or if there are no marks and the watermark is
    beyond the tail.

    Args:
        saved: checkpoints by queue.
        bounds: head and tail of the same queues.
        epochs: the epoch of each group's new owner, which has raised the fence.
        waiting: receives the groups that the store cannot serve, with the failure.
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
