"""Which queues, lanes and slots refuse producers, because their groups were retired or deleted."""

from __future__ import annotations

from collections.abc import Set

from emq.storage.lane_store import LaneVerdict
from emq.storage.slot_store import SlotVerdict


class Seals:
    """Places by name: queues, lanes, and the addresses of slots.

    Attributes:
        there: places that are sealed.
        lost: places whose seal the store has lost, and whether the store had lost everything.
        deleted: topics that were deleted at some time.
    """

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.lost: dict[str, bool] = {}
        self.deleted: set[str] = set()

    def may_find_no_owner(self, place: str) -> bool:
        """Return whether nobody may consume what a producer with an old picture of the catalog puts there.

        A retired group is dropped only when a store that loses its last second still knows the seals. A topic is
        deleted at once.
        """
        emptied = self.lost.get(place)
        return emptied is not None and (emptied or place.partition("/")[0] in self.deleted)

    def told(self, place: str, is_sealed: bool) -> None:
        """Note that a place was sealed or opened."""
        self.lost.pop(place, None)
        (self.there.add if is_sealed else self.there.discard)(place)

    def settled(self, place: str, verdict: LaneVerdict | SlotVerdict) -> None:
        """Note the verdict on a lane or slot, or on something in it."""
        if verdict in (LaneVerdict.SEAL, SlotVerdict.SEAL, LaneVerdict.OPEN, SlotVerdict.OPEN):
            self.told(place, verdict in (LaneVerdict.SEAL, SlotVerdict.SEAL))

    def store_lost(self, left: Set[str] | None) -> None:
        """Note that the store came back, and that only these places are sealed there; None if it came back empty."""
        for place in self.there - (left or set()):
            self.lost[place] = left is None
        self.there = set(left or ())
