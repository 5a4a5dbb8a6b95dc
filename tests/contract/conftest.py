"""Fixtures for all stores, `target`, and for all databases of the catalog, `db`."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from family_place import Place
from holey_store import HoleyClient
from losing import forget_last

from emq.database import Database
from emq.runtime.environment import Environment
from emq.storage.opening import open_store
from emq.storage.store import Store
from emq.topics import opening
from emq_stores.memory import MemoryStore, World, forget
from emq_stores.put_get import Options, PutGetStore
from emq_stores.redis import server_patience
from emq_testing.contract.fixtures import *  # noqa: F403
from emq_testing.contract.target import EVERYTHING, PUT_GET, Can, Target

NAMES = ("memory", "sqlite", "postgresql", "redis", "redis_cluster", "redis_servers", "put_get")

LACKS = {
    "redis": {Can.REPLICATE},
    "redis_cluster": {Can.IN_ORDER},
    "redis_servers": {Can.REPLICATE, Can.IN_ORDER},
    "put_get": EVERYTHING - PUT_GET,
}
"""What each is not asked for. The Redis servers of the tests have no replicas."""

_NEEDED = {"in_order": {Can.SLOTS, Can.IN_ORDER}, "own_slots": {Can.SLOTS}}
"""Fixtures by which tests say that they need these; most tests of a file do, so the other stores do not even skip."""

_count = itertools.count(1)


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for fixture, needed in _NEEDED.items():
        if fixture in metafunc.fixturenames:
            names = [name for name in NAMES if not needed & LACKS.get(name, frozenset())]
            metafunc.definition.add_marker(pytest.mark.parametrize("target", names, indirect=True))


@pytest.fixture(autouse=True)
def patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a server that has little of a busy machine take longer for 20 MB; hosts would claim again."""
    if request.module.__name__ == "test_bounds":
        monkeypatch.setattr(server_patience, "LEAST_S", server_patience.MOST_S)


def _target(name: str, topic: str, opener: Callable[[Environment], Awaitable[Store]]) -> Target:
    return Target(
        name,
        opener,
        EVERYTHING - LACKS.get(name, frozenset()),
        topic=topic,
        is_near=name in ("memory", "put_get"),
        doubts=name.startswith("redis"),
        forget_last=functools.partial(forget_last, name),
    )


def _put_get(topic: str) -> Target:
    """A storage that loses and delays writes, with everything sped up so that a hole is decided in milliseconds."""
    client = HoleyClient(lost_every=7, late_every=5, late_s=0.002)
    worlds = {environment: World() for environment in Environment}

    async def opener(environment: Environment) -> Store:
        options = Options(
            max_queue_qps=1e6,
            hole_grace_s=holey.hole_grace_s,
            poll_first_s=0.002,
            poll_longest_s=0.02,
            concurrency=256,
        )
        return PutGetStore(client, MemoryStore(worlds[environment]), environment, options)

    holey = _target("put_get", topic, opener)
    return holey


@pytest.fixture(params=NAMES)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    """The store under test, on data of its own; who opens from it closes it (`store` and `opened` do)."""
    name: str = request.param
    topic = f"t{os.getpid()}-{next(_count)}"
    if name == "put_get":
        yield _put_get(topic)
        return
    urls = {"memory": f"memory://{topic}", "sqlite": f"sqlite:///{tmp_path}/store.db"}
    servers = {"postgresql": "postgres_url"} | {each: f"{each}_url" for each in NAMES if each.startswith("redis")}
    url = urls[name] if name in urls else request.getfixturevalue(servers[name])
    yield _target(name, topic, lambda environment: open_store(url, environment))
    forget(topic)


@pytest.fixture(params=["sqlite", "postgresql"])
async def db(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """A new, empty database."""
    url = f"sqlite:///{tmp_path}/catalog.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("fresh_postgres")
    database = await Database.open(url)
    yield database
    await database.close()


@pytest.fixture
def place(db: Database, store: Store, target: Target, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(opening, "STABLE_S", 0.05)  # no store of these tests loses its last second
    return Place(db, store, target.topic)
