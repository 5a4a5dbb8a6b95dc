"""M: offsets only go forward, as far as the database knows, and never past what is finished."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from emq.offsets.checkpoints import Checkpoint

if TYPE_CHECKING:
    from support.simulation.evidence import Evidence


class Progress:
    """Judges each checkpoint that is saved or loaded by the last one that was saved of its queue.

    Attributes:
        unnoticed: queues that lost messages of which an owner may still know.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.unnoticed: set[str] = set()
        self._evidence = evidence
        self._saved: dict[str, Checkpoint] = {}
        self._fenced: dict[str, str] = {}  # by queue, the host that raised the fence, as far as the database knows
        self._contiguous: dict[str, int] = defaultdict(lambda: 1)

    def saved(self, host: str, group: str, saved: Checkpoint) -> None:
        """Forward only, under epochs that grow, and never past what is finished."""
        if saved.queue in self.unnoticed:
            return
        before = self._saved.get(saved.queue)
        if before is not None and saved.epoch < before.epoch:
            self._evidence.violated("O", group, f"{host} saved {saved.queue} under {saved.epoch} after {before.epoch}")
        if before is None or saved.watermark >= before.watermark:
            self._saved[saved.queue] = saved
        elif saved.epoch > before.epoch and self._fenced.get(saved.queue) != host:
            # The database lost the fence that this host had raised, so the former owner could save once more.
            self._saved[saved.queue] = before._replace(epoch=saved.epoch)
        elif saved.epoch > before.epoch:
            # The table keeps the higher one; still nobody may come with less than what was loaded.
            text = f"{host} moves {saved.queue} from {before.watermark} to {saved.watermark}"
            self._evidence.violated("M", group, text)
        contiguous = self.contiguous(saved.queue)
        if saved.watermark > contiguous:
            missing = self._evidence.offsets[saved.queue].get(contiguous)
            text = f"{host} saved watermark {saved.watermark} of {saved.queue}, but {contiguous} ({missing})"
            self._evidence.violated("M", group, f"{text} is not finished")
        for begin, end in saved.finished:
            for offset in range(begin, end):
                if not self._is_finished(saved.queue, offset):
                    text = f"{host} saved offset {offset} of {saved.queue} as finished; it is not"
                    self._evidence.violated("M", group, text)

    def loaded(self, host: str, group: str, loaded: Checkpoint) -> None:
        """Check that a new owner loads the checkpoint that was saved."""
        self._fenced[loaded.queue] = host
        before = self._saved.get(loaded.queue)
        if before is not None and loaded.watermark < before.watermark and loaded.queue not in self.unnoticed:
            text = f"{host} finds {loaded.queue} at {loaded.watermark}, and {before.watermark} was saved"
            self._evidence.violated("M", group, text)

    def rewound(self, queue: str) -> None:
        """Its owner has taken its checkpoint back, as far as the store has lost its messages."""
        self._saved.pop(queue, None)
        self.unnoticed.discard(queue)

    def dropped(self, topic: str) -> None:
        """It was deleted, with its checkpoints."""
        self._saved = {queue: saved for queue, saved in self._saved.items() if not queue.startswith(f"{topic}/")}

    def store_lost(self) -> None:
        """Hosts go back as soon as they notice."""
        self._saved.clear()
        self._contiguous.clear()

    def database_lost(self, kept: Mapping[str, Checkpoint]) -> None:
        """It came back with these checkpoints by queue, and none else: nobody may go back behind them.

        Fences that were raised before may be lost.
        """
        self._fenced.clear()
        self._saved = {queue: kept[queue] for queue in self._saved if queue in kept}

    def contiguous(self, queue: str) -> int:
        """Return the first offset of a queue that is not finished."""
        offset = self._contiguous[queue]
        while self._is_finished(queue, offset):
            offset += 1
        self._contiguous[queue] = offset
        return offset

    def _is_finished(self, queue: str, offset: int) -> bool:
        evidence = self._evidence
        name = evidence.offsets[queue].get(offset)
        finished = (evidence.succeeded, evidence.moved, evidence.dropped_names)
        return name is not None and any(name in names for names in finished)
