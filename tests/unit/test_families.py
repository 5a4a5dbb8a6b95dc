"""Families: which names they take, what their topics get from them, and how they are stored and written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from emq.database import Database, tables
from emq.runtime import errors
from emq.topics import buckets, catalog_file, families, row_codec
from emq.topics.catalog import Catalog
from emq.topics.families import Bounds, Family
from emq.topics.family_rows import AllFamilies, FamilyRows
from emq.topics.model import Kind, State, Topic, TopicOptions

FAMILYS = ("high", "low")


def family(name: str = "orders.*", qps: float = 50.0, bounds: Bounds | None = None, **settings: Any) -> Family:
    fields = {k: settings.pop(k) for k in ("priorities", "kind", "own") if k in settings}
    return Family(Topic(name, qps, options=TopicOptions(**settings), **fields), bounds or Bounds())


@pytest.fixture
def catalog(db: Database) -> Catalog:
    return Catalog(db, "online", None)


@pytest.mark.parametrize("name", ["orders", "*", "or*ders.*", "orders.?*", "orders.[a]*", "orders.**", "a/*", ""])
async def test_a_family_is_named_by_a_prefix_and_one_star(catalog: Catalog, name: str) -> None:
    with pytest.raises(errors.InvalidTopic):
        await catalog.families.create(family(name))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("orders.a", "orders.*"),
        ("orders.vip.a", "orders.vip.*"),
        ("orders.vip.", "orders.*"),
        ("orders.vip", "orders.*"),
        ("orders.", "ord*"),
        ("ordinary", "ord*"),
        ("ord", None),
        ("shop", None),
        ("", None),
    ],
)
def test_the_longest_prefix_counts_and_something_follows_it(name: str, found: str | None) -> None:
    assert families.above(name, ("ord*", "orders.*", "orders.vip.*")) == found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("orders." + "x" * 9, r"has 9 bytes behind 'orders\.', and family 'orders\.\*' takes at most 8.* name_length="),
        ("orders.a+b", r"contains '\+', and family 'orders\.\*' takes only the characters .* alphabet="),
        ("orders.é", r"contains 'é'"),
        ("orders.a b", r"contains ' '; white space"),
        ("orders.*", "reads as a pattern; leave out"),
        ("orders.[a]", "reads as a pattern; leave out"),
    ],
)
async def test_a_name_out_of_bounds_is_refused_with_the_remedy(catalog: Catalog, name: str, text: str) -> None:
    await catalog.families.create(family(bounds=Bounds(name_length=8)))
    found = (await catalog.families.make([name])).found[name]
    with pytest.raises(errors.InvalidTopic, match=text):
        raise found if isinstance(found, Exception) else AssertionError(found)
    assert await catalog.names() == []


async def test_a_topic_that_another_process_has_just_made_is_found_though_the_family_is_full(catalog: Catalog) -> None:
    await catalog.families.create(family(bounds=Bounds(max_topics=1)))
    made = await catalog.families.make(["orders.a"])
    assert (await catalog.families.make(["orders.a"])).found == made.found


async def test_names_that_make_no_topic_change_nothing_in_the_catalog(catalog: Catalog) -> None:
    await catalog.families.create(family(bounds=Bounds(max_topics=1)))
    await catalog.families.make(["orders.a"])
    version = await catalog.version()
    made = await catalog.families.make(["orders.b", "orders.ö", "shop", "orders."])
    assert {name: type(found) for name, found in made.found.items()} == {
        "orders.b": errors.FamilyFull,
        "orders.ö": errors.InvalidTopic,
    }
    assert await catalog.version() == version


@pytest.mark.parametrize(
    ("alphabet", "takes", "refuses"),
    [
        ("a-c", "abc", "-d"),
        ("-_", "-_", "a"),
        ("a-", "a-", "b"),
        ("0-9^]\\", "7^]\\", "a["),
        ("a-zA-Z", "qQ", "1"),
        ("!-~", "a+", "*?[é"),
    ],
)
async def test_an_alphabet_lists_characters_and_ranges(alphabet: str, takes: str, refuses: str) -> None:
    one = families.checked(family(bounds=Bounds(alphabet=alphabet)))
    one.check(f"orders.{takes}")
    for character in refuses:
        with pytest.raises(errors.InvalidTopic):
            one.check(f"orders.{character}")


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ({"max_topics": -1}, "max_topics -1 must be from 0"),
        ({"name_length": 0}, "name_length 0 must be at least 1"),
        ({"alphabet": "a" * 500}, "alphabet has 500 characters; write ranges, at most 256"),
        ({"alphabet": ""}, "lists no characters"),
        ({"alphabet": "z-a"}, "the range z-a runs backwards"),
    ],
)
async def test_a_bound_out_of_range_is_told(catalog: Catalog, bounds: Mapping[str, Any], text: str) -> None:
    await catalog.families.create(family())
    with pytest.raises(errors.InvalidTopic, match=text):
        await catalog.families.create(family("other.*", bounds=Bounds(**bounds)))
    with pytest.raises(errors.InvalidTopic, match=text):
        await catalog.families.change("orders.*", {}, bounds, {})
    with pytest.raises(errors.InvalidTopic, match=r"no bound 'max_topic'; did you mean 'max_topics'"):
        await catalog.families.change("orders.*", {}, {"max_topic": 5}, {})


async def test_settings_given_at_the_creation_are_the_topics_own_and_all_others_the_familys(catalog: Catalog) -> None:
    await catalog.families.create(family(qps=50, priorities=("high", "low"), max_attempts=3))
    asked = Topic("orders.a", 500.0, options=TopicOptions(jitter=0.5), own=("qps",))
    [topic] = await catalog.create_many([asked])
    assert (topic.qps, topic.active_groups, topic.priorities) == (500.0, 10, ("high", "low"))
    assert (topic.options, topic.own, topic.family) == (TopicOptions(max_attempts=3), ("qps",), "orders.*")
    [whole] = await catalog.create_many([Topic("orders.b", 50.0)])  # nobody says what was given: it is as asked
    assert whole.own == ("priorities", "max_attempts")
    [plain] = await catalog.create_many([Topic("shop", 50.0, own=("qps",))])
    assert (plain.family, plain.own) == ("", ())


async def test_a_topic_that_was_there_before_its_family_belongs_to_none(catalog: Catalog) -> None:
    await catalog.create(Topic("orders.old", 5.0))
    await catalog.families.create(family())
    await catalog.families.change("orders.*", {"qps": 70.0}, {}, {})
    assert (await catalog.get("orders.old")).qps == 5.0
    with pytest.raises(errors.InvalidTopic, match="belongs to no family"):
        await catalog.families.inherit("orders.old", ["qps"])


async def test_a_topic_takes_settings_back_but_none_that_never_change(catalog: Catalog) -> None:
    await catalog.families.create(family(max_attempts=3, priorities=FAMILYS))
    asked = Topic("orders.a", 5.0, priorities=("one",), own=("qps", "priorities"))
    await catalog.create_many([asked])
    await catalog.update("orders.a", max_attempts=9)
    topic = await catalog.families.inherit("orders.a", ["qps", "max_attempts"])
    assert (topic.qps, topic.options.max_attempts, topic.own) == (50.0, 3, ("priorities",))
    with pytest.raises(errors.InvalidTopic, match="priorities never changes"):
        await catalog.families.inherit("orders.a", ["priorities"])
    with pytest.raises(errors.InvalidTopic, match="no setting 'qp'"):
        await catalog.families.inherit("orders.a", ["qp"])
    with pytest.raises(errors.InvalidTopic, match=r"topic 'orders\.b' has no setting 'qp'; did you mean 'qps'"):
        await catalog.create_many([Topic("orders.b", 5.0, own=("qp",))])
    alike = Topic("orders.c", 50.0, priorities=FAMILYS, own=("priorities",))  # it has the family's value
    await catalog.create_many([alike])
    assert (await catalog.families.inherit("orders.c", ["priorities"])).own == ()


@pytest.mark.parametrize("field", ["priorities", "kind", "slots"])
async def test_what_never_changes_in_a_topic_never_changes_in_a_family(catalog: Catalog, field: str) -> None:
    await catalog.families.create(family())
    with pytest.raises(errors.InvalidTopic, match=f"{field} may not change"):
        await catalog.families.change("orders.*", {field: 1}, {}, {})


async def test_a_change_that_does_not_fit_a_topics_own_settings_changes_nothing(catalog: Catalog) -> None:
    await catalog.families.create(family(priorities=("high", "low")))
    await catalog.create_many([Topic("orders.a", 5.0, priorities=("one",), own=("priorities",))])
    weighted = {"priority_policy": "weighted", "weights": (2.0, 1.0)}
    with pytest.raises(errors.InvalidTopic, match=r"'orders\.a': weights"):
        await catalog.families.change("orders.*", weighted, {}, {})
    assert (await catalog.families.get("orders.*")).family.topic.options.priority_policy == "strict"


@pytest.mark.parametrize(
    ("idle_s", "text"),
    [(0.5, "idle_s 0.5 must be a number of at least 5, or none"), (math.inf, "finite"), ("soon", "idle_s")],
)
async def test_an_idle_s_out_of_range_is_told(catalog: Catalog, idle_s: Any, text: str) -> None:
    await catalog.families.create(family())
    await catalog.create(Topic("plain", 5.0))
    for call in (
        catalog.families.create(family("other.*", idle_s=idle_s)),
        catalog.families.change("orders.*", {"idle_s": idle_s}, {}, {}),
        catalog.update("plain", idle_s=idle_s),
    ):
        with pytest.raises(errors.InvalidTopic, match=text):
            await call


async def test_a_family_is_created_twice_with_the_same_settings_only(catalog: Catalog) -> None:
    made = await catalog.families.create(family())
    assert await catalog.families.create(family()) == made
    for other in (family(qps=51), family(bounds=Bounds(max_topics=5))):
        with pytest.raises(errors.TopicExists, match="exists already with other settings"):
            await catalog.families.create(other)


async def test_a_family_without_buckets_stays_so_with_its_topics(catalog: Catalog) -> None:
    await catalog.families.create(family(buckets=0))
    topic = (await catalog.families.make(["orders.a"])).found["orders.a"]
    assert isinstance(topic, Topic)
    assert buckets.bucket_of(topic, 0, {}) is None
    with pytest.raises(errors.InvalidTopic, match="buckets may not change"):
        await catalog.families.change("orders.*", {"buckets": 1_024}, {}, {})
    with pytest.raises(errors.InvalidTopic, match="buckets may not change"):
        await catalog.update("orders.a", buckets=1_024)


async def test_the_budget_of_a_family_is_there_and_stays(catalog: Catalog) -> None:
    with pytest.raises(errors.UnknownTopic):
        await catalog.families.create(family(budget="tenant"))
    await catalog.create(Topic("tenant", 100.0))
    await catalog.families.create(family(budget="tenant"))
    assert (await catalog.get("tenant")).shared_s > 0  # as a topic below it marks it, so it does not sleep
    with pytest.raises(errors.StillNamed, match=r"budget of family 'orders\.\*'"):
        await catalog.delete("tenant")
    made = (await catalog.families.make(["orders.a"])).found["orders.a"]
    assert isinstance(made, Topic)
    assert made.options.budget == "tenant"


def test_rows_of_topics_of_no_family_do_not_speak_of_families() -> None:
    plain, own = Topic("a", 1.0, active_groups=1, groups=1), ("qps", "state")
    assert "family" not in (row := row_codec.encode(plain, 1))
    assert "own" not in row
    topic = msgspec.structs.replace(plain, family="a*", own=own)
    assert row_codec.decode("a", row_codec.encode(topic, 1)) == topic


@pytest.mark.parametrize("fmt", ["toml", "json"])
def test_a_file_of_topics_has_families_too(fmt: str) -> None:
    made = [
        family(bounds=Bounds(max_topics=5), idle_s=9.0, priorities=("high", "low"), max_attempts=3),
        family("slots.*", 5.0, kind=Kind.FIXED_TIME),
    ]
    made = [families.checked(one) for one in made]
    text = catalog_file.dump([], fmt, made)
    topics, found = catalog_file.load_all(text, fmt)
    assert topics == []
    assert [*found] == made


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("max_topic = 5", "no key 'max_topic'; did you mean 'max_topics'"),
        ("max_attempts = 5", r"put it under \[families.\"orders\.\*\".options\]"),
        ("max_topics = 'many'", "max_topics"),
    ],
)
def test_a_wrong_key_of_a_family_in_a_file_is_told(table: str, text: str) -> None:
    with pytest.raises(errors.InvalidTopic, match=text):
        catalog_file.load_all(f'[families."orders.*"]\nqps = 5\n{table}\n', "toml")


async def test_a_draining_family_makes_no_topics(catalog: Catalog) -> None:
    await catalog.families.create(family())
    await catalog.families.change("orders.*", {"state": State.DRAINING}, {}, {})
    found = (await catalog.families.make(["orders.a"])).found["orders.a"]
    assert isinstance(found, errors.TopicClosed)


async def test_a_deletion_looks_for_families_only_if_need_be(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    await catalog.create_many([Topic(f"t{i}", 5.0) for i in range(3)])
    await catalog.create_many([Topic("below", 5.0, options=TopicOptions(budget="t0"))])
    asked, every = list[str](), FamilyRows.all

    def counted(rows: FamilyRows) -> AllFamilies:
        asked.append("all")
        return every(rows)

    monkeypatch.setattr(FamilyRows, "all", counted)
    await catalog.delete("t1", "t2", "below")
    assert asked == []
    await catalog.delete("t0")
    assert asked == ["all"]


async def test_a_family_that_cannot_be_read_holds_up_its_own_names_only(catalog: Catalog) -> None:
    await catalog.families.create(family())
    await catalog.families.create(family("orders.vip.*"))
    damage = sa.update(tables.families).where(tables.families.c.name == "orders.vip.*").values(body="{}")
    await catalog._db.run(lambda connection: connection.execute(damage))
    made = await catalog.families.make(["orders.a", "orders.vip.a", "shop"])
    assert isinstance(made.found["orders.a"], Topic)
    assert isinstance(made.found["orders.vip.a"], errors.InvalidTopic)  # not the topic of another family
    await catalog.create(Topic("shop", 5.0))
    await catalog.create(Topic("orders.b", 5.0))
    with pytest.raises(errors.InvalidTopic, match=r"family 'orders\.vip\.\*' cannot be read"):
        await catalog.create(Topic("orders.vip.b", 5.0))
    await catalog.delete("shop")
