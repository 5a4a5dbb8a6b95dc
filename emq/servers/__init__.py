"""Real servers on 127.0.0.1, started and stopped by tests, benchmarks and the command line.

`python -m emq.servers redis` (or `postgres`) runs one in the foreground until Ctrl-C and prints its URL. To add a
kind of server, subclass `Server` in a file of its own and give it a `start_...` function.
"""

from __future__ import annotations

from emq.servers.postgres import PostgresServer, start_postgres
from emq.servers.redis import RedisServer, start_redis
from emq.servers.server import (
    LOOPBACK,
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    Server,
    ServerFailed,
    ServerMissing,
    free_port,
)

__all__ = [
    "LOOPBACK",
    "START_TIMEOUT_S",
    "STOP_TIMEOUT_S",
    "PostgresServer",
    "RedisServer",
    "Server",
    "ServerFailed",
    "ServerMissing",
    "free_port",
    "start_postgres",
    "start_redis",
]
