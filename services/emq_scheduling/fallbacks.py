"""Fallbacks: the types and resources that a task tries one after the other.

An entry of the list is `TYPE`, `TYPE@RESOURCE` or `@RESOURCE`; without a type it means the task's own. A task *stands*
at one entry at a time: it waits, is charged and runs as a task of that type, on that resource if one is named. So
costs, priority, shares, limits by key, `timeout_s` and `max_attempts` are those of the type where it stands. The topic
in which it waits, its deadline and its time to live stay those of its own type.

It begins at the first entry, and goes on:

- *for good*, if a performer raises `TryNext`, if each open resource of the entry has sent it away, or if its attempts
  there are used up. The task goes back to the store in between, and the message remembers how far it came
  (`Tries.at`). So a crash of the host does not repeat an entry.
- *for now*, if the entry is shut (`emq_scheduling.hosting.shut`), or if the task has waited there for its patience. The
  host remembers that alone. While all later entries are shut, the task may go back.

A task that has run at an entry never goes back before that. At the end of the list, it is one without fallbacks.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from emq.runtime import errors
from emq.runtime.inputs import finite, shown
from emq.topics.model import MAX_DELAY_S
from emq_scheduling.model import Pool

MOST = 10
"""Most entries of one task."""

MARK = "@"
"""Between type and resource. No type needs it, and a resource may have it in its name."""


class Tries(msgspec.Struct, frozen=True, omit_defaults=True):
    """The entries of a task, and how far it came.

    Attributes:
        entries: `TYPE` or `TYPE@RESOURCE`, in order; the first is of the task's own type.
        patience_s: seconds that it waits for room at an entry before it goes on; None for ever.
        at: place in the list of the first entry that it has not tried for good; of a task that waits or runs, the
            entry where it stands.
        since: when it came there, in seconds since the epoch; 0 at its submit.
        former: attempts before it came there.
        least: of a task that waits or runs, the place to which it may go back: that of the first entry that it has not
            tried for good. Not in messages.
        reached: of such a task, the place to which its patience had brought it: it stands before that while all from
            there on are shut. None while all are shut: its patience counts once one opens. Not in messages.
    """

    entries: tuple[str, ...]
    patience_s: float | None = None
    at: int = 0
    since: float = 0.0
    former: int = 0
    least: int = 0
    reached: int | None = 0

    @property
    def own_type(self) -> str:
        """The type as which the task was submitted."""
        return self.type(0)

    @property
    def is_last(self) -> bool:
        """Whether there is no entry after this one."""
        return self.at >= len(self.entries) - 1

    @property
    def resource(self) -> str | None:
        """The only resource on which it may run here; None for any."""
        return split(self.entries[self.at])[1] or None

    @property
    def types(self) -> list[str]:
        """The types of its entries, each once."""
        return list(dict.fromkeys(split(each)[0] for each in self.entries))

    def type(self, place: int) -> str:
        """Return the type of an entry."""
        return split(self.entries[place])[0]

    def to(self, place: int, former: int, since: float | None = None) -> Tries:
        """Return how far a task came once it stands at an entry; this one, if that is so already."""
        if place == self.at:
            return self
        return msgspec.structs.replace(self, at=place, former=former, since=self.since if since is None else since)

    def most_attempts(self, most: int) -> int | None:
        """Return the number of the attempt after which the task ends; None if it goes on instead.

        Args:
            most: `max_attempts` of the type where it stands.
        """
        return self.former + most if self.is_last else None


def split(entry: str) -> tuple[str, str]:
    """Return type and resource of an entry, each empty if it is not there."""
    kind, _, resource = entry.partition(MARK)
    return kind, resource


def check(pool: Pool, task_type: str, entries: object, patience_s: object) -> Tries | None:
    """Return what a submit gave as `Tries`; None for no fallbacks.

    Raises:
        InvalidMessage: an entry is wrong, or the patience is; the text names it.
        TaskRefused: the pool has no such type or resource.
    """
    if patience_s is not None:
        _check_patience(patience_s, entries)
    if entries is None:
        return None
    if isinstance(entries, str | bytes) or not isinstance(entries, Sequence):
        raise errors.InvalidMessage(f"tries {shown(entries)} must be a list, such as ['large', 'small@backup']")
    if not 1 <= len(entries) <= MOST:
        raise errors.InvalidMessage(f"tries has {len(entries)} entries; give 1 to {MOST}")
    found = [_entry(pool, task_type, each) for each in entries]
    if split(found[0])[0] != task_type:
        raise errors.InvalidMessage(
            f"tries begins with {shown(entries[0])}, but the task is of type {shown(task_type)}; begin with that type, "
            "or submit it as one of the other"
        )
    for place, each in enumerate(found):
        if each in found[:place]:
            raise errors.InvalidMessage(f"tries names {shown(entries[place])} twice; keep one")
    return Tries(tuple(found), None if patience_s is None else float(patience_s))  # type: ignore[arg-type]


def check_carried(tries: Tries, task_type: str) -> None:
    """Raise `ValueError` unless `check` could have made the tries of a message that anybody may have written."""
    if not 1 <= len(tries.entries) <= MOST or not 0 <= tries.at < len(tries.entries):
        raise ValueError(f"tries has {len(tries.entries)} entries, and is at {tries.at}")
    if tries.own_type != task_type or not all(split(each)[0] for each in tries.entries):
        raise ValueError(f"tries begins with {shown(tries.entries[0])}, which is not of type {task_type!r}")
    if tries.former < 0 or not all(finite(each) and each >= 0 for each in (tries.since, tries.patience_s or 0.0)):
        raise ValueError("tries has a number below 0")


def _entry(pool: Pool, task_type: str, entry: object) -> str:
    """Return an entry with its type."""
    if not isinstance(entry, str):
        raise errors.InvalidMessage(f"tries: {shown(entry)} is of type {type(entry).__name__}; give text")
    kind, resource = split(entry)
    kind = kind or task_type
    if not resource and (MARK in entry or not entry):
        raise errors.InvalidMessage(f"tries: {shown(entry)} names nothing; give TYPE, TYPE@RESOURCE or @RESOURCE")
    if kind not in pool.types:
        known = ", ".join(list(pool.types)[:8])
        raise errors.TaskRefused(
            f"tries: pool {pool.name!r} has no task type {shown(kind)}; it has {known}", code="unknown_type"
        )
    if resource and (resource not in pool.resources or kind not in pool.resources[resource].takes):
        able = ", ".join(pool.able(kind)[:8])
        found = f"these do: {able}" if able else "no resource does"
        raise errors.TaskRefused(
            f"tries: no resource {shown(resource)} of pool {pool.name!r} takes type {kind!r}; {found}",
            code="no_able_resource",
        )
    return f"{kind}{MARK}{resource}" if resource else kind


def _check_patience(patience_s: object, entries: object) -> None:
    if entries is None:
        raise errors.InvalidMessage("patience_s is for tasks with tries; give both, or none")
    if isinstance(patience_s, bool) or not isinstance(patience_s, int | float) or not finite(patience_s):
        raise errors.InvalidMessage(f"patience_s {shown(patience_s)} must be a finite number of seconds")
    if not 0 <= patience_s <= MAX_DELAY_S:
        raise errors.InvalidMessage(f"patience_s {patience_s:g} must be 0 to {MAX_DELAY_S:g}")
