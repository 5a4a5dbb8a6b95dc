"""Who owned which group, by the trail: what was started by somebody who did not own it (O), and whose work is saved."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from emq.trail.takeovers import UNSAVED_US, CutShort


class Ownership(NamedTuple):
    """One group at one source under one epoch; times in microseconds since the epoch, None where nothing tells.

    Attributes:
        place: `<topic>/<group>`.
        owned_us, released_us: when the source took the group, and let go of it in order.
        first_us, last_us: its first and last start.
    """

    place: str
    source: str
    epoch: int
    owned_us: int | None = None
    released_us: int | None = None
    first_us: int | None = None
    last_us: int | None = None


class Owners:
    """All ownerships of a trail."""

    def __init__(self, ownerships: Iterable[Ownership], cut_short: Collection[CutShort] = ()) -> None:
        """Args:
        cut_short: the runs of sources whose trail was not closed.
        """
        self._by_place: dict[str, list[Ownership]] = defaultdict(list)
        for ownership in ownerships:
            self._by_place[ownership.place].append(ownership)
        for found in self._by_place.values():
            found.sort(key=lambda o: o.epoch)
        self._crashes = {
            place: crashes for place, found in self._by_place.items() if (crashes := list(_crashes(found, cut_short)))
        }

    def crashes(self, place: str) -> Sequence[tuple[float, float]]:
        """When an owner may have done what is saved nowhere: (from, until) in microseconds since the epoch.

        Of each owner that did not let go of the group in order and has a successor, or whose trail was cut short.
        """
        return self._crashes.get(place, ())

    def has_released(self, place: str, source: str, epoch: int) -> bool:
        """Whether this owner let go of the group in order."""
        found = (o for o in self._by_place.get(place, ()) if (o.source, o.epoch) == (source, epoch))
        return any(o.released_us is not None for o in found)

    def owned_us(self, place: str, source: str, epoch: int | None) -> int | None:
        """When this owner took the group."""
        return next((o.owned_us for o in self._by_place.get(place, ()) if (o.source, o.epoch) == (source, epoch)), None)

    def faults(self, slack_us: int, is_whole: bool = True) -> Iterator[str]:
        """One line for each ownership that was not one.

        Args:
            slack_us: by how much the clocks of two hosts may differ. What one host records needs no such room.
            is_whole: see `alone`.
        """
        for place, found in self._by_place.items():
            latest: Ownership | None = None
            for o in found:
                yield from (f"{place}: {line}" for line in alone(o, is_whole))
                if latest is not None and (line := _together(latest, o, slack_us)):
                    yield f"{place}: {line}"
                if latest is None or _until_us(o) >= _until_us(latest):
                    latest = o


def _crashes(found: Sequence[Ownership], cut_short: Collection[CutShort]) -> Iterator[tuple[float, float]]:
    for i, o in enumerate(found):
        if o.released_us is not None:
            continue
        until_us = min((_since_us(later) for later in found[i + 1 :] if later.epoch > o.epoch), default=math.inf)
        last_us = _until_us(o)
        runs = [run for run in cut_short if run.source == o.source and run.first_us <= last_us <= run.last_us]
        if runs and runs[0].last_us <= until_us:
            last_us = runs[0].last_us
        if runs or until_us < math.inf:
            yield last_us - UNSAVED_US, until_us


def alone(o: Ownership, is_whole: bool) -> Iterator[str]:
    """What the records of one source say against it, a line each.

    Args:
        is_whole: no records of it are missing.
    """
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
        return None
    if before.epoch == after.epoch:
        return f"{before.source} and {after.source} both owned the group under epoch {after.epoch}"
    overlap_us = _until_us(before) - _since_us(after)
    if overlap_us <= slack_us:
        return None
    return (
        f"{before.source} was active under epoch {before.epoch} {overlap_us / 1e6:.3f} s after {after.source} had "
        f"taken the group under epoch {after.epoch}"
    )


def _since_us(o: Ownership) -> int:
    return min(t for t in (o.owned_us, o.first_us, o.released_us) if t is not None)


def _until_us(o: Ownership) -> int:
    return max(t for t in (o.released_us, o.last_us, o.owned_us) if t is not None)
