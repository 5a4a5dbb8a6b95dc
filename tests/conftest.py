"""Real servers for every test that asks for one, started once a run by each worker that needs them.

A server that is not installed skips the test with the reason; with EMQ_REQUIRE_SERVERS=1 it fails it.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import pathlib
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

import pytest
import typer.main
import typer.testing

import emq_servers as servers
from emq.runtime import errors
from support import browser, chance, distribution, long_tests, memory, virtual, without_services
from support.fresh_databases import FreshDatabases
from support.redis_servers.cluster import RedisCluster, start_redis_cluster
from support.redis_servers.listed import ListedServers, start_listed
from support.rig import Rig, rig
from support.wanting import missing

if TYPE_CHECKING:
    from playwright.async_api import Browser
    from pyspark.sql import SparkSession


def pytest_configure(config: pytest.Config) -> None:
    """Some tests interrupt what they start; a run in the background would hand down that SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if without_services.IS_ALONE:
        without_services.hide()
    chance.load_profile()
    gc.set_threshold(50_000, 20, 20)
    gc.disable()  # until all tests are collected: none of them is garbage
    config.pluginmanager.register(memory.Tidying())
    # Typer would build all commands of `emq` again for each run of one, which takes a third of the time of most runs.
    typer.testing._get_command = functools.cache(typer.main.get_command)


def pytest_ignore_collect(collection_path: pathlib.Path) -> bool | None:
    is_test = collection_path.suffix == ".py" and collection_path.name.startswith("test_")
    if without_services.IS_ALONE and is_test and without_services.needs_services(collection_path):
        return True
    return None


def pytest_collection_finish() -> None:
    """Thousands of tests are no garbage: the collector does not look through them."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before pytest and xdist read the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    long_tests.mark(items)
    if without_services.IS_ALONE:
        items[:] = [item for item in items if item.get_closest_marker("services") is None]
    if getattr(config.option, "loadgroup", False):  # in a worker of `make test`
        distribution.distribute(items)


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"loop": functools.partial(virtual.loop_of, item)}


S = TypeVar("S", bound=servers.Server | servers.Ensemble | RedisCluster | ListedServers)


def _serve(start: Callable[[], S]) -> Iterator[S]:
    try:
        server = start()
    except servers.ServerMissing as exc:
        missing(str(exc))
    else:
        with server:
            yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[servers.RedisServer]:
    """A Valkey or Redis with its append-only file on, so that it can also be asked for `fsynced`."""
    yield from _serve(lambda: servers.start_redis(appendonly=True))


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    """Three masters with a replica each; who kills nodes or moves hash slots starts a cluster of its own."""
    yield from _serve(lambda: start_redis_cluster(appendonly=True))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[servers.PostgresServer]:
    yield from _serve(servers.start_postgres)


@pytest.fixture(scope="session")
def fresh_databases(postgres_url: str) -> FreshDatabases:
    return FreshDatabases(postgres_url)


@pytest.fixture
def fresh_postgres(fresh_databases: FreshDatabases) -> Iterator[str]:
    """The URL of a PostgreSQL database with the catalog's tables, all empty, which no other test uses meanwhile."""
    with fresh_databases.one() as url:
        yield url


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[servers.ZooKeeperServer]:
    """Shared by all tests of a run: use a chroot of your own, and leave it running."""
    yield from _serve(servers.start_zookeeper)


@pytest.fixture(scope="session")
def zookeeper_ensemble() -> Iterator[servers.Ensemble]:
    """Three servers, shared by all tests of a run: use a chroot of your own, and leave them running."""
    yield from _serve(servers.start_ensemble)


@pytest.fixture(scope="session")
def redis_url(redis_server: servers.RedisServer) -> str:
    return redis_server.url


@pytest.fixture(scope="session")
def redis_cluster_url(redis_cluster: RedisCluster) -> str:
    return redis_cluster.url


@pytest.fixture(scope="session")
def redis_servers_url() -> Iterator[str]:
    """Two servers that know nothing of each other, as one store; who stops one starts servers of its own."""
    for listed in _serve(lambda: start_listed(appendonly=True)):
        yield listed.url


@pytest.fixture(scope="session")
def postgres_url(postgres_server: servers.PostgresServer) -> str:
    return postgres_server.url


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local session for all tests of a run; a task that fails is tried once more."""
    from emq_spark import session

    try:
        session.require()
    except errors.EMQError as exc:
        missing(str(exc))
    made = session.local_session("emq-tests", memory="1g", **session.QUICK)
    yield made
    made.stop()


@pytest.fixture
async def r() -> AsyncIterator[Rig]:
    """A catalog, a store in memory and a cluster, for any number of hosts; for tests in virtual time."""
    async with rig() as made:
        yield made


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    """A headless browser; each test opens sessions of its own."""
    try:
        async with browser.browser() as made:
            yield made
    except browser.BrowserMissing as exc:
        missing(str(exc))
