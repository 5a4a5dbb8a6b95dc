"""Which bucket a group is in, and which quotas and buckets a host offers to its membership."""

from __future__ import annotations

import collections
from typing import Any

import msgspec
import pytest

from emq.host.group_quotas import GroupQuotas
from emq.topics import buckets
from emq.topics.model import Topic, TopicOptions, split

NAMES = ("f.*", "g.*")


def topic(name: str, qps: float = 10.0, *, family: str = "", budget: str | None = None, **fields: Any) -> Topic:
    """Return a topic of one group for each 50 starts a second."""
    return split(Topic(name, qps, family=family, options=TopicOptions(budget=budget), **fields))


def bucket_of(name: str, index: int = 0, **topics: Topic) -> str | None:
    """Return the bucket of a group of the topic of this name, among others."""
    known = {one.name: one for one in topics.values()}
    return buckets.bucket_of(known[name], index, known)


# ---------------------------------------------------------------------------------------------------------- the buckets


def test_only_a_topic_of_a_family_has_buckets_and_they_never_change() -> None:
    """From one version to the next, too: a host of another version would consume other groups of the same bucket."""
    assert bucket_of("f.a", a=topic("f.a")) is None
    assert bucket_of("f.a", a=topic("f.a", family="f.*")) == "f.*/bucket/43"
    assert bucket_of("f.a", 1, a=topic("f.a", 100, family="f.*")) == "f.*/bucket/189"


def test_the_topics_of_a_family_are_spread_over_its_buckets() -> None:
    found = {bucket_of(f"f.{i}", i=topic(f"f.{i}", family="f.*")) for i in range(10_000)}
    assert found == {*buckets.names_of("f.*")}


def test_topics_below_a_budget_share_the_bucket_of_its_first_group() -> None:
    root = topic("f.root", 100, family="f.*", shared_s=1)
    middle = topic("f.middle", 100, family="f.*", budget="f.root", shared_s=1)
    below = topic("f.below", 100, family="f.*", budget="f.middle")
    stranger = topic("stranger", 100, budget="f.root")
    all_of_them = {"root": root, "middle": middle, "below": below, "stranger": stranger}
    found = {bucket_of(one.name, index, **all_of_them) for one in all_of_them.values() for index in range(one.groups)}
    assert found == {bucket_of("f.root", root=topic("f.root", family="f.*"))}
    assert bucket_of("f.below", 1, below=below, middle=topic("f.middle", family="f.*")) == bucket_of(
        "f.middle", middle=topic("f.middle", family="f.*")
    )


def test_a_root_outside_of_a_family_keeps_the_topics_below_it_out_of_buckets() -> None:
    root, below = topic("root", shared_s=1), topic("f.below", family="f.*", budget="root")
    assert bucket_of("f.below", root=root, below=below) is None
    assert bucket_of("f.below", below=below) is None, "a budget that is not known yet"


def test_names_tell_buckets_from_groups_and_name_their_family() -> None:
    names = buckets.names_of("orders.*")
    assert (len(names), names[17]) == (buckets.BUCKETS, "orders.*/bucket/17")
    assert all(map(buckets.is_bucket, names))
    assert {buckets.family_of(name) for name in (*names, "orders.*/bucket")} == {"orders.*"}
    for group in ("orders.a/0", "bucket/17", "orders.bucket/17", "orders.*/17"):
        assert (buckets.is_bucket(group), buckets.family_of(group)) == (False, None)


# ----------------------------------------------------------------------------------------------------------- the quotas


