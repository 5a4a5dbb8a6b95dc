"""A view of a store in which all queues are worked off."""

from __future__ import annotations

from collections import defaultdict

from emq.trail import events
from emq_spark.audit.store import QueueView, StoreView
from support.hostile.told import Row


class Store:
    """What the store says after all stories, in which each queue was worked off but for what is said to wait."""

    def __init__(self) -> None:
        self.queues: list[QueueView] = []
        self.waiting: list[tuple[str, str]] = []
        self.dead: list[tuple[str, str]] = []

    def add(self, rows: list[Row], queued: list[str]) -> None:
        """Add a story, of which the messages `queued` still wait: in the lane, if they were put back there."""
        lane = {row["id"] for row in rows if row["event"] == events.RETRIED}
        self.waiting += [(rows[0]["topic"], name) for name in queued if name in lane]
        tails: dict[tuple[str, int, int], int] = defaultdict(int)
        waits: dict[tuple[str, int, int], int] = {}
        died: dict[tuple[str, str], int] = defaultdict(int)
        for row in rows:
            queue = (row["topic"], row["group"], row["priority"])
            offset = row["offset"] if row["event"] in (events.PUBLISHED, events.STARTED) else None
            if offset is not None and offset >= 0:
                tails[queue] = max(tails[queue], offset + 1)
                if row["id"] in queued and row["id"] not in lane:
                    waits[queue] = offset
            died[row["topic"], row["id"]] += (row["event"] == events.DEAD) - (row["event"] == events.REPLAYED)
        for queue, tail in tails.items():
            mark = waits.get(queue, tail)
            self.queues.append(QueueView(*queue, mark, 2, mark, tail, ((mark + 1, tail),) if mark < tail else ()))
        self.dead += [message for message, times in died.items() if times > 0]

    @property
    def view(self) -> StoreView:
        return StoreView(self.queues, [], self.waiting, self.dead)
