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
        touched = {**self._planned, **entries}  # in an order that does not change from run to run
        self._planned = dict(entries)
        self._sort(touched)

    def free(self, has_released: Released) -> dict[str, int]:
        """Group to epoch of what the host may have now: what it holds and keeps, and what nobody else holds."""
        free = {g: e for g, e in self._held.items() if g not in self._draining}
        for group, entry in self._pending.items():
            if group not in self._draining and all(has_released(former, group) for former in entry.after):
                free[group] = entry.epoch
        return free

    def taken(self, groups: Mapping[str, int]) -> None:
        """The host was told of these; it will say `released` of each that it is to give up."""
        new = [group for group in groups if group not in self._held]
        self._held.update((group, groups[group]) for group in new)
        self._sort(new)

    def released(self, groups: Iterable[str]) -> None:
        """The host has let go of these, as far as it was to."""
        done = [group for group in groups if group in self._draining]
        for group in done:
            self._held.pop(group, None)
        self._sort(done)

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
        self._sort((group,))
        return wanted

    def renew(self, group: str) -> int | None:
        """The host must let go of the group and take it anew; answers the epoch that no longer counts, if any."""
        planned = self._planned.get(group)
        if planned is None:
            return None
        self._refused[group] = planned.epoch
        self._sort((group,))
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

    def _sort(self, groups: Iterable[str]) -> None:
        """Say again of these in which states they are; of the others nothing has changed."""
        for group in groups:
            planned, held = self._planned.get(group), self._held.get(group)
            if planned is None or self._refused.get(group) != planned.epoch:
                self._refused.pop(group, None)
            refused = self._refused.get(group)
            if held is not None and (planned is None or planned.epoch != held or refused == held):
                self._draining.add(group)
            else:
                self._draining.discard(group)
            if planned is not None and planned.epoch not in (held, refused):
                self._pending[group] = planned
            else:
                self._pending.pop(group, None)
