"""How many of the files that a process may have open are for connections to endpoints.

A quarter is left for everything else: the store, the database, the API.
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
