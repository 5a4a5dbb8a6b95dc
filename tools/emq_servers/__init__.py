"""Real servers on 127.0.0.1: tests, benchmarks and the command line start and stop them.

`python -m emq_servers redis` (or `postgres`, `zookeeper`, `ensemble`) prints the URL of a new server and runs the
server in the foreground until Ctrl-C. To add a kind of server, subclass `Server` in a file of its own, and write a
`start_...` function for the new class.
"""

from __future__ import annotations

from emq_servers.ensemble import Ensemble, start_ensemble
from emq_servers.postgres import PostgresServer, start_postgres
from emq_servers.redis import RedisServer, start_redis
from emq_servers.server import (
    LOOPBACK,
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    Server,
    ServerFailed,
    ServerMissing,
    free_port,
    stand_still,
)
from emq_servers.zookeeper import ZooKeeperServer, start_zookeeper

__all__ = [
    "LOOPBACK",
    "START_TIMEOUT_S",
    "STOP_TIMEOUT_S",
    "Ensemble",
    "PostgresServer",
    "RedisServer",
    "Server",
    "ServerFailed",
    "ServerMissing",
    "ZooKeeperServer",
    "free_port",
    "stand_still",
    "start_ensemble",
    "start_postgres",
    "start_redis",
    "start_zookeeper",
]
