"""A lock that lets only one process consume from an SQLite file."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from emq.runtime import errors, private_files
from emq.runtime.environment import Environment

# The system frees a lock when its holder dies, so the lock file of a crashed process blocks no host. Hosts of one
# process share the lock: they divide the groups among themselves through an in-process membership.
_held: dict[Path, tuple[int, int]] = {}


class HostLock:
    """A held lock; made by `host_lock`."""

    def __init__(self, path: Path) -> None:
        self._path: Path | None = path

    def release(self) -> None:
        """Let another process host the file. Safe to repeat."""
        if self._path is None:
            return
        path, self._path = self._path, None
        if path not in _held:  # in a child that was forked
            return
        descriptor, holders = _held.pop(path)
        if holders > 1:
            _held[path] = (descriptor, holders - 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough if a fork under way has copied it
            os.close(descriptor)


def _forget_in_child() -> None:
    """Let a forked child hold none of the locks: it is no host, and may outlive its parent."""
    for descriptor, _ in _held.values():
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def host_lock(path: str | Path, environment: Environment = Environment.ONLINE) -> HostLock:
    """Claim the SQLite file `path` for the hosts of this process. Publishing needs no lock.

    The lock is on `<path>.host-lock`; for the sandbox, which has its own hosts, on `<path>.sandbox.host-lock`.

    Raises:
        HostConflict: a host in another process consumes from the file; stop it, or use a store that hosts share.
        StoreUnavailable: the lock file cannot be made; make its directory writable.
    """
    suffix = ".host-lock" if environment is Environment.ONLINE else f".{environment}.host-lock"
    lock = Path(os.path.realpath(path) + suffix)
    if lock in _held:
        descriptor, holders = _held[lock]
        _held[lock] = (descriptor, holders + 1)
        return HostLock(lock)
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, private_files.MODE)
    except OSError as exc:
        raise errors.StoreUnavailable(f"cannot make the lock file {lock}: {exc.strerror}; allow writing there") from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        os.close(descriptor)
        raise errors.HostConflict(
            f"another process consumes from {path} already; stop that host, or use redis:// or postgresql://, "
            "which many hosts share"
        ) from exc
    _held[lock] = (descriptor, 1)
    return HostLock(lock)
