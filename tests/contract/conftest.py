"""Fixtures for all stores, `target`, and for all databases of the catalog, `db`."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from family_place import Place
from holey_store import HoleyClient
from slot_user import VARIANT_NAMES, VARIANTS, SlotUser
from target import EVERYTHING, PUT_GET, Can, Needs, Target

from emq.database import Database
from emq.runtime.environment import Environment
from emq.storage.opening import open_store
from emq.storage.slot_store import SlotKind
from emq.storage.store import Store
from emq.topics import opening
from emq_stores.memory import MemoryStore, World, forget
from emq_stores.put_get import Options, PutGetStore

NAMES = ("memory", "sqlite", "postgresql", "redis", "redis_cluster", "redis_servers", "put_get")

CAN = {"put_get": PUT_GET, **dict.fromkeys(("redis", "redis_servers"), EVERYTHING - {Can.REPLICATE})}
"""What each is asked for, where that is not everything. The Redis servers of the tests have no replicas."""

_count = itertools.count(1)


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

    holey = Target("put_get", topic, CAN["put_get"], opener)
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
    yield Target(name, topic, CAN.get(name, EVERYTHING), lambda environment: open_store(url, environment))
    forget(topic)


@pytest.fixture
async def opened(target: Target) -> AsyncIterator[Target]:
    """The target, whose stores are closed after the test."""
    try:
        yield target
    finally:
        await target.close()


@pytest.fixture
async def store(opened: Target) -> Store:
    return await opened.open()


@pytest.fixture
async def other(opened: Target, store: Store) -> Store:
    """A second instance on the same data."""
    if Can.MANY_INSTANCES not in opened.can:
        pytest.skip(f"{opened.name} takes one instance only")
    return await opened.open()


@pytest.fixture
def needs(target: Target) -> Needs:
    """Skip where the store's docstring says that it cannot do this."""

    def check(what: Can) -> None:
        if what not in target.can:
            pytest.skip(f"{target.name} does not promise: {what.value}")

    return check


@pytest.fixture(params=VARIANTS, ids=VARIANT_NAMES)
def variant(request: pytest.FixtureRequest) -> tuple[SlotKind, bool]:
    """A slot's kind, and whether its bodies are apart; each of both, and the models try them all."""
    kind, apart = request.param
    return kind, apart


@pytest.fixture
def user(store: Store, target: Target, variant: tuple[SlotKind, bool]) -> SlotUser:
    """The user of one slot of that variant."""
    return SlotUser(store, target.sorted_slot(*variant))


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


@pytest.fixture
def sealed(needs: Needs) -> None:
    """Skip where seals hold for one instance only: there no topic sleeps."""
    needs(Can.SHARE_CONTROL)
