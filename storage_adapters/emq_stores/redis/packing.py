"""Connections that pack commands in C, since a read of 300 queues has 1,800 arguments and a large put even more."""

from __future__ import annotations

from typing import Any

import hiredis
import redis.asyncio

LARGE = 6_000
"""Bytes of an argument from which redis-py's own way is faster: it sends large arguments as they are. hiredis copies
them, at 1.8 ms a MB.

In the calls of scripts, bodies are among the last arguments, and the bodies of a call are mostly of like size.
"""
LAST = 9


class _Packing:
    """Mixin for a connection class of redis-py, which by itself packs in Python (0.6 us an argument)."""

    def pack_command(self, *args: Any) -> list[bytes]:
        # redis-py passes "CLIENT SETINFO" and the like as one word, and knows how to split it.
        if " " in str(args[0]) or any(type(arg) is bytes and len(arg) > LARGE for arg in args[-LAST:]):
            packed: list[bytes] = super().pack_command(*args)  # type: ignore[misc]
            return packed
        return [hiredis.pack_command(args)]


def pack_in_c(client: redis.asyncio.Redis) -> None:
    """Make all connections that the client opens from now on pack in C."""
    pool = client.connection_pool
    pool.connection_class = type("PackingConnection", (_Packing, pool.connection_class), {})
