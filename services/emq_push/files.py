"""Shares the open files of a process between connections to endpoints and all else.

A quarter is left for the store, the database and the API.
"""

from __future__ import annotations

import resource

LEAST = 16
_MANY = 1 << 20


def most_connections() -> int:
    """Half of the files, for connections with a request under way."""
    return max(LEAST, _files() // 2)


def most_idle() -> int:
    """A quarter of the files, for connections that are kept open for the next request."""
    return max(LEAST, _files() // 4)


def _files() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2 * _MANY if files == resource.RLIM_INFINITY else files
