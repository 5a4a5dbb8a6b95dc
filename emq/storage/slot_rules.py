"""The rules by which a store keeps a slot: the order of its members, and how two members merge.

`emq.storage.slot_store` explains the terms, and exports these names, too.
"""

from __future__ import annotations

import enum
import math
import sys
from typing import NamedTuple

from emq.runtime import errors

_LARGEST = sys.float_info.max
_WHOLE = 1 << 53


class SlotKind(enum.StrEnum):
    """The order of a slot's members by their scores; scores of retries (16 or less) sort among the others."""

    RANGE_MERGE = "range_merge"
    """By due time, lowest first, once it is due; a member that is added again keeps its first time."""
    PRIORITY = "priority"
    """By priority, highest first, at once; a member that is added again takes its latest priority."""
    FIXED_TIME = "fixed_time"
    """By due time, lowest first, once it is due; a member that is added again takes its latest time."""


class Slot(NamedTuple):
    """One slot, and the rules by which the store keeps it.

    Attributes:
        name: the group's name, `<topic>/<index>`.
        kind: the order of the members.
        apart: True if the store keeps bodies and notes apart from the members (for topics with a merge key). Otherwise
            a member is its own body, there are no notes, and merged members are not counted.
    """

    name: str
    kind: SlotKind
    apart: bool = False

    @property
    def address(self) -> str:
        """The slot's name as `Store.watch` yields it: it ends in a slash, to tell it from the lane of its group."""
        return self.name + "/"


class Keep(enum.StrEnum):
    """The score that a waiting member keeps when it is added again: the first, last, lowest or highest one."""

    FIRST = "first"
    LAST = "last"
    LOWEST = "lowest"
    HIGHEST = "highest"

    def of(self, first: float, last: float) -> float:
        """Return the one of two scores that a member keeps."""
        match self:
            case Keep.FIRST:
                return first
            case Keep.LAST:
                return last
            case Keep.LOWEST:
                return min(first, last)
            case Keep.HIGHEST:
                return max(first, last)


class Fold(NamedTuple):
    """A rule that makes one body of two: that of a waiting member, and that of a later add.

    Attributes:
        name: "latest", "sum", "max", "min", "union", "count" or "lua"; `emq.storage.folds` explains them.
        lua: for "lua", the text of a Lua chunk that gets the older and the newer body as `...` and returns one string.
    """

    name: str = "latest"
    lua: str = ""


LATEST = Fold()


def told_score(stored: float) -> float:
    """Return a stored score as stores return it: an int if it is whole.

    EMQ stores finite scores only. An infinite score that another program has added counts as the largest finite number
    of its sign, so that EMQ can store it again. NaN counts as 0, a message without retries left.
    """
    if not -_LARGEST <= stored <= _LARGEST:
        stored = 0.0 if math.isnan(stored) else math.copysign(_LARGEST, stored)
    # Beyond 2 ** 53 every score is whole, and one beyond 2 ** 64 could not be encoded as an int.
    return int(stored) if float(stored).is_integer() and abs(stored) < _WHOLE else float(stored)


def resting_ms(rest_ms: int) -> int:
    """Return the stamp in prepare, without retries, of a member that rests until `rest_ms`: after any claim's."""
    return (rest_ms // 1000 + 1) * 1000


def slot_sealed(slot: Slot) -> errors.QueueSealed:
    """Return the error for an add to a sealed slot."""
    return errors.QueueSealed(f"slot {slot.name!r} belongs to a topic that was deleted; read the catalog again")
