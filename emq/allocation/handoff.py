"""Handoff: the groups that a host holds, those that the plan gives it, and those that it must wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, KeysView, Mapping

from emq.allocation.records import Entry, Former

Released = Callable[[Former, str], bool]
"""Returns whether a former owner has let go of a group."""


class Handoff:
    """The groups of one host on their way from one owner to the next. No I/O, no time.

    States of a group here, and what causes each:

    *planned*: the plan gives the group to this host, and a former owner has not let go of it. A new plan causes this.
    *free*: no other host holds the group any more; `free` returns it. The host may take it.
    *held*: the host was told that it may have the group (`taken`).
    *draining*: the host holds the group, and the plan took it away or gives it under another epoch; the host is
        letting go.
    *gone*: the host has let go of the group (`released`). If a plan gives it to this host again, it is planned again.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._planned: dict[str, Entry] = {}
        self._pending: dict[str, Entry] = {}
        self._held: dict[str, int] = {}
        self._kept: dict[str, int] | None = None  # held and not draining; made when it is asked for
        self._draining: set[str] = set()
        self._refused: dict[str, int] = {}

    def plan(self, generation: int, entries: Mapping[str, Entry]) -> None:
        """Take the groups that a new plan gives to this host."""
        self.generation = generation
        touched = {**self._planned, **entries}  # in an order that does not change from run to run
        self._planned = dict(entries)
        self._sort(touched)

    def free(self, has_released: Released) -> dict[str, int]:
        """Return group to epoch of the groups that the host may have: those that it keeps and those that are free.

        The same dict as before, if nothing has changed; callers must not change it.
        """
        if self._kept is None:
            self._kept = {g: e for g, e in self._held.items() if g not in self._draining}
        if not self._pending:
            return self._kept
        free = dict(self._kept)
        for group, entry in self._pending.items():
            if group not in self._draining and all(has_released(former, group) for former in entry.after):
                free[group] = entry.epoch
        return free

    def first(self, free: Mapping[str, int]) -> frozenset[str]:
        """Return those of the `free` groups that the host has not taken yet and that no host had before."""
        return frozenset(group for group, entry in self._pending.items() if entry.is_first and group in free)

    def taken(self, groups: Mapping[str, int]) -> None:
        """Note that the host was told of these groups; it calls `released` for each one that it must give up."""
        new = [group for group in groups if group not in self._held]
        self._held.update((group, groups[group]) for group in new)
        self._sort(new)

    def released(self, groups: Iterable[str]) -> None:
        """Note that the host let go of these groups; those that it need not give up stay held."""
        done = [group for group in groups if group in self._draining]
        for group in done:
            self._held.pop(group, None)
        self._sort(done)

    def refused(self, group: str, epoch: int) -> bool:
        """Note that a store refused the host's epoch: the group is not free again before a plan gives another epoch.

        Returns whether the plan still gives the group to this host under the epoch. If so, somebody outside of the
        cluster took the group.
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
        """Make the host let go of the group and take it under a new epoch; return the epoch that no longer counts.

        Returns None if the plan does not give the group to this host.
        """
        planned = self._planned.get(group)
        if planned is None:
            return None
        self._refused[group] = planned.epoch
        self._sort((group,))
        return planned.epoch

    def reset(self) -> None:
        """Forget all groups, since the membership ended."""
        self.__init__()  # type: ignore[misc]

    @property
    def planned(self) -> KeysView[str]:
        """The groups that the plan gives to this host."""
        return self._planned.keys()

    @property
    def draining(self) -> frozenset[str]:
        return frozenset(self._draining)

    @property
    def is_empty(self) -> bool:
        """True if this host holds no group and the plan gives it none."""
        return not self._held and not self._planned

    def awaited(self) -> set[str]:
        """Return the names of the former owners that this host waits for."""
        return {former.host for entry in self._pending.values() for former in entry.after}

    def _sort(self, groups: Iterable[str]) -> None:
        """Recompute the states of these groups; the states of the others have not changed."""
        self._kept = None
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
