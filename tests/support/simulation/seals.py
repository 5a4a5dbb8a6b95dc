"""Which queues, lanes and slots refuse producers, because their groups were retired or deleted."""

from __future__ import annotations

from collections.abc import Set

from emq.storage.lane_store import LaneVerdict
from emq.storage.slot_store import SlotVerdict


class Seals:
    """Places by name: queues, lanes, and the addresses of slots.

    Attributes:
        there: places that are sealed.
        lost: places whose seal the store has lost. What a producer with an old picture of the catalog puts there may
            find no owner: no promise of ours.
    """

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.lost: set[str] = set()

    def told(self, place: str, is_sealed: bool) -> None:
        """Note that a place was sealed or opened."""
        self.lost.discard(place)
        (self.there.add if is_sealed else self.there.discard)(place)

    def settled(self, place: str, verdict: LaneVerdict | SlotVerdict) -> None:
        """Note the verdict on a lane or slot, or on something in it."""
        if verdict in (LaneVerdict.SEAL, SlotVerdict.SEAL, LaneVerdict.OPEN, SlotVerdict.OPEN):
            self.told(place, verdict in (LaneVerdict.SEAL, SlotVerdict.SEAL))

    def store_lost(self, left: Set[str]) -> None:
        """Note that the store came back, and that only these places are sealed there."""
        self.lost |= self.there - left
        self.there = set(left)