class Catalog:
    """The topics that a host knows, and the quotas that it computes from them."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.quotas = GroupQuotas(self.topics)

    async def change(self, *changed: Topic, gone: tuple[str, ...] = (), families: tuple[str, ...] = NAMES) -> None:
        """Do as `CatalogLoop` does after a look."""
        self.quotas.forget(gone)
        for name in gone:
            self.topics.pop(name, None)
        self.topics |= {one.name: one for one in changed}
        await self.quotas.follow(changed, dict.fromkeys(families, buckets.BUCKETS))

    def moved(self) -> dict[str, str | None]:
        """Return the groups that moved since the last call."""
        moved, self.quotas.moved = self.quotas.moved, {}
        return moved

    def offers(self) -> bool:
        """Return whether there is something new to offer since the last call."""
        is_new, self.quotas.is_new = self.quotas.is_new, False
        return is_new

    def alone(self) -> dict[str, float]:
        """Return the quotas of groups that are in no bucket."""
        return {name: quota for name, quota in self.quotas.all().items() if not buckets.is_bucket(name)}

    def families(self) -> set[str]:
        """Return the families whose buckets are offered, each of which has the least load."""
        found = {name: load for name, load in self.quotas.all().items() if buckets.is_bucket(name)}
        assert {*found.values()} <= {buckets.LEAST_LOAD}
        return {str(buckets.family_of(name)) for name in found}


def placed(name: str, groups: int = 1, family: str = "f.*") -> dict[str, str | None]:
    """Return the buckets of the groups of a topic of a family."""
    known = topic(name, family=family)
    return {known.group(index): buckets.bucket_of(known, index, {}) for index in range(groups)}


@pytest.fixture
async def catalog() -> Catalog:
    """Two families, and one topic of no family; both have been offered."""
    made = Catalog()
    await made.change(topic("plain", 100))
    assert (made.offers(), made.moved()) == (True, {})
    return made


async def test_all_buckets_of_each_family_are_offered_and_groups_of_no_bucket_by_themselves(catalog: Catalog) -> None:
    assert catalog.alone() == {"plain/0": 50, "plain/1": 50}
    assert len(catalog.quotas.all()) == 2 + 2 * buckets.BUCKETS
    assert catalog.families() == {"f.*", "g.*"}


async def test_a_change_of_a_group_of_no_bucket_is_offered(catalog: Catalog) -> None:
    for changed in (topic("plain", 90), topic("plain", 90, shared_s=1), topic("new", 5)):
        await catalog.change(changed)
        assert catalog.offers()
        await catalog.change(topic("f.a", 0.5, family="f.*"))
        assert not catalog.offers()
    await catalog.change(gone=("new",))
    assert (catalog.offers(), catalog.alone()) == (True, {"plain/0": 45, "plain/1": 45})


async def test_a_topic_of_a_family_moves_into_its_buckets_and_changes_no_offer(catalog: Catalog) -> None:
    await catalog.change(topic("f.a", 0.5, family="f.*"))
    assert (catalog.offers(), catalog.moved()) == (False, placed("f.a"))
    await catalog.change(topic("f.a", 0.5, family="f.*"))
    assert (catalog.offers(), catalog.moved()) == (False, {}), "it has not changed"
    await catalog.change(gone=("f.a",))
    assert (catalog.offers(), catalog.moved()) == (False, {"f.a/0": None})
    assert catalog.alone() == {"plain/0": 50, "plain/1": 50}


async def test_what_is_awake_in_a_bucket_follows_its_topics_without_an_offer(catalog: Catalog) -> None:
    await catalog.change(*(topic(f"f.{i}", 50, family="f.*") for i in range(2_000)))
    expected = collections.Counter(bucket for i in range(2_000) for bucket in placed(f"f.{i}").values())
    assert catalog.quotas.awake == {bucket: 50 * count for bucket, count in expected.items()}
    assert max(expected.values()) > 2, "buckets have several"
    [bucket] = placed("f.7").values()
    await catalog.change(topic("f.7", 10, family="f.*"))
    assert catalog.quotas.awake[bucket] == 50 * expected[bucket] - 40, "it was given less"
    await catalog.change(gone=tuple(f"f.{i}" for i in range(2_000)))
    assert (catalog.quotas.awake, catalog.offers()) == ({}, False)


async def test_a_topic_that_grows_and_shrinks_moves_the_groups_that_come_and_go(catalog: Catalog) -> None:
    await catalog.change(topic("f.a", 50, family="f.*"))
    assert catalog.moved() == placed("f.a")
    await catalog.change(topic("f.a", 500, family="f.*"))
    ten = placed("f.a", 10)
    assert catalog.moved() == {group: ten[group] for group in ten if group != "f.a/0"}
    assert len(set(ten.values())) == 10
    await catalog.change(topic("f.a", 50, family="f.*"))
    assert catalog.moved() == {group: None for group in ten if group != "f.a/0"}
    assert catalog.quotas.awake == {ten["f.a/0"]: 50}, "the groups that went took their loads with them"


async def test_a_topic_deleted_and_made_again_within_one_look_is_where_it_belongs(catalog: Catalog) -> None:
    """Whether it is of the same family, of none any more, or of one for the first time."""
    await catalog.change(topic("f.a", 100, family="f.*"))
    catalog.moved()
    await catalog.change(topic("f.a", 50, family="f.*"), gone=("f.a",))
    assert catalog.moved() == {**placed("f.a"), "f.a/1": None}
    catalog.offers()
    await catalog.change(topic("f.a", 50), gone=("f.a",))
    assert (catalog.offers(), catalog.moved(), catalog.alone()["f.a/0"]) == (True, {"f.a/0": None}, 50)
    assert catalog.quotas.awake == {}
    await catalog.change(topic("f.a", 50, family="f.*"), gone=("f.a",))
    assert (catalog.offers(), catalog.moved()) == (True, placed("f.a"))
    assert "f.a/0" not in catalog.alone()


@pytest.mark.parametrize("joins", [True, False])
async def test_a_topic_whose_family_the_host_learns_later_leaves_no_group_behind(catalog: Catalog, joins: bool) -> None:
    """The host has not heard of a deletion between the two."""
    await catalog.change(topic("f.a", 50, family="" if joins else "f.*"))
    catalog.offers()
    catalog.moved()
    await catalog.change(topic("f.a", 50, family="f.*" if joins else ""))
    assert catalog.offers()
    assert catalog.moved() == (placed("f.a") if joins else {"f.a/0": None})
    assert ("f.a/0" in catalog.alone()) is not joins


async def test_the_buckets_of_families_that_come_and_go_are_offered_and_no_longer(catalog: Catalog) -> None:
    await catalog.change(families=("g.*", "f.*"))
    assert not catalog.offers(), "in another order"
    await catalog.change(families=("f.*",))
    assert (catalog.offers(), catalog.families()) == (True, {"f.*"})
    await catalog.change(families=("f.*", "h.*"))
    assert (catalog.offers(), catalog.families()) == (True, {"f.*", "h.*"})
    await catalog.change(topic("h.a", 1_000, family="h.*"), families=("f.*", "h.*"))
    assert (catalog.offers(), sum(catalog.quotas.awake.values())) == (False, 1_000)
    await catalog.change(gone=("h.a",), families=("f.*",))
    assert (catalog.offers(), catalog.families(), catalog.quotas.awake) == (True, {"f.*"}, {})


async def test_units_name_the_topics_of_budgets_that_are_in_no_bucket(catalog: Catalog) -> None:
    root, inside = topic("root", 100, shared_s=1), topic("f.root", 100, family="f.*", shared_s=1)
    await catalog.change(root, topic("below", 100, budget="root"), inside)
    await catalog.change(topic("f.below", 100, family="f.*", budget="f.root"))
    await catalog.change(topic("f.guest", 100, family="f.*", budget="root"))
    assert catalog.offers()
    assert catalog.quotas.units() == {"root": "root", "below": "root", "f.guest": "root"}
    assert {group: quota for group, quota in catalog.alone().items() if not group.startswith("plain")} == {
        "root/0": 50,
        "root/1": 50,
        **dict.fromkeys(("below/0", "below/1", "f.guest/0", "f.guest/1"), 0),
    }
    await catalog.change(gone=("below",))
    assert catalog.quotas.units() == {"root": "root", "f.guest": "root"}


async def test_what_is_awake_follows_a_family_made_again_with_other_buckets(catalog: Catalog) -> None:
    """A host may see both changes in one look."""
    many = topic("f.a", 50, family="f.*")
    few = msgspec.structs.replace(many, options=TopicOptions(buckets=4))
    await catalog.change(few)
    await catalog.change(many)
    [bucket] = {buckets.bucket_of(many, 0, {})}
    assert catalog.quotas.awake == {bucket: 50}
    await catalog.change(gone=("f.a",))
    assert catalog.quotas.awake == {}


async def test_many_topics_of_next_to_no_quota_add_up(catalog: Catalog) -> None:
    tiny = [topic(f"f.{i}", 0.0001, family="f.*") for i in range(3_000)]
    await catalog.change(*tiny)
    assert sum(catalog.quotas.awake.values()) == pytest.approx(0.3)
    await catalog.change(gone=tuple(one.name for one in tiny))
    assert catalog.quotas.awake == {}
