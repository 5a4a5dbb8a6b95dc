"""The peers: what they are, how each is configured here, and where `make bench-peers` puts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACE = Path(os.environ.get("EMQ_PEERS", ROOT / ".peers"))
"""The folder with the peers; the environment variable `EMQ_PEERS` names another one."""

EACH, ONE, SUBJECT = "a queue each", "one queue, the tenant is an argument", "one stream, a subject each"


@dataclass(frozen=True)
class Peer:
    """One side of the comparison.

    Attributes:
        name: how the tables call it.
        language: of handlers and client.
        server: the kind of its server: `redis`, `beanstalkd`, `nats` or `rabbitmq`.
        queues: how it keeps 3,000 tenants apart: `EACH`, `ONE` or `SUBJECT`.
        configuration: the settings that differ from the defaults.
        packages: distributions whose versions are told; the first one is the peer itself.
        module: the driver.
        environment: folder below `PLACE/python`; empty for EMQ, which is in this environment.
        most_queues: with more queues than these the peer is not run; `why_most` says why.
        cap: how it limits the starts of each queue; empty if it cannot, or if that is not measured.
        other_cap: the limiter that it has and that is not measured.
        new_tenant: the set-up that a new tenant needs before its messages are delivered; empty if it needs none.
    """

    name: str
    language: str
    server: str
    queues: str
    configuration: str
    packages: Sequence[str]
    module: str
    environment: str = ""
    most_queues: int = 1_000_000
    why_most: str = ""
    cap: str = ""
    other_cap: str = ""
    new_tenant: str = ""
    notes: Sequence[str] = field(default=())

    @property
    def is_emq(self) -> bool:
        return self.name == "EMQ"

    def interpreter(self) -> list[str]:
        """Return the command that runs Python or Node with the peer."""
        if self.is_emq:
            return [sys.executable]
        if self.language == "Node":
            return ["node"]
        return [str(PLACE / "python" / self.environment / "bin" / "python")]

    def command(self) -> list[str]:
        if self.language == "Node":
            return [*self.interpreter(), str(ROOT / "bench/peers/drivers" / self.module)]
        return [*self.interpreter(), "-m", f"bench.peers.drivers.{self.module}"]

    def missing(self) -> str:
        """Return why the peer cannot run here; empty if it can."""
        if not self.versions():
            return f"{self.packages[0]} is not installed (make bench-peers)"
        return ""

    def versions(self) -> str:
        """Return the versions of its packages, as `arq 0.28.0, redis 5.3.1`; empty if the first one is not there."""
        found = _node_versions(self.packages) if self.language == "Node" else self._python_versions()
        return ", ".join(f"{package} {version}" for package, version in found) if found else ""

    def _python_versions(self) -> list[tuple[str, str]]:
        program = (
            "import importlib.metadata as m, json, sys\nprint(json.dumps([(p, m.version(p)) for p in sys.argv[1:]]))"
        )
        try:
            told = subprocess.run(
                [*self.interpreter(), "-c", program, *self.packages], capture_output=True, text=True, check=False
            )
        except OSError:
            return []
        return [] if told.returncode else json.loads(told.stdout)


def _node_versions(packages: Sequence[str]) -> list[tuple[str, str]]:
    found = []
    for package in packages:
        path = PLACE / "node" / "node_modules" / package / "package.json"
        if not path.exists():
            return []
        found.append((package, str(json.loads(path.read_text())["version"])))
    return found


EMQ = Peer(
    name="EMQ",
    language="Python",
    server="redis",
    queues=EACH,
    configuration="one process; a family, one handler, one priority; uvloop",
    packages=("emq", "redis", "hiredis", "uvloop"),
    module="emq",
    cap="qps of the family",
)

PYTHON = (
    Peer(
        name="arq",
        language="Python",
        server="redis",
        queues=ONE,
        configuration="max_jobs 100 (2 processes with 500 for handlers that wait), poll_delay 0.05; no results; uvloop",
        packages=("arq", "redis", "hiredis", "uvloop"),
        module="arq",
        environment="arq",
    ),
    Peer(
        name="dramatiq",
        language="Python",
        server="redis",
        queues=EACH,
        configuration="2 processes with 8 threads (200 for handlers that wait); no middleware",
        packages=("dramatiq", "redis", "hiredis"),
        module="dramatiq",
        environment="dramatiq",
        other_cap="`WindowRateLimiter`, called by the handler",
        new_tenant="an actor in the code, and a restart of the workers",
    ),
    Peer(
        name="taskiq",
        language="Python",
        server="redis",
        queues=ONE,
        configuration="RedisStreamBroker, 2 processes, xread_count 1000, 500 tasks each; no results; uvloop",
        packages=("taskiq", "taskiq-redis", "redis", "hiredis", "uvloop"),
        module="taskiq",
        environment="taskiq",
    ),
    Peer(
        name="saq",
        language="Python",
        server="redis",
        queues=ONE,
        configuration="2 processes, concurrency 20 each (500 for handlers that wait), ttl -1; uvloop",
        packages=("saq", "redis", "hiredis", "uvloop"),
        module="saq",
        environment="saq",
    ),
    Peer(
        name="rq",
        language="Python",
        server="redis",
        queues=EACH,
        configuration="worker pool of 2 SimpleWorkers (50 for handlers that wait); enqueue_many; no results",
        packages=("rq", "redis"),
        module="rq",
        environment="rq",
        new_tenant="a restart of the workers with its queue",
    ),
    Peer(
        name="huey",
        language="Python",
        server="redis",
        queues=ONE,
        configuration="2 worker processes (200 threads for handlers that wait); no results, no periodic tasks",
        packages=("huey", "redis", "hiredis"),
        module="huey",
        environment="huey",
        other_cap="`rate_limit`, which puts tasks back",
    ),
    Peer(
        name="celery",
        language="Python",
        server="redis",
        queues=EACH,
        configuration="prefork, 2 processes, prefetch 128 (400 threads for handlers that wait); no results, no gossip",
        packages=("celery", "kombu", "redis", "hiredis"),
        module="celery",
        environment="celery",
        cap="rate_limit of a task for each queue",
        new_tenant="the queue: control add_consumer, to each worker",
    ),
)

OTHERS = (
    Peer(
        name="BullMQ",
        language="Node",
        server="redis",
        queues=EACH,
        configuration="2 processes; a Worker each, concurrency 500 over all queues; addBulk; removeOnComplete",
        packages=("bullmq", "ioredis"),
        module="bullmq.mjs",
        cap="limiter of each Worker",
        new_tenant="a Worker for its queue",
    ),
    Peer(
        name="glide-mq",
        language="Node",
        server="redis",
        queues=EACH,
        configuration="as BullMQ",
        packages=("glide-mq",),
        module="glide-mq.mjs",
    ),
    Peer(
        name="RabbitMQ",
        language="Python client",
        server="rabbitmq",
        queues=EACH,
        configuration="pika, 2 processes, one channel each, prefetch 1000; durable classic queues, no confirms",
        packages=("pika",),
        module="rabbitmq",
        environment="clients",
        new_tenant="a queue, and basic_consume in each worker",
    ),
    Peer(
        name="beanstalkd",
        language="Python client",
        server="beanstalkd",
        queues=EACH,
        configuration="greenstalk, 2 processes (50 threads each for handlers that wait); in memory",
        packages=("greenstalk",),
        module="beanstalkd",
        environment="clients",
        new_tenant="watch, in each worker",
    ),
    Peer(
        name="NATS JetStream",
        language="Python client",
        server="nats",
        queues=SUBJECT,
        configuration="nats-py, 2 processes, a group of push consumers, max_ack_pending 20000; in memory; uvloop",
        packages=("nats-py", "uvloop"),
        module="nats",
        environment="clients",
    ),
)

PEERS: tuple[Peer, ...] = (EMQ, *PYTHON, *OTHERS)
