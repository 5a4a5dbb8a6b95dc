"""Damaged rows: another program set a tail back, or wrote a number out of range, or text for a number.

A statement that meets a damaged row fails, and the database undoes the transaction, so nothing of the call was applied.
After such a failure the store divides the call in halves, until the entries that cause it are alone. These entries get
`KeyDamaged`. The store remembers the error by operation and name. From then on it tries entries of that name once a
second, in a transaction of their own, and returns the same error in between. So a damaged row costs its neighbours
nothing more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import sqlalchemy as sa

from emq.database.refusals import reason_of
from emq.runtime import errors

LOOK_AGAIN_S = 1.0
"""Least seconds between two looks at damaged rows."""

MOST = 1 << 62
"""Largest number that counts as whole; EMQ's numbers are far smaller, and a sum of two still fits into a column."""

MAX_REASON = 300

_SQLITE_CORRUPT = ("database disk image is malformed", "Could not decode to UTF-8")


def is_corruption(exc: Exception) -> bool:
    """Return whether the database reports corrupt data; only a few rows may be corrupt."""
    cause = exc.orig if isinstance(exc, sa.exc.DBAPIError) else exc
    return str(getattr(cause, "sqlstate", "")).startswith("XX00") or any(
        words in str(cause) for words in _SQLITE_CORRUPT
    )


def damaged(what: str, reason: str, remedy: str) -> errors.KeyDamaged:
    """Return the error for damaged rows of `what`, such as `queue 'orders/0/mid'`."""
    return errors.KeyDamaged(f"{what}: {reason[:MAX_REASON]}; {remedy}, and EMQ goes on by itself; nothing was applied")


def told(what: str, exc: Exception) -> errors.KeyDamaged:
    """Return the error for an entry whose statements failed, or whose rows hold invalid values."""
    if isinstance(exc, errors.KeyDamaged) and what in str(exc):
        return exc
    reason = reason_of(exc) if isinstance(exc, sa.exc.DBAPIError) else f"{type(exc).__name__}: {exc}"
    return damaged(
        what,
        f"its rows in the database cannot be worked with: {' '.join(reason.split())}",
        "correct or delete them (store_queues and store_groups have them by name)",
    )


class Damage:
    """The known damage in one store, by operation and name."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[errors.KeyDamaged, float]] = {}

    def found(self, operation: str, name: str, error: errors.KeyDamaged) -> None:
        self._known[operation, name] = error, time.monotonic()

    def well(self, operation: str, names: Sequence[str]) -> None:
        """Forget the damage of these names, since the operation succeeded."""
        for name in names:
            self._known.pop((operation, name), None)

    def knows(self, operation: str, names: Sequence[str]) -> bool:
        """Return whether any of the names is known to be damaged; a quick check before each call."""
        return bool(self._known) and any((operation, name) in self._known for name in names)

    def refusal(self, operation: str, name: str) -> errors.KeyDamaged | None:
        """Return the known error for entries of that name; None if there is no error, or it is time to look again."""
        known = self._known.get((operation, name))
        return None if known is None or time.monotonic() - known[1] >= LOOK_AGAIN_S else known[0]

    def apart(self, operation: str, names: Sequence[str]) -> tuple[dict[int, errors.KeyDamaged], list[list[int]]]:
        """Return the errors of entries to leave out now, and the other entries in separate calls, all by number.

        Args:
            names: the names of the entries, in the order of the entries.
        """
        refused: dict[int, errors.KeyDamaged] = {}
        parts: dict[str, list[int]] = {"": []}
        for number, name in enumerate(names):
            if (operation, name) not in self._known:
                parts[""].append(number)
            elif (refusal := self.refusal(operation, name)) is not None:
                refused[number] = refusal
            else:
                parts.setdefault(name, []).append(number)
        return refused, [part for part in parts.values() if part]
