"""What the catalog promises of budgets: topics that share the qps of another topic."""

from __future__ import annotations

import pytest

from emq.database import Database
from emq.runtime import errors
from emq.topics import budgets, catalog_file, row_codec, shares
from emq.topics.catalog import Catalog
from emq.topics.model import Topic, TopicOptions
from emq.topics.shares import LEARN_S
from support.manual_clock import ManualClock

NOW_S = 1_000_000_000.25
SINCE_S = 1_000_000_000 + 1 + LEARN_S


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_S)


@pytest.fixture
def catalog(db: Database, clock: ManualClock) -> Catalog:
    return Catalog(db, "online", None, clock=clock)


def below(budget: str, name: str = "endpoint", qps: float = 10, share: float = 1.0) -> Topic:
    return Topic(name, qps, options=TopicOptions(budget=budget, share=share))


def starts_in(topic: Topic, second: int) -> int:
    """The starts of the topic's groups in a second, for a host that knows the topic as it is."""
    return shares.allowance(shares.of_groups(topic.timeline, range(topic.groups)), second)


async def test_topics_below_a_budget_start_nothing_until_every_host_knows_of_the_budget(catalog: Catalog) -> None:
    await catalog.create(Topic("tenant", 100))
    made = await catalog.create(below("tenant"))
    assert (await catalog.get("tenant")).shared_s == SINCE_S
    assert [starts_in(made, second) for second in (SINCE_S - 2, SINCE_S - 1, SINCE_S)] == [0, 0, 10]


async def test_later_topics_below_a_budget_wait_no_longer_than_the_first(catalog: Catalog, clock: ManualClock) -> None:
    await catalog.create(Topic("tenant", 100))
    await catalog.create(below("tenant"))
    clock.advance(1.0)
    soon = await catalog.create(below("tenant", "soon"))
    assert [division.since_s for division in soon.timeline] == [0, SINCE_S]
    clock.advance(LEARN_S)
    assert (await catalog.create(below("tenant", "late"))).divisions == ()
    assert (await catalog.get("tenant")).shared_s == SINCE_S


async def test_a_budget_and_its_topics_created_together_in_any_order_start_at_once(catalog: Catalog) -> None:
    made = await catalog.create_many([below("tenant"), below("provider", "tenant"), Topic("provider", 100)])
    assert [topic.name for topic in made] == ["endpoint", "tenant", "provider"]
    assert [topic.divisions for topic in made] == [(), (), ()]
    assert [(await catalog.get(name)).shared_s for name in ("provider", "tenant", "endpoint")] == [1, 1, 0]


async def test_a_change_of_the_budgets_mark_reaches_the_hosts(catalog: Catalog) -> None:
    await catalog.create(Topic("tenant", 100))
    version = await catalog.version()
    await catalog.create(below("tenant"))
    assert {topic.name for topic in (await catalog.changes_since(version)).changed} == {"tenant", "endpoint"}


async def test_a_budget_must_exist(catalog: Catalog) -> None:
    with pytest.raises(errors.UnknownTopic, match="topic 'endpoint': there is no topic 'tenant' to be its budget"):
        await catalog.create(below("tenant"))
    with pytest.raises(errors.UnknownTopic, match="'tenant'"):
        await catalog.put_many(
            catalog_file.load('[[topics]]\nname = "a"\nqps = 1\n[topics.options]\nbudget = "tenant"\n', "toml")
        )
    assert await catalog.list() == []


async def test_circles_and_towers_of_budgets_are_refused(catalog: Catalog) -> None:
    with pytest.raises(errors.InvalidTopic, match="cannot be its own budget"):
        await catalog.create(below("endpoint"))
    with pytest.raises(errors.InvalidTopic, match="in a circle"):
        await catalog.create_many([below("a", "b"), below("b", "a")])
    tower = [Topic("0", 1), *(below(str(i), str(i + 1)) for i in range(budgets.MAX_DEPTH + 1))]
    with pytest.raises(errors.InvalidTopic, match=f"more than {budgets.MAX_DEPTH}"):
        await catalog.create_many(tower)
    await catalog.create_many(tower[:-1])
    with pytest.raises(errors.InvalidTopic, match=f"more than {budgets.MAX_DEPTH}"):
        await catalog.create(tower[-1])


