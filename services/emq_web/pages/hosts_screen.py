"""The hosts: their shares of the load, their state, and the latest moves of groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from emq.host.statistics import Move
from emq.observe.snapshots import AgedSnapshot
from emq_web.pages import first_screen

SHOWN_MOVES = 20
"""Most moves on the page."""


class Row(NamedTuple):
    """A host.

    Attributes:
        share: its part of all starts a second that live hosts may make, 0 to 1; None if it is not known.
        load: its share over an equal share; 1.0 is exactly that. None as `share`.
        behind: True if it follows an older plan than another host.
    """

    seen: AgedSnapshot
    share: float | None
    load: float | None
    behind: bool

    @property
    def troubles(self) -> list[str]:
        return first_screen.troubles_of(self.seen.host)


class HostMove(NamedTuple):
    """Groups that came to a host and left it."""

    host: str
    move: Move


class Hosts(NamedTuple):
    """The data of the page, hosts by name and the latest move first."""

    rows: list[Row]
    moves: list[HostMove]


def of(seen: Sequence[AgedSnapshot]) -> Hosts:
    """Put the snapshots of all hosts together."""
    live = [s.host for s in seen if s.live]
    total = sum(host.quota for host in live)
    plan = max((host.plan for host in live), default=0)
    rows = []
    for s in seen:
        share = s.host.quota / total if s.live and total else None
        load = None if share is None else share * len(live)
        rows.append(Row(s, share, load, s.live and s.host.plan < plan))
    moves = sorted((HostMove(s.host.host, m) for s in seen for m in s.host.moves), key=lambda m: -m.move.time)
    return Hosts(rows, moves[:SHOWN_MOVES])
