"""The owners of each group, by the trail; finds sources that acted on the group of another owner (O)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from emq.trail.runs import CutShort

UNSAVED_US = 5_000_000
"""Microseconds before a host's abrupt end whose work may be in no checkpoint; see the setting `max_unsaved_s`."""

UNTOLD_US = 1_000_000
"""Microseconds before an abrupt end in which a delivery may have failed without a record of it. A host records a
failure when the store has confirmed it, and the killed host may have been waiting for the store."""


class Ownership(NamedTuple):
    """One group at one source under one epoch; times in microseconds since 1970, None if nothing records them.

    Attributes:
        owned_us, released_us: times at which the source took the group, and let go of it in order.
        first_us, last_us: times of its first and last start.
    """

    topic: str
    group: int
    source: str
    epoch: int
    owned_us: int | None = None
    released_us: int | None = None
    first_us: int | None = None
    last_us: int | None = None

    @property
    def place(self) -> str:
        return f"{self.topic}/{self.group}"

    @property
    def since_us(self) -> int:
        """Time of its first known event."""
        return min(t for t in (self.owned_us, self.first_us, self.released_us) if t is not None)

    @property
    def until_us(self) -> int:
        """Time of its last known event."""
        return max(t for t in (self.released_us, self.last_us, self.owned_us) if t is not None)


class Conflict(NamedTuple):
    """A source acted on a group while, or after, another source did under a higher or the same epoch.

    If `before` is `after`, the source acted without owning the group by its own records.
    """

    before: Ownership
    after: Ownership
    text: str

    @property
    def kind(self) -> str:
        return "two owners" if self.before is not self.after else "not its owner"


class Owners:
    """All ownerships of a trail."""

    def __init__(self, ownerships: Iterable[Ownership], cut_short: Collection[CutShort] = ()) -> None:
        """Args:
        cut_short: runs of sources whose trail was not closed.
        """
        self._cut_short = cut_short
        self._by_place = {found[0].place: found for found in by_group(ownerships).values()}
        self._crashes = {
            place: crashes for place, found in self._by_place.items() if (crashes := list(_crashes(found, cut_short)))
        }

    def crashes(self, place: str) -> Sequence[tuple[float, float]]:
        """Return the times in which an owner may have acted without a record: (from, until) in microseconds since 1970.

        There is one for each owner whose trail was cut short, or that has a successor and did not let go in order.
        """
        return self._crashes.get(place, ())

    def over_us(self, source: str, place: str, time_us: int) -> float:
        """Return when a run without an end, which this source began in this group at this time, is over.

        When another host owns the group, the lease of a killed host is over, and nothing that it began goes on. So such
        a run ends at the first takeover of its group after the killed host's last event. A host that recorded an event
        after the takeover was alive then, so its runs get no such end: the function returns infinity.
        """
        for run in self._cut_short:
            if run.source == source and run.first_us <= time_us <= run.last_us:
                taken = (o.owned_us for o in self._by_place.get(place, ()) if o.owned_us is not None)
                return min((owned_us for owned_us in taken if owned_us > run.last_us), default=math.inf)
        return math.inf

    def has_released(self, place: str, source: str, epoch: int) -> bool:
        """Return whether this owner let go of the group in order."""
        found = (o for o in self._by_place.get(place, ()) if (o.source, o.epoch) == (source, epoch))
        return any(o.released_us is not None for o in found)

    def knows(self, place: str, source: str) -> bool:
        """Return whether this source had the group at some time."""
        return any(o.source == source for o in self._by_place.get(place, ()))

    def owned_us(self, place: str, source: str, epoch: int | None) -> int | None:
        """Return when this owner took the group, in microseconds since 1970; None if not recorded."""
        return next((o.owned_us for o in self._by_place.get(place, ()) if (o.source, o.epoch) == (source, epoch)), None)

    def faults(self, slack_us: int, is_whole: bool = True) -> Iterator[str]:
        """Yield one line for each conflict of owners; arguments as for `conflicts`."""
        for place, found in self._by_place.items():
            yield from (f"{place}: {conflict.text}" for conflict in conflicts(found, slack_us, is_whole))


def by_group(ownerships: Iterable[Ownership]) -> dict[tuple[str, int], list[Ownership]]:
    """Return the ownerships of each group in order of their epochs."""
    groups: dict[tuple[str, int], list[Ownership]] = defaultdict(list)
    for ownership in ownerships:
        groups[ownership.topic, ownership.group].append(ownership)
    for found in groups.values():
        found.sort(key=lambda o: (o.epoch, o.since_us))
    return groups


def conflicts(ascending: Iterable[Ownership], slack_us: int, is_whole: bool) -> Iterator[Conflict]:
    """Yield conflicts: two owners of one group at a time, and owners that did not own it by their own records.

    Args:
        ascending: ownerships of one group in order of their epochs.
        slack_us: largest difference between the clocks of two hosts; not used within the records of one host.
        is_whole: whether no records are missing.
    """
    latest: Ownership | None = None
    for later in ascending:
        yield from (Conflict(later, later, text) for text in _alone(later, is_whole))
        if latest is not None and (text := _together(latest, later, slack_us)):
            yield Conflict(latest, later, text)
        if latest is None or later.until_us >= latest.until_us:
            latest = later


def _crashes(found: Sequence[Ownership], cut_short: Collection[CutShort]) -> Iterator[tuple[float, float]]:
    for i, o in enumerate(found):
        if o.released_us is not None:
            continue
        until_us = min((later.since_us for later in found[i + 1 :] if later.epoch > o.epoch), default=math.inf)
        last_us = o.until_us
        runs = [run for run in cut_short if run.source == o.source and run.first_us <= last_us <= run.last_us]
        if runs and runs[0].last_us <= until_us:
            last_us = runs[0].last_us
        if runs or until_us < math.inf:
            yield last_us - UNSAVED_US, until_us


def _alone(o: Ownership, is_whole: bool) -> Iterator[str]:
    """Yield a line for each contradiction within the records of one source."""
    if o.first_us is None:
        return
    if o.owned_us is None:
        if is_whole:
            yield f"{o.source} started under epoch {o.epoch}, and no record says that it owned the group"
    elif o.first_us < o.owned_us:
        early_s = (o.owned_us - o.first_us) / 1e6
        yield f"{o.source} started {early_s:.6f} s before it owned the group under epoch {o.epoch}"
    if o.released_us is not None and o.last_us is not None and o.last_us > o.released_us:
        late_s = (o.last_us - o.released_us) / 1e6
        yield f"{o.source} started {late_s:.6f} s after it had let go of the group under epoch {o.epoch}"


def _together(before: Ownership, after: Ownership, slack_us: int) -> str | None:
    if before.source == after.source:
        if before.last_us is None or after.owned_us is None or before.last_us <= after.owned_us:
            return None
        late_s = (before.last_us - after.owned_us) / 1e6
        return (
            f"{after.source} started under epoch {before.epoch} {late_s:.6f} s after it had taken epoch {after.epoch}"
        )
    if before.epoch == after.epoch:
        return f"{before.source} and {after.source} both owned the group under epoch {after.epoch}"
    overlap_us = before.until_us - after.since_us
    if overlap_us <= slack_us:
        return None
    did = "started a message" if before.until_us == before.last_us else "let go of the group"
    return (
        f"{before.source} {did} under epoch {before.epoch} {overlap_us / 1e6:.3f} s after {after.source} had taken the "
        f"group under epoch {after.epoch}"
    )
