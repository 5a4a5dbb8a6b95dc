"""What a host holds, what the plan gives it, and what it must wait for in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from emq.allocation.records import Entry, Former

Released = Callable[[Former, str], bool]
"""Whether a former owner has let go of a group."""


class Handoff:
    """The groups of one host on their way from one owner to the next. No I/O, no time.

    States of a group here, and what causes each:

    *planned*: the plan gives it to this host, and a former owner has not let go of it; entered when a plan names it.
    *free*: nobody else holds it any more; `free` answers it. The host may take it.
    *held*: the host was told that it may have it (`taken`).
    *draining*: it is held, and the plan took it away or gives it anew under another epoch; the host is letting go.
    *gone*: the host has let go of it (`released`); if the plan gives it anew, it is planned again.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._planned: dict[str, Entry] = {}
        self._pending: dict[str, Entry] = {}
        self._held: dict[str, int] = {}
        self._draining: set[str] = set()
        self._refused: dict[str, int] = {}

    def plan(self, generation: int, entries: Mapping[str, Entry]) -> None:
        """A new plan is in force, and gives this host these groups."""
        self.generation = generation
        self._planned = dict(entries)
        self._sort()

    def free(self, has_released: Released) -> dict[str, int]:
        """Group to epoch of what the host may have now: what it holds and keeps, and what nobody else holds."""
        free = {g: e for g, e in self._held.items() if g not in self._draining}
        for group, entry in self._pending.items():
            if group not in self._draining and all(has_released(former, group) for former in entry.after):
                free[group] = entry.epoch
        return free

    def taken(self, groups: Mapping[str, int]) -> None:
        """The host was told of these; it will say `released` of each that it is to give up."""
        for group, epoch in groups.items():
            self._held.setdefault(group, epoch)
        self._sort()

    def released(self, groups: Iterable[str]) -> None:
        """The host has let go of these, as far as it was to."""
        for group in self._draining.intersection(groups):
            del self._held[group]
        self._sort()

    def refused(self, group: str, epoch: int) -> bool:
        """A store has refused the host's epoch: it is not free again before the plan gives it under another one.

        Answers whether the plan still wants it here, so that somebody outside of the cluster must have taken it.
        """
        if self._held.get(group) == epoch:
            del self._held[group]
        planned = self._planned.get(group)
        wanted = planned is not None and planned.epoch == epoch
        if wanted:
            self._refused[group] = epoch
        self._sort()
        return wanted

    def renew(self, group: str) -> int | None:
        """The host must let go of the group and take it anew; answers the epoch that no longer counts, if any."""
        planned = self._planned.get(group)
        if planned is None:
            return None
        self._refused[group] = planned.epoch
        self._sort()
        return planned.epoch

    def reset(self) -> None:
        """The membership ended: nothing is held or planned any more."""
        self.__init__()  # type: ignore[misc]

    @property
    def draining(self) -> frozenset[str]:
        return frozenset(self._draining)

    @property
    def is_empty(self) -> bool:
        """Nothing is held, and the plan gives nothing."""
        return not self._held and not self._planned

    def awaited(self) -> set[str]:
        """Names of the hosts that somebody waits for here."""
        return {former.host for entry in self._pending.values() for former in entry.after}

    def _sort(self) -> None:
        planned, held = self._planned, self._held
        self._refused = {g: e for g, e in self._refused.items() if (p := planned.get(g)) is not None and p.epoch == e}
        self._draining = {
            g for g, e in held.items() if (p := planned.get(g)) is None or p.epoch != e or self._refused.get(g) == e
        }
        self._pending = {g: e for g, e in planned.items() if e.epoch not in (held.get(g), self._refused.get(g))}
