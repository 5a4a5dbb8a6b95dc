"""The groups for which a host wants a new epoch, because a store refused the epoch that the plan gave."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from emq.allocation.records import Entry

FENCED_S = 2.0
"""Seconds before a host first asks again for a group that somebody outside of the cluster took; doubled each time."""
MAX_FENCED_S = 300.0

MAX_NAMED_BYTES = 400_000
"""Most bytes of names in a host's node, for the groups that it drains and again for those that it wants back. A node
takes 1 MB. If the names of draining groups do not fit, the host stays silent until they do. If it wants more groups
back, it names the rest after a plan has given it the first ones."""

NAME_BYTES = 30
"""Bytes of a record beside a name's characters: the epoch, and extra bytes of characters beyond ASCII."""


class FencedGroups:
    """The groups that a host wants again, each with the epoch that no longer counts and the time to ask."""

    def __init__(self) -> None:
        self._asked: dict[str, tuple[int, float]] = {}
        self._waits: dict[str, tuple[float, float]] = {}

    def ask(self, group: str, epoch: int, at_s: float) -> None:
        """Ask for the group from `at_s` on."""
        self._asked[group] = epoch, at_s

    def wait(self, group: str, epoch: int, now: float, first_s: float = FENCED_S) -> float:
        """Ask for the group after a while, longer at each time that a stranger takes it; return the seconds.

        Several calls may be refused under one epoch; only the first one counts.

        Args:
            first_s: the seconds of the first time.
        """
        if (asked := self._asked.get(group)) is not None and asked[0] == epoch:
            return max(0.0, asked[1] - now)
        wait_s, again_at = self._waits.get(group, (0.0, 0.0))
        # A stranger that left the group alone for `MAX_FENCED_S` has gone.
        is_first = group not in self._waits or now > again_at + MAX_FENCED_S
        wait_s = first_s if is_first else min(MAX_FENCED_S, max(FENCED_S, wait_s * 2))
        self._waits[group] = wait_s, now + wait_s
        self.ask(group, epoch, now + wait_s)
        return wait_s

    def due(self, now: float) -> Iterator[tuple[str, int]]:
        """Yield the groups to ask for now, with their epochs."""
        return ((group, epoch) for group, (epoch, at_s) in self._asked.items() if at_s <= now)

    def given(self, group: str) -> None:
        """Ask no longer for the group."""
        self._asked.pop(group, None)

    def forget(self, group: str) -> None:
        """Forget the group, also that it was taken."""
        self._asked.pop(group, None)
        self._waits.pop(group, None)

    def keep(self, entries: Mapping[str, Entry]) -> None:
        """Forget the groups that a new plan took away or gives under a new epoch; `entries` has the others."""
        self._asked = {g: a for g, a in self._asked.items() if g in entries and entries[g].epoch == a[0]}
        self._waits = {g: wait for g, wait in self._waits.items() if g in entries}

    def clear(self) -> None:
        """Ask for nothing, since the membership ended."""
        self._asked.clear()


def named(epochs: Iterator[tuple[str, int]]) -> dict[str, int]:
    """Return the first of the groups, as many as a record may name."""
    found: dict[str, int] = {}
    left_bytes = MAX_NAMED_BYTES
    for group, epoch in epochs:
        left_bytes -= size_of((group,))
        if left_bytes < 0:
            break
        found[group] = epoch
    return found


def size_of(groups: Collection[str]) -> int:
    """Return the bytes that the names of these groups take in a record."""
    return sum(map(len, groups)) + len(groups) * NAME_BYTES