@pytest.mark.parametrize("share", [0.0, -1.0, 1e-9, 1e9, float("nan")])
async def test_a_share_out_of_range_is_refused(catalog: Catalog, share: float) -> None:
    await catalog.create(Topic("tenant", 100))
    with pytest.raises(errors.InvalidTopic, match="share"):
        await catalog.create(below("tenant", share=share))


async def test_a_share_may_change_and_a_budget_may_not(catalog: Catalog) -> None:
    await catalog.create_many([Topic("tenant", 100), Topic("other", 100), below("tenant")])
    assert (await catalog.update("endpoint", share=2.5)).options.share == 2.5
    for budget in ("other", None):
        with pytest.raises(errors.InvalidTopic, match="budget may not change from 'tenant'"):
            await catalog.update("endpoint", budget=budget)
    with pytest.raises(errors.InvalidTopic, match="budget may not change from 'tenant' to None"):
        await catalog.put_many(catalog_file.load('[[topics]]\nname = "endpoint"\nqps = 10\n', "toml"))


async def test_a_budget_that_topics_name_cannot_be_deleted(catalog: Catalog) -> None:
    await catalog.create_many([Topic("tenant", 100), *(below("tenant", f"e{i}") for i in range(4))])
    with pytest.raises(errors.StillNamed, match=r"'tenant' is the budget of 4 topics \('e0', 'e1', 'e2' ...\); delete"):
        await catalog.delete("tenant")
    for i in range(4):
        await catalog.delete(f"e{i}")
    await catalog.delete("tenant")
    assert await catalog.list() == []


async def test_an_export_with_budgets_can_be_imported(catalog: Catalog) -> None:
    await catalog.create_many([Topic("tenant", 100), below("tenant", "a", share=3), below("a", "b")])
    text = catalog_file.dump(await catalog.list(), "toml")
    other = Catalog(await Database.open("sqlite://"), "online", None)
    for _ in range(2):  # the second one changes nothing
        await other.put_many(catalog_file.load(text, "toml"))
        assert catalog_file.dump(await other.list(), "toml") == text
        assert [(topic.name, topic.shared_s) for topic in await other.list()] == [("a", 1), ("b", 0), ("tenant", 1)]


async def test_an_import_that_changes_a_budget_keeps_its_mark(catalog: Catalog, clock: ManualClock) -> None:
    await catalog.create(Topic("tenant", 100))
    text = """
        [[topics]]
        name = "endpoint"
        qps = 10
        [topics.options]
        budget = "tenant"
        [[topics]]
        name = "tenant"
        qps = 200
    """
    endpoint, tenant = await catalog.put_many(catalog_file.load(text, "toml"))
    assert tenant.shared_s == SINCE_S
    assert tenant == await catalog.get("tenant")
    assert endpoint.timeline[-1].since_s == SINCE_S


async def test_a_topic_created_again_below_a_budget_waits_for_both_reasons(
    catalog: Catalog, clock: ManualClock
) -> None:
    await catalog.create_many([Topic("tenant", 100), Topic("endpoint", 10)])
    clock.advance(1.0)
    await catalog.delete("endpoint")
    clock.advance(0.9)
    again = await catalog.create(below("tenant"))
    assert [division.since_s for division in again.timeline] == [0, int(clock.now()) + 1 + LEARN_S]


def test_a_plain_topic_is_stored_as_before() -> None:
    assert "shared_s" not in row_codec.encode(Topic("shop", 10, active_groups=1, groups=1), 1)


def test_the_unit_of_a_topic_is_its_root() -> None:
    topics = {t.name: t for t in (Topic("root", 9, shared_s=1), below("root", "a"), below("a", "b"), Topic("plain", 1))}
    assert [budgets.unit_of(topic, topics) for topic in topics.values()] == ["root", "root", "root", None]
    assert budgets.above(topics["b"], topics) == ["a", "root"]
    assert [t.name for t in budgets.in_order(reversed(topics.values()))] == ["plain", "root", "a", "b"]
