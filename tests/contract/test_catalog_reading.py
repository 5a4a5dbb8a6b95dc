"""Reading the catalog costs what is asked for, not what exists, on each database."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
import sqlalchemy as sa

from emq.database import Database
from emq.runtime import errors
from emq.topics import topic_changes
from emq.topics.catalog import Catalog
from emq.topics.families import Family
from emq.topics.model import Topic, TopicOptions

NAMES = ["a", "a-1", "a.", "a.b", "a.b.c", "a.é", "a.\U0010ffff", "a.\U0010ffff.b", "aZ", "a_b", "a%b"]
NAMES += ["A.b", "b", "é.a", "\ud7ff", "\ud7ff.x", "\ue000", "\U0010ffff", "\U0010ffffa"]
STORED = sorted(NAMES)


@pytest.fixture
async def catalog(db: Database) -> Catalog:
    catalog = Catalog(db, "online", None)
    await catalog.create_many([Topic(name, 1) for name in NAMES])
    await catalog.create(Topic("a.gone", 1))
    await catalog.delete("a.gone")
    return catalog


async def test_names_that_begin_alike_are_found_whatever_their_characters(catalog: Catalog) -> None:
    patterns = ["*", "a", "a*", "a.*", "a.b*", "a.?", "[ab].b", "a_*", "a%*", "a.\U0010ffff*", "\U0010ffff*", "A.*"]
    for pattern in [*patterns, "\ud7ff*", "é*", "nothing*", "nothing", "a\0", "a\0*", ""]:
        wanted = [name for name in STORED if fnmatch.fnmatchcase(name, pattern)]
        assert list(await catalog.names(pattern)) == wanted, pattern
        assert [topic.name for topic in await catalog.list(pattern)] == wanted, pattern
    for start in ("", "a.", "a.\U0010ffff", "\ud7ff", "A", "a\0", "\ud800"):
        wanted = [name for name in STORED if name.startswith(start)]
        assert await catalog.beginning(start, 100) == wanted, start
        assert await catalog.beginning(start, 2, wanted[0] if wanted else "") == wanted[1:3], start
    assert await catalog.beginning("a", 100, "a\0") == []


async def plans_of(db: Database, reads: Callable[[], Awaitable[object]]) -> list[str]:
    """Return how the database finds the rows of topics in each of these reads."""
    seen: list[tuple[str, object]] = []

    def note(_c: object, _cursor: object, text: str, parameters: object, *_: object) -> None:
        seen.append((text, parameters))

    sa.event.listen(db._engine, "before_cursor_execute", note)
    await reads()
    sa.event.remove(db._engine, "before_cursor_execute", note)
    explain = "EXPLAIN" if db.dialect == "postgresql" else "EXPLAIN QUERY PLAN"

    def plans(connection: sa.Connection) -> list[str]:
        if db.dialect == "postgresql":  # which else reads so few rows one after the other
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        looks = [(text, parameters) for text, parameters in seen if text.startswith("SELECT emq_topics")]
        return [
            "\n".join(str(row[-1]) for row in connection.exec_driver_sql(f"{explain} {text}", parameters))  # type: ignore[arg-type]
            for text, parameters in looks
        ]

    return await db.run(plans)


async def test_names_that_begin_alike_are_read_along_the_key(catalog: Catalog, db: Database) -> None:
    async def reads() -> None:
        await catalog.list("a.*")
        await catalog.names("a.b")
        await catalog.beginning("a.", 10, "a.b")
        with pytest.raises(errors.UnknownTopic):
            await catalog.get("a.unknown")

    found = await plans_of(db, reads)
    assert len(found) == 4
    ranges = [
        plan for plan in found if ("name>?" in plan and "name<?" in plan) or ("name >= " in plan and "name < " in plan)
    ]
    assert len(ranges) == 3, found
    assert all("Index Cond" in plan or "SEARCH" in plan for plan in found)


async def test_a_reading_of_the_whole_catalog_looks_only_at_topics_that_are_awake(
    catalog: Catalog, db: Database
) -> None:
    options = TopicOptions(idle_s=60.0)
    await catalog.create_many([Topic(f"s.{i}", 1, options=options) for i in range(300)])
    names = await catalog.names("s.*")
    slept = await catalog.families.sleep(await catalog.families.versions(names), lambda *_: None)
    assert slept == set(names)
    if db.dialect == "postgresql":
        await db.run(lambda connection: connection.exec_driver_sql("ANALYZE emq_topics"))
    [plan] = await plans_of(db, lambda: catalog.changes_since(0))
    assert "emq_topics_live" in plan, plan
    assert "live=? AND version>?" in plan or "(live = 1)" in plan, plan
    assert sorted(topic.name for topic in (await catalog.changes_since(0)).changed) == STORED
    assert len(await catalog.list()) == len(STORED) + 300


async def test_a_host_reads_the_catalog_in_parts_first_what_others_need(
    catalog: Catalog, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_changes, "PAGE", 7)
    await catalog.families.create(Family(Topic("f.*", 1, options=TopicOptions(idle_s=60.0))))
    await catalog.create_many([Topic("f..root", 5), *(Topic(f"f.{i}", 1) for i in range(20))])
    await catalog.create(Topic("f.below", 1, options=TopicOptions(budget="f..root")))  # so the root's row is the newest
    [slept] = await catalog.families.sleep(await catalog.families.versions(["f.3"]), lambda *_: None)
    parts, after = list[list[str]](), None
    changes, after = await catalog.begun()
    parts.append([topic.name for topic in changes.changed])
    await catalog.update("f.0", qps=2)  # comes in a later part, or with the changes since
    await catalog.delete("f.19")
    while after is not None:
        part, after = await catalog.more(changes.version, after)
        assert part.version == changes.version
        parts.append([topic.name for topic in part.changed])
    assert {*STORED, "f..root"} <= set(parts[0])
    assert len(parts[0]) == len(STORED) + 1 + 7
    assert max(map(len, parts[1:])) == 7
    told = Counter(name for part in parts for name in part)
    told.update(topic.name for topic in (await catalog.changes_since(changes.version)).changed)
    rest = {f"f.{i}" for i in range(20)} - {slept, "f.19"}
    assert told.keys() - {"f.19"} == {*STORED, "f..root", "f.below", *rest}
    plans = await plans_of(db, lambda: catalog.more(changes.version, (1, "")))
    assert all("emq_topics_live" in plan or "live = 1" in plan for plan in plans), plans


async def test_the_names_of_what_changed_are_told_without_the_topics(catalog: Catalog, db: Database) -> None:
    seen = await catalog.version()
    assert await catalog.changed_names(seen) == (seen, [], [], False)
    await catalog.update("a", qps=2)
    await catalog.delete("b", "a.b")
    await catalog.create_many([Topic("b", 1), Topic("new", 1)])
    version, changed, deleted, lost = await catalog.changed_names(seen)
    assert version == await catalog.version() > seen
    assert (sorted(changed), sorted(deleted), lost) == (["a", "a.b", "b", "new"], ["a.b", "b"], False)
    assert await catalog.changed_names(version + 5) == (version, [], [], True), "the database came back without changes"
    assert await catalog.changed_names(0) == (version, [], [], False)
    assert await Catalog(db, "sandbox", None).changed_names(0) == (0, [], [], False)
