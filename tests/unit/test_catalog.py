"""What the catalog promises, on SQLite."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from emq.database import CATALOG, Database, host_stats, tables
from emq.runtime import errors
from emq.runtime.clock import SystemClock
from emq.storage.durability import Durability
from emq.topics import catalog_file, changing, model
from emq.topics.catalog import Catalog
from emq.topics.model import State, Topic, TopicOptions
from support import schemas
from support.waiting import until


@pytest.fixture
def catalog(db: Database) -> Catalog:
    return Catalog(db, "online", None)


async def test_a_created_topic_is_split_into_groups_and_created_again_with_equal_settings_only(
    catalog: Catalog,
) -> None:
    created = await catalog.create(Topic("shop", 120))
    assert (created.active_groups, created.groups) == (3, 3)
    assert await catalog.get("shop") == created
    assert await catalog.list() == [created]
    assert await catalog.create(Topic("shop", 120)) == created
    with pytest.raises(errors.TopicExists, match="'shop' exists already"):
        await catalog.create_many([Topic("new", 1), Topic("shop", 121)])
    made = await catalog.create_many([Topic("new", 1), Topic("shop", 121)], exist_ok=True)
    assert made == [await catalog.get("new"), created]


async def test_create_refuses_what_is_out_of_range_or_of_the_wrong_type(catalog: Catalog) -> None:
    with pytest.raises(errors.InvalidTopic, match="group_qps 200 must be from 1 to 150"):
        await catalog.create(Topic("shop", 500, group_qps=200))
    with pytest.raises(errors.InvalidTopic, match=r"'shop'.*qps"):
        await catalog.create(Topic("shop", "many"))  # type: ignore[arg-type]
    assert await catalog.list() == []


async def test_thousands_of_topics_are_created_at_once(catalog: Catalog) -> None:
    await catalog.create_many([Topic(f"tenant-{i}", 10) for i in range(3000)])
    assert len(await catalog.list()) == 3000
    assert [t.name for t in await catalog.list("tenant-29?9")] == [f"tenant-29{i}9" for i in range(10)]


async def test_an_unknown_topic_is_answered_with_names_spelt_alike(catalog: Catalog) -> None:
    await catalog.create(Topic("merchant-7", 1))
    with pytest.raises(errors.UnknownTopic, match="did you mean 'merchant-7'"):
        await catalog.get("merchnt-7")
    with pytest.raises(errors.UnknownTopic, match="no topic 'z' in online"):
        await catalog.delete("z")


async def test_update_changes_settings_and_single_options(catalog: Catalog) -> None:
    await catalog.create(Topic("shop", 100, options=TopicOptions(max_attempts=3)))
    changed = await catalog.update("shop", state="paused", jitter=0.5)
    assert changed.state is State.PAUSED
    assert changed.options == TopicOptions(max_attempts=3, jitter=0.5)
    assert (await catalog.update("shop", options={"durability": "fsynced"})).options == TopicOptions(
        durability=Durability.FSYNCED
    )
    assert await catalog.get("shop") == await catalog.update("shop")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"priorities": ("a",)}, "priorities may not change: its queues are named for them"),
        ({"groups": 1}, "groups may not change: it follows from qps"),
        ({"max_attempt": 1}, "no setting 'max_attempt'; did you mean 'max_attempts'"),
        ({"qps": 0}, "qps 0.0 must be"),
        ({"qps": "fast"}, "Expected `float`"),
        ({"jitter": "x"}, "Expected `float`"),
        ({"options": 5}, "topic 'shop'"),
    ],
)
async def test_update_refuses_and_says_why(catalog: Catalog, changes: dict[str, Any], text: str) -> None:
    created = await catalog.create(Topic("shop", 100))
    with pytest.raises(errors.InvalidTopic, match=text):
        await catalog.update("shop", **changes)
    assert await catalog.get("shop") == created


async def test_a_shrunk_topic_keeps_its_groups_until_they_are_retired(catalog: Catalog) -> None:
    await catalog.create(Topic("shop", 200))
    shrunk = await catalog.update("shop", qps=60)
    assert (shrunk.active_groups, shrunk.groups) == (2, 4)
    grown = await catalog.update("shop", qps=150)
    assert (grown.active_groups, grown.groups) == (3, 4)
    assert await catalog.change("shop", changing.retired, expected=shrunk) == grown, "decided on an old state"
    retired = await catalog.change("shop", changing.retired, expected=grown)
    assert (retired.active_groups, retired.groups) == (3, 3)


async def test_changes_since_a_version_lists_each_change_once(catalog: Catalog) -> None:
    assert await catalog.version() == 0
    await catalog.create_many([Topic("a", 1), Topic("b", 1), Topic("c", 1)])
    first = await catalog.changes_since(0)
    assert ([t.name for t in first.changed], first.deleted, first.all) == (["a", "b", "c"], [], False)
    await catalog.update("b", qps=2)
    await catalog.delete("c")
    second = await catalog.changes_since(first.version)
    assert ([t.qps for t in second.changed], second.deleted, second.all) == ([2.0], ["c"], False)
    assert first.version < second.version == await catalog.version()
    assert await catalog.changes_since(second.version) == (second.version, [], [], False, {})


async def test_changes_that_the_database_has_lost_are_found_and_their_versions_not_used_again(db: Database) -> None:
    seconds = [1_700_000_000]
    catalog = Catalog(db, "online", None, SystemClock(lambda: seconds[0] * 10**9, lambda: seconds[0] * 10**9))
    await catalog.create_many([Topic("kept", 1), Topic("other", 1)])
    rows = {
        table: await db.run(lambda c, t=table: c.execute(t.select()).all()) for table in (tables.meta, tables.topics)
    }
    await catalog.create(Topic("lost", 1))
    await catalog.update("kept", qps=2)
    seen = await catalog.version()

    def come_back(connection: sa.Connection) -> None:
        for table, kept in rows.items():
            connection.execute(table.delete())
            connection.execute(table.insert(), [row._asdict() for row in kept])

    await db.run(come_back)
    changes = await catalog.changes_since(seen)
    assert changes.all
    assert {topic.name: topic.qps for topic in changes.changed} == {"kept": 1, "other": 1}
    assert changes.gone(["kept", "lost", "other"]) == ["lost"]
    seconds[0] += 10
    await catalog.update("other", qps=3)
    assert await catalog.version() > seen
    heard = [topic.name for topic in (await catalog.changes_since(seen)).changed]
    assert "other" in heard, "orders given again are heard of"
    for qps in range(2, 9):
        await catalog.update("kept", qps=qps)
    seen = await catalog.version()
    await db.run(come_back)
    seconds[0] += 1
    await catalog.update("other", qps=4)
    for qps in range(2, 19):
        await catalog.update("kept", qps=qps)
    changes = await catalog.changes_since(seen)
    told = {topic.name: topic.qps for topic in changes.changed}
    assert told == {"kept": 18, "other": 4}, "a host that stood still meanwhile hears of them, too"


async def test_a_catalog_that_came_back_empty_has_lost_every_topic(catalog: Catalog, db: Database) -> None:
    await catalog.create(Topic("a", 1))
    seen = await catalog.version()
    for table in (tables.meta, tables.topics):
        await db.run(lambda c, t=table: c.execute(t.delete()))
    changes = await catalog.changes_since(seen)
    assert (changes.version, changes.changed, changes.gone(["a"])) == (0, [], ["a"])


async def test_a_topic_created_again_is_reported_as_deleted_and_changed(catalog: Catalog) -> None:
    await catalog.create(Topic("a", 500))
    seen = await catalog.version()
    await catalog.delete("a")
    again = await catalog.create(Topic("a", 50, priorities=("only",)))
    assert again.groups == 1
    changes = await catalog.changes_since(seen)
    assert (changes.changed, changes.deleted) == ([again], ["a"])
    assert (await catalog.changes_since(changes.version)).deleted == []


async def test_the_environments_share_nothing(catalog: Catalog, db: Database) -> None:
    sandbox = Catalog(db, "sandbox", None)
    await catalog.create(Topic("a", 1))
    assert (await sandbox.list(), await sandbox.version()) == ([], 0)
    await sandbox.create(Topic("a", 2))
    assert (await catalog.get("a")).qps == 1


async def test_concurrent_updates_of_one_topic_are_both_kept(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/emq.db"
    databases = [await Database.open(url) for _ in range(2)]
    one, two = (Catalog(db, "online", None) for db in databases)
    await one.create(Topic("a", 1))
    for i in range(20):
        await asyncio.gather(one.update("a", qps=i + 1), two.update("a", max_attempts=i + 1))
    topic = await one.get("a")
    assert (topic.qps, topic.options.max_attempts) == (20, 20)
    for db in databases:
        await db.close()


@pytest.mark.parametrize("fmt", ["toml", "json"])
async def test_an_export_can_be_imported_elsewhere(catalog: Catalog, db: Database, fmt: Any) -> None:
    options = TopicOptions(backoff_s=(1.5, 2.0), durability=Durability.FSYNCED, attributes={"url": "http://é"})
    await catalog.create_many([Topic("plain", 0.5), Topic("rich", 500, 100, ("a", "b"), State.PAUSED, options=options)])
    sandbox = Catalog(db, "sandbox", None)
    text = catalog_file.dump(await catalog.list(), fmt)
    imported = [model.settings_of(topic) for topic in await sandbox.put_many(catalog_file.load(text, fmt))]
    assert imported == [model.settings_of(topic) for topic in await catalog.list()]
    assert catalog_file.dump(await sandbox.list(), fmt) == text


async def test_an_import_updates_and_keeps_retired_groups_consumed(catalog: Catalog) -> None:
    await catalog.create(Topic("a", 200))
    imported = await catalog.put_many(catalog_file.load('[[topics]]\nname = "a"\nqps = 50', "toml"))
    assert [(t.active_groups, t.groups) for t in imported] == [(1, 4)]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            '[[topics]]\nname = "b"\nqps = 1\nqsp = 2',
            "topic 'b': there is no key 'qsp'; did you mean 'qps'\\?; the keys are name, qps",
        ),
        ('[[topics]]\nname = "b"\nqps = 1\noptions.burts = 2', "topic 'b': there is no key 'options.burts'"),
        ('[[topics]]\nname = "b"', "topic 'b': key 'qps' is missing"),
        ('[[topics]]\nname = "b"\nqps = -1', "qps -1.0 must be"),
        ('[[topics]]\nname = "b"\nqps = 1\n[[topics]]\nname = "b"\nqps = 2', "'b' is in the file twice"),
        ('[[topics]]\nname = "a"\nqps = 1\npriorities = ["x"]', "topic 'a': priorities may not change"),
        ("[[topics]", "not valid TOML"),
        ("topics = 3", "no list 'topics'"),
        ("topics = [3]", "entry 1 of 'topics' is 3"),
    ],
)
async def test_an_import_with_a_mistake_writes_nothing_and_names_it(catalog: Catalog, text: str, error: str) -> None:
    await catalog.create(Topic("a", 1))
    before = await catalog.version()
    with pytest.raises(errors.InvalidTopic, match=error):
        await catalog.put_many(catalog_file.load(text, "toml"))
    assert await catalog.version() == before


async def test_generations_grow_across_restarts_and_environments_count_apart(tmp_path: Path) -> None:
    for environment, expected in (("online", 1), ("online", 2), ("sandbox", 1)):
        db = await Database.open(f"sqlite:///{tmp_path}/emq.db")
        assert await db.next_generation(environment) == expected
        await db.close()


async def test_host_stats_keep_the_latest_snapshot_of_each_host(db: Database) -> None:
    await host_stats.save(db, "online", "h1", "{}", 1)
    await host_stats.save(db, "online", "h1", '{"a": 1}', 2)
    await host_stats.save(db, "online", "h2", "{}", 3)
    assert await host_stats.load(db, "online") == [("h1", '{"a": 1}', 2), ("h2", "{}", 3)]
    await host_stats.drop(db, "online", "h1")
    assert [host for host, _, _ in await host_stats.load(db, "online")] == ["h2"]


async def test_a_database_that_cannot_be_opened_says_so_in_one_line(tmp_path: Path) -> None:
    foreign = tmp_path / "notes.txt"
    foreign.write_text("this is not a database, and long enough to be looked at " * 20)
    with pytest.raises(errors.InvalidSettings, match=r"notes\.txt is not an SQLite database"):
        await Database.open(f"sqlite:///{foreign}")
    with pytest.raises(errors.DatabaseUnavailable, match="must exist"):
        await Database.open(f"sqlite:///{tmp_path / 'no/emq.db'}")
    with pytest.raises(errors.DatabaseUnavailable) as refused:
        await Database.open("postgresql://user:secret@127.0.0.1:1/emq")
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("url", ["mysql://h/db", "nonsense", "", "postgresql://h:port/db"])
async def test_a_url_that_is_no_database_is_refused_with_the_right_ones(url: str) -> None:
    with pytest.raises(errors.InvalidSettings, match="sqlite:///path/to/file"):
        await Database.open(url)


async def test_a_cancelled_caller_leaks_no_connection(db: Database) -> None:
    for _ in range(5):
        task = asyncio.ensure_future(db.next_generation("online"))
        await asyncio.sleep(0)
        task.cancel()
    assert await db.next_generation("online") >= 1


async def test_the_migrations_lead_to_the_tables(tmp_path: Path) -> None:
    await schemas.check(CATALOG, tmp_path)


async def test_what_belongs_to_a_change_is_written_with_it_or_not_at_all(catalog: Catalog) -> None:
    await catalog.create(Topic("orders", 10.0))
    called: list[str] = []

    def fails(_: sa.Connection) -> None:
        raise errors.ChangedMeanwhile("by others")

    with pytest.raises(errors.ChangedMeanwhile):
        await catalog.update("orders", qps=20.0, also=fails)
    with pytest.raises(errors.ChangedMeanwhile):
        await catalog.set_attributes("orders", {"a": "1"}, {}, also=fails)
    assert (await catalog.get("orders")).qps == 10.0
    note = {"also": lambda _: called.append("noted")}
    await catalog.set_attributes("orders", {"a": "1"}, {"b": "2"}, **note)
    assert called == [], "the topic was not as given, so nothing was changed"
    await catalog.set_attributes("orders", {"a": "1"}, {"b": ""}, **note)
    assert called == ["noted"]
    assert (await catalog.get("orders")).options.attributes == {"a": "1"}


async def test_several_topics_are_changed_together_or_not_at_all(catalog: Catalog) -> None:
    for name in ("a", "b"):
        await catalog.create(Topic(name, 10.0))
    before = await catalog.version()

    def held(_: Topic) -> dict[str, Any]:
        return {"attributes": {"held": "yes"}, "qps": 20.0}

    def released(topic: Topic) -> dict[str, Any]:
        return {} if topic.name == "a" else {"attributes": {}}

    changed = await catalog.update_many(lambda _: ["a", "b", "none"], held, {})
    assert [topic.qps for topic in changed] == [20.0] * 2
    assert [topic.options.attributes for topic in changed] == [{"held": "yes"}] * 2
    assert {topic.name for topic in (await catalog.changes_since(before)).changed} == {"a", "b"}

    def fails(_: sa.Connection) -> list[str]:
        raise errors.ChangedMeanwhile("by others")

    with pytest.raises(errors.ChangedMeanwhile):
        await catalog.update_many(fails, held, {})
    with pytest.raises(errors.InvalidTopic):
        await catalog.update_many(lambda _: ["a", "b"], lambda t: {"qps": -1.0 if t.name == "b" else 5.0}, {})
    assert [topic.name for topic in await catalog.update_many(lambda _: ["a", "b"], released, {})] == ["b"]
    attributes = {topic.name: topic.options.attributes for topic in await catalog.list()}
    assert attributes == {"a": {"held": "yes"}, "b": {}}


async def test_a_close_that_is_cancelled_ends_the_threads_of_the_database_all_the_same(tmp_path: Path) -> None:
    database = await Database.open(f"sqlite:///{tmp_path}/emq.db")
    await database.run(lambda c: c.execute(tables.meta.delete()).rowcount)
    assert database._copier is not None
    copying = database._copier._thread
    assert copying is not None
    assert copying.is_alive()
    slow = asyncio.create_task(database.run(lambda c: time.sleep(0.3)))
    await asyncio.sleep(0.05)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await database.close()
    await slow
    await until(lambda: not copying.is_alive(), 5)
