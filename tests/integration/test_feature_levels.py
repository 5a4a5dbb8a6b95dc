"""Two versions of EMQ side by side: neither writes what the other cannot read, until all are new."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

import emq
import emq_servers as servers
from emq.database import levels, tables
from emq.runtime import errors
from emq.topics import row_codec
from emq_cli import cluster as cluster_views
from emq_cli import feature_level
from emq_cli.commands import app as cli
from support import level_host_process
from support.emq_shell import opened, shell
from support.rig import Rig, Seen
from support.virtual import virtual
from support.waiting import until

PROCESS = Path(level_host_process.__file__)


class Cluster:
    def __init__(self, store: str, directory: Path) -> None:
        self.store, self.database = store, f"sqlite:///{directory}/catalog.db"
        self._directory = directory
        self._receipts = directory / "receipts"
        self.hosts: dict[str, subprocess.Popen[str]] = {}

    def app(self) -> emq.App:
        return emq.App(self.store, database=self.database)

    def start(self, name: str, level: int) -> subprocess.Popen[str]:
        words = [sys.executable, PROCESS, self.store, self.database, name, str(level), self._receipts]
        host = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=self._directory)
        self.hosts[name] = host
        return host

    def stop(self, name: str) -> str:
        host = self.hosts.pop(name)
        host.terminate()
        return host.communicate(timeout=30)[1]

    def receipts(self) -> list[list[str]]:
        return [line.split() for line in self._receipts.read_text().splitlines()] if self._receipts.exists() else []

    def handled(self, topic: str) -> set[str]:
        return {payload for _, of, payload in self.receipts() if of == topic}

    def emq(self, *words: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, [*words, "--store", self.store, "--database", self.database])
        return done.exit_code, " ".join(done.output.split())


@pytest.fixture
def cluster(redis_server: servers.RedisServer, tmp_path: Path) -> Iterator[Cluster]:
    with servers.start_redis() as server:
        made = Cluster(server.url, tmp_path)
        yield made
        for host in made.hosts.values():
            host.kill()
            host.communicate()


async def test_two_versions_work_side_by_side_and_the_level_rises_once_all_are_new(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.app() as app:
        await app.create_topic("orders", 100, group_qps=10)
    monkeypatch.setattr(levels, "LEVEL", 2)  # the commands and this producer are new already
    monkeypatch.setattr(levels, "SINCE", level_host_process.SINCE)
    cluster.start("old", 1)
    cluster.start("new", 2)
    async with cluster.app() as app:
        await until(lambda: {"old", "new"} <= {host for host, _, _ in cluster.receipts()}, publishing(app))
        with pytest.raises(errors.InvalidTopic, match=r"dedupe_s needs feature level 2, .* run: emq upgrade --level 2"):
            await app.create_topic("fancy", 10, dedupe_s=5.0)
        await app.update_topic("orders", qps=90)
        code, said = await asyncio.to_thread(cluster.emq, "upgrade", "--level", "2")
        assert (code, "hosts that cannot read feature level 2: old (up to 1); upgrade them first" in said) == (1, True)
        assert "unknown field" not in await asyncio.to_thread(cluster.stop, "old")
        code, said = await asyncio.to_thread(cluster.emq, "upgrade", "--level", "2")
        assert (code, said) == (0, "the online environment is at feature level 2, before 1")
        await app.create_topic("fancy", 10, dedupe_s=5.0)
        await app.publish("fancy", b"x")
        await until(lambda: cluster.handled("fancy") == {"x"})
    old = cluster.start("old", 1)
    said = (await asyncio.to_thread(old.communicate, timeout=30))[1]
    assert old.returncode == 1
    assert said.strip().splitlines() == [
        "error: the online environment is at feature level 2, and this version of EMQ reads up to level 1: upgrade "
        "this process"
    ]


async def test_until_the_raise_the_older_version_takes_everything_back(cluster: Cluster) -> None:
    async with cluster.app() as app:
        await app.create_topic("orders", 100)  # at level 1, as a topic of the older version
        cluster.start("new", 2)
        await app.publish("orders", b"1")
        await until(lambda: cluster.handled("orders") == {"1"})
        await asyncio.to_thread(cluster.stop, "new")
        await app.publish("orders", b"2")
        cluster.start("old", 1)
        await until(lambda: cluster.receipts() == [["new", "orders", "1"], ["old", "orders", "2"]])


def publishing(app: emq.App) -> float:
    """Publish now and then meanwhile, so that each host gets something once it has groups; return how long to wait."""

    async def publish() -> None:
        for number in range(200):
            await app.publish("orders", f"{number}".encode())
            await asyncio.sleep(0.1)

    _publishers.append(asyncio.create_task(publish()))
    return 20.0


_publishers: list[asyncio.Task[None]] = []


async def test_a_host_that_joins_in_the_moment_of_a_raise_takes_it_back(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await r.topic("orders", 10)
    seen = iter([{"new": 2}, {"new": 2, "old": 1}])

    async def hosts() -> feature_level.Levels:
        return next(seen)

    monkeypatch.setattr(levels, "LEVEL", 2)
    with pytest.raises(errors.WrongState, match="old"):
        await feature_level.upgrade(r.db, "online", 2, hosts)
    assert await r.db.run(lambda c: levels.current(c, "online")) == 1
    with pytest.raises(errors.InvalidSettings, match="levels 1 to 2, not 3"):
        await feature_level.upgrade(r.db, "online", 3, hosts)


class Hosts:
    """Tells the levels of hosts to a raise, and does something at its second look, behind the announcement."""

    def __init__(self, level: int, then: Callable[[], Awaitable[object]]) -> None:
        self.looks = 0
        self._level = level
        self._then = then

    async def __call__(self) -> feature_level.Levels:
        self.looks += 1
        if self.looks == 2:
            await self._then()
        return {"new": self._level}


async def test_while_a_raise_is_announced_no_older_host_joins_and_nothing_newer_is_written(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await r.topic("orders", 10)

    async def join() -> None:
        assert await r.db.run(lambda c: levels.current(c, "online")) == 1
        with pytest.MonkeyPatch.context() as older:
            older.setattr(levels, "LEVEL", 1)
            assert await r.db.run(lambda c: levels.check(c, "online")) == 1, "hosts that are there go on"
            with pytest.raises(errors.HostConflict, match=r"is about to be at feature level 2, .* up to level 1"):
                await r.db.run(lambda c: levels.join(c, "online"))

    hosts = Hosts(2, join)
    monkeypatch.setattr(levels, "LEVEL", 2)
    assert await feature_level.upgrade(r.db, "online", 2, hosts) == 1
    assert await r.db.run(lambda c: levels.join(c, "online")) == 2
    assert (hosts.looks, await feature_level.upgrade(r.db, "online", 2, hosts)) == (2, 2)


async def test_of_two_raises_at_once_one_that_is_taken_back_fails_the_other(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await r.topic("orders", 10)
    seen = iter([{"new": 2}, {"new": 2, "old": 1}])

    async def another() -> feature_level.Levels:
        return next(seen)

    async def fail() -> None:
        with pytest.raises(errors.WrongState, match="old"):
            await feature_level.upgrade(r.db, "online", 2, another)

    hosts = Hosts(2, fail)
    monkeypatch.setattr(levels, "LEVEL", 2)
    with pytest.raises(errors.WrongState, match="somebody else has withdrawn the raise to feature level 2"):
        await feature_level.upgrade(r.db, "online", 2, hosts)
    assert await r.db.run(lambda c: levels.current(c, "online")) == 1


async def test_of_two_raises_at_once_the_later_one_counts_and_the_other_says_so(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await r.topic("orders", 10)
    hosts = Hosts(3, lambda: r.db.run(lambda c: feature_level.announce(c, "online", 3)))
    monkeypatch.setattr(levels, "LEVEL", 3)
    with pytest.raises(errors.WrongState, match="somebody else raises it to level 3; see: emq upgrade"):
        await feature_level.upgrade(r.db, "online", 2, hosts)
    assert await r.db.run(lambda c: (levels.current(c, "online"), levels.announced(c, "online"))) == (1, 3)


@pytest.mark.parametrize("failure", [errors.ClusterUnavailable("no server"), asyncio.CancelledError(), OSError("odd")])
async def test_a_raise_that_fails_half_way_keeps_no_older_host_from_joining(r: Rig, failure: BaseException) -> None:
    await r.topic("orders", 10)

    async def fail() -> None:
        raise failure

    hosts = Hosts(2, fail)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(levels, "LEVEL", 2)
        with pytest.raises(type(failure)):
            await feature_level.upgrade(r.db, "online", 2, hosts)
    assert hosts.looks == 2
    assert await r.db.run(lambda c: levels.join(c, "online")) == 1


async def test_a_raise_that_loses_its_database_says_that_it_may_stay_announced(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await r.topic("orders", 10)
    hosts = Hosts(2, r.db.close)
    monkeypatch.setattr(levels, "LEVEL", 2)
    with pytest.raises(
        errors.DatabaseUnavailable, match=r"raise to feature level 2 may stay announced, .* see: emq upgrade"
    ):
        await feature_level.upgrade(r.db, "online", 2, hosts)


def test_the_command_shows_a_raise_that_was_interrupted_and_how_to_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emq_shell = shell(tmp_path, monkeypatch)
    emq_shell("topic create orders --qps 10")
    monkeypatch.setattr(levels, "LEVEL", 2)

    async def announce(app: emq.App) -> None:
        await app.database.run(lambda c: feature_level.announce(c, "online", 2))

    opened(announce)
    assert emq_shell.json("upgrade")["announced"] == 2
    said = " ".join(emq_shell("upgrade").split())
    assert "a raise to level 2 is announced" in said
    assert "Finish it: emq upgrade --level 2. Or take it back: emq upgrade --level 1" in said
    emq_shell("upgrade --level 1")
    assert emq_shell.json("upgrade")["announced"] == 0


def test_the_tables_of_all_packages_are_set_up_by_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emq_shell = shell(tmp_path, monkeypatch)
    for _ in range(2):
        assert "are those of this version" in emq_shell("upgrade --tables")
    with contextlib.closing(sqlite3.connect(tmp_path / "emq.db")) as connection:
        found = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {"emq_topics", "store_messages", "emq_push_tenants", "emq_scheduling_pools"} <= found
    assert "two steps" in emq_shell.refused("upgrade --tables --level 1", code=2)


def test_without_an_answer_about_the_hosts_nothing_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emq_shell = shell(tmp_path, monkeypatch)
    emq_shell("topic create orders --qps 10")
    monkeypatch.setattr(levels, "LEVEL", 2)

    async def known(session: object) -> cluster_views.DatabaseView:
        return cluster_views.DatabaseView([], {}, 0, [], "quotas and rates are not known: the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(cluster_views, "known", known)
        assert "the database is away" in emq_shell.refused("upgrade --level 2", code=4)
    assert (emq_shell.json("upgrade")["level"], emq_shell.json("upgrade")["announced"]) == (1, 0)


@virtual
async def test_a_host_that_a_raise_did_not_see_ends_though_the_catalog_does_not_change(r: Rig) -> None:
    """It was paused, say, until its session had ended."""
    await r.topic("orders", 10)
    host = r.host(Seen())
    task = asyncio.create_task(host.run())
    await host.running.wait()

    def raised(connection: sa.Connection) -> None:
        feature_level.announce(connection, "online", 2)
        feature_level.take_effect(connection, "online", 2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(levels, "LEVEL", 2)
        await r.db.run(raised)
    with pytest.raises(errors.HostConflict, match=r"is at feature level 2, and this version .* up to level 1"):
        async with asyncio.timeout(3):
            await task


@virtual
async def test_an_environment_without_topics_begins_with_the_newest_level(r: Rig) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(levels, "LEVEL", 7)
        assert await r.db.run(lambda c: levels.current(c, "online")) == 7
    with pytest.raises(errors.HostConflict, match=r"is at feature level 7, and this version .* up to level 1"):
        await r.topic("orders", 10)


@virtual
async def test_a_field_that_nobody_knows_stops_its_topic_alone_with_one_line(
    r: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("orders", "fine"):
        await r.topic(name, 100)
    body = row_codec.encode(await r.catalog.get("orders"), 1).replace('"options":{', '"novel":1,"options":{')
    change = sa.update(tables.topics).where(tables.topics.c.name == "orders").values(body=body)
    await r.db.run(lambda c: c.execute(change))
    for _ in range(5):
        assert [topic.name for topic in await r.catalog.list()] == ["fine"]
        assert [topic.name for topic in (await r.catalog.changes_since(0)).changed] == ["fine"]
    version = await r.catalog.version()
    await r.db.run(lambda c: c.execute(sa.update(tables.topics).values(version=version + 1)))
    assert (await r.catalog.changes_since(version - 1)).deleted == ["orders"], "a host that knows it stops it"
    assert caplog.text.count("unknown field `novel`") == 1
