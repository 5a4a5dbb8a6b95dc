"""Errors of a database that an operator can mend: a table, a column or a right is missing, or somebody holds a lock."""

from __future__ import annotations

import sqlalchemy as sa

_MISSING = {"42P01", "42703", "3F000"}
"""PostgreSQL: undefined table, column, schema."""

_LOCKED = "55P03"
"""PostgreSQL: a lock was not to be had within `lock_timeout`."""

_CANCELLED = "57014"
"""PostgreSQL: the statement was cancelled, by this client at its deadline or by `statement_timeout`."""

_FORBIDDEN = {"42501", "25006"}
"""PostgreSQL: insufficient privilege, read-only transaction."""

_UNDONE = {"40P01", "40001"}
"""PostgreSQL: the server undid the transaction to end a deadlock, or since another transaction came between."""


def is_undone(exc: Exception) -> bool:
    """Return True if the server undid the transaction for the sake of others: it may be carried out again."""
    return getattr(_cause_of(exc), "sqlstate", None) in _UNDONE


def refusal(exc: Exception) -> str | None:
    """Return one line that names the missing thing and the remedy; None for any other error.

    An operator can repair each of these while EMQ runs, so the caller should try again, as after an outage.
    """
    state, reason = getattr(_cause_of(exc), "sqlstate", None), reason_of(exc)
    if state in _MISSING or "no such table" in reason or "no such column" in reason:
        return (
            f"{reason}; EMQ's tables are missing or changed: restore them from a backup, or drop the rest of them "
            "and start again"
        )
    if state in _FORBIDDEN or "attempt to write a readonly database" in reason:
        return (
            f"{reason}; give EMQ's user the right to read and write its tables, and to create them at the first start"
        )
    if state == _CANCELLED:
        return (
            "a statement was not done within the time of its call, and was cancelled; see pg_stat_activity and pg_locks"
        )
    if state == _LOCKED:
        return f"{reason}: another session holds a lock on EMQ's rows or tables; pg_locks names it, and it has to end"
    return None


def reason_of(exc: Exception) -> str:
    """Return the driver's own text, on one line, without the statement that failed."""
    cause = _cause_of(exc)
    told = getattr(getattr(cause, "diag", None), "message_primary", None)
    return " ".join((told or str(cause)).split()) or type(cause).__name__


def _cause_of(exc: Exception) -> object:
    """Return the driver's own error."""
    return exc.orig if isinstance(exc, sa.exc.DBAPIError) else exc
