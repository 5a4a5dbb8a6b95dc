"""The exit codes of `emq`: each kind of failure has one, whatever the command."""

from __future__ import annotations

from emq.runtime import errors

FAILED = 1
"""It was refused or not found, or a check found a broken promise."""
WRONG = 2
"""An argument, an option, a setting or a file is wrong, or a package is missing; nothing was done."""
VOID = 3
"""The evidence of an audit is incomplete, so it proves nothing."""
UNREACHABLE = 4
"""Store, database or cluster do not answer, or are full; the same command may work later."""
DEFECT = 70
"""EMQ itself is wrong."""
INTERRUPTED = 130
"""Ctrl-C, as shells have it."""
CLOSED_PIPE = 141
"""The program that read the output has ended, as shells have it."""

HELP = (
    f"Exit codes: 0 done; {FAILED} refused, not found, or a promise is broken; {WRONG} wrong argument, setting or "
    f"file; {VOID} the audit's evidence is incomplete; {UNREACHABLE} store, database or cluster out of reach, try "
    f"again; {INTERRUPTED} Ctrl-C."
)
"""For the end of `emq --help`."""

_WRONG = (errors.InvalidTopic, errors.InvalidMessage, errors.InvalidPool, errors.InvalidSettings)
_UNREACHABLE = (errors.StoreUnavailable, errors.StoreFull, errors.DatabaseUnavailable, errors.ClusterUnavailable)


def of(error: errors.EMQError) -> int:
    """Return the exit code of a command that ended with this error."""
    if isinstance(error, errors.HookFailed) and isinstance(error.__cause__, errors.EMQError):
        return of(error.__cause__)
    if isinstance(error, errors.KeyDamaged | errors.NoDatabase):  # somebody must repair or create it first
        return FAILED
    if isinstance(error, _UNREACHABLE):
        return UNREACHABLE
    return WRONG if isinstance(error, _WRONG) else FAILED
