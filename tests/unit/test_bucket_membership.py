"""A host is told of the groups in its buckets, and of no other, and a bucket has one owner at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, KeysView
from typing import NamedTuple

import pytest

from emq.allocation.bucket_membership import RETRY_S, BucketMembership
from emq.allocation.fenced_groups import FENCED_S
from emq.allocation.membership import Assignment, LoneMembership, Membership
from emq.runtime import errors
from emq.topics.buckets import bucket_of, is_bucket, name_of, names_of
from emq.topics.model import Topic
from support.local_cluster import Epochs, LocalCluster, LocalMembership
from support.virtual import LoopClock, virtual

pytestmark = virtual

B0, B1 = name_of("f.*", 0), name_of("f.*", 1)


class Cluster(LocalMembership):
    """A membership whose assignments the test makes.

    Attributes:
        let_go: each name that the host released, in order.
        refused: each refusal of which the host told, in order.
        insists: whether a host may take back a group that a store refused.
        planned: what the plan gives to the host; None for what is assigned.
    """

    def __init__(self, epochs: Epochs) -> None:
        super().__init__(LocalCluster(epochs), "a")
        self.let_go: list[str] = []
        self.refused: list[tuple[str, int, str]] = []
        self.insists = True
        self.planned: dict[str, int] | None = None

    def give(self, *, era: int = 0, first: Iterable[str] = (), **groups: int) -> None:
        """Assign these groups and buckets, by names that are short in Python: `B0`, `B1` and `plain`."""
        names = {"B0": B0, "B1": B1, "plain": "plain/0"}
        self.stream.assign(Assignment({names[name]: e for name, e in groups.items()}, era, first=frozenset(first)))

    async def released(self, groups: Iterable[str]) -> None:
        self.let_go += groups

    def fenced(self, group: str, epoch: int, bucket: str = "") -> bool:
        self.refused.append((group, epoch, bucket))
        return self.insists

    def given(self) -> KeysView[str]:
        return super().given() if self.planned is None else self.planned.keys()


class Told(NamedTuple):
    """An assignment as it was when the host heard it."""

    groups: dict[str, int]
    first: set[str]
    changed: set[str] | None
    era: int


class Host:
    """A host that hears its assignments."""

    def __init__(self, inner: Membership) -> None:
        self.clock = LoopClock()
        self.membership = BucketMembership(inner, self.clock)
        self._told: list[Told] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for told in self.membership.assignments():
            changed = None if told.changed is None else {*told.changed}
            self._told.append(Told(dict(told.groups), {*told.first}, changed, told.era))

    async def news(self) -> list[Told]:
        """Return what the host was told since the last call; it takes a hundredth of a second."""
        await asyncio.sleep(0.01)
        assert not self._reading.done(), self._reading.exception()
        told, self._told = self._told, []
        return told

    async def groups(self) -> dict[str, int]:
        """Return the groups that the host may consume now."""
        return (await self.news())[-1].groups

    def refuse(self, group: str, epoch: int) -> bool:
        """Let the host hear from a store that a group has a newer owner, as it comes to acquire the group."""
        return self.membership.fenced(group, epoch)

    async def stop(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


class Bench(Host):
    def __init__(self) -> None:
        self.epochs = Epochs()
        self.cluster = Cluster(self.epochs)
        super().__init__(self.cluster)

    def released(self) -> list[str]:
        """Return what the cluster was told to be released since the last call, without names that it never gave."""
        let_go, self.cluster.let_go = self.cluster.let_go, []
        return [name for name in let_go if is_bucket(name) or not name.startswith("f.")]


@pytest.fixture
async def host() -> AsyncIterator[Bench]:
    """A host with two buckets and a group of no bucket, a second after it got them."""
    bench = Bench()
    bench.cluster.give(B0=5, B1=6, plain=7)
    assert await bench.news() == [Told({"plain/0": 7}, set(), None, 0)]
    await asyncio.sleep(1)
    yield bench
    await bench.stop()


async def test_a_new_group_in_a_bucket_of_the_host_is_assigned_under_the_buckets_epoch(host: Bench) -> None:
    host.membership.place({"f.a/0": B0, "f.b/0": B1, "f.c/0": name_of("f.*", 2)})
    new = {"f.a/0", "f.b/0"}
    assert await host.news() == [Told({"f.a/0": 5, "f.b/0": 6, "plain/0": 7}, new, new | {"f.c/0"}, 0)]
    host.membership.place({})
    assert await host.news() == []
    host.membership.place({"f.b/0": None, "f.d/0": B0})
    assert await host.news() == [Told({"f.a/0": 5, "f.d/0": 5, "plain/0": 7}, {"f.d/0"}, {"f.b/0", "f.d/0"}, 0)]


async def test_the_host_is_told_of_all_groups_when_the_cluster_assigns_others(host: Bench) -> None:
    host.membership.place({"f.a/0": B0, "f.b/0": B1})
    await host.news()
    host.cluster.give(B0=5, plain=8)
    assert await host.news() == [Told({"f.a/0": 5, "plain/0": 8}, set(), None, 0)]
    host.membership.place({"f.c/0": B0})
    assert await host.news() == [Told({"f.a/0": 5, "f.c/0": 5, "plain/0": 8}, {"f.c/0"}, {"f.c/0"}, 0)]


async def test_groups_are_first_only_in_buckets_that_came_in_an_earlier_second(host: Bench) -> None:
    """In the second in which the bucket came, its former owner may have started messages of the group."""
    await asyncio.sleep(1.5 - host.clock.now() % 1)
    host.cluster.give(B0=5, B1=8)
    await host.news()
    host.membership.place({"f.a/0": B0, "f.b/0": B1})
    assert (await host.news())[-1].first == {"f.a/0"}
    await asyncio.sleep(0.4)
    host.membership.place({"f.c/0": B0, "f.d/0": B1})
    assert (await host.news())[-1].first == {"f.c/0"}
    await asyncio.sleep(0.1)
    host.membership.place({"f.e/0": B0, "f.f/0": B1})
    assert (await host.news())[-1].first == {"f.e/0", "f.f/0"}


async def test_all_groups_are_first_in_a_bucket_that_nobody_had_before(host: Bench) -> None:
    host.membership.place({"f.a/0": B1})
    await host.news()
    host.cluster.give(B0=5, plain=7)
    await host.news()
    await host.membership.released(["f.a/0"])
    host.cluster.give(B0=5, B1=9, plain=7, first=[B1])
    assert (await host.news())[-1].first == {"f.a/0"}
    host.membership.place({"f.b/0": B1})
    assert (await host.news())[-1].first == {"f.b/0"}


async def test_a_bucket_is_released_only_when_the_last_of_its_groups_is(host: Bench) -> None:
    host.membership.place({"f.a/0": B0, "f.b/0": B0, "f.c/0": B1})
    await host.news()
    host.cluster.give(B1=6, plain=7)
    assert await host.groups() == {"f.c/0": 6, "plain/0": 7}
    await host.membership.released(["f.a/0", "f.c/0"])  # it may keep the latter
    assert (await host.news(), host.released()) == ([], [])
    host.membership.place({"f.a/0": None, "f.b/0": None})  # it still drains them
    host.membership.place({"f.d/0": B0})
    assert (await host.groups(), host.released()) == ({"f.c/0": 6, "plain/0": 7}, [])
    await host.membership.released(["f.b/0"])
    assert host.released() == [B0]
    host.cluster.give(B1=6)
    await host.news()
    assert host.released() == [], "once"


async def test_a_bucket_without_groups_is_released_at_once(host: Bench) -> None:
    host.membership.place({"f.a/0": B0})
    await host.news()
    host.membership.place({"f.a/0": None})
    await host.news()
    await host.membership.released(["f.a/0"])
    assert host.released() == [], "it is still the host's own"
    host.cluster.give(plain=7)
    await host.news()
    assert host.released() == [B0, B1]
    host.cluster.give(plain=8)
    await host.news()
    assert host.released() == [], "once"


async def test_a_bucket_under_another_epoch_gives_it_to_its_groups_when_they_were_released(host: Bench) -> None:
    host.membership.place({"f.a/0": B0})
    await host.news()
    host.cluster.give(B0=8, B1=9)
    assert await host.groups() == {}, "the group is held under the former epoch"
    assert host.released() == [B1]
    await host.membership.released(["f.a/0"])
    assert await host.news() == [Told({"f.a/0": 8}, set(), {"f.a/0"}, 0)]


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_release_that_fails_is_told_again_unless_the_membership_was_lost(
    host: Bench, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    async def fail(_: Iterable[str]) -> None:
        raise errors.DatabaseUnavailable("away in this test")

    host.membership.place({"f.a/0": B0})
    await host.news()
    host.cluster.give(B1=6)
    await host.news()
    with monkeypatch.context() as patch:
        patch.setattr(host.cluster, "released", fail)
        with pytest.raises(errors.DatabaseUnavailable):
            await host.membership.released(["f.a/0"])
    if is_lost:
        host.cluster.give(era=1)
        await host.news()
    await host.membership.released([])
    assert host.released() == ([] if is_lost else [B0])


async def test_a_release_of_a_group_of_no_bucket_goes_to_the_cluster(host: Bench) -> None:
    await host.membership.released(["plain/0", "gone/0"])
    assert host.released() == ["plain/0", "gone/0"]


async def test_a_group_that_is_back_before_it_was_released_is_kept(host: Bench) -> None:
    host.membership.place({"f.a/0": B0})
    await host.news()
    host.membership.place({"f.a/0": None})
    assert await host.news() == [Told({"plain/0": 7}, set(), {"f.a/0"}, 0)]
    host.membership.place({"f.a/0": B0})
    assert await host.news() == [Told({"f.a/0": 5, "plain/0": 7}, set(), {"f.a/0"}, 0)]
    await host.membership.released(["f.a/0"])  # as the host had begun to let go of it
    host.cluster.give(plain=7)
    await host.news()
    assert host.released() == [B1]


async def test_a_group_that_comes_into_another_bucket_waits_until_it_was_released(host: Bench) -> None:
    """Also if both buckets have the same epoch, as those that one plan gives."""
    host.cluster.give(B0=5, B1=5, plain=7)
    host.membership.place({"f.a/0": B0})
    await host.news()
    host.membership.place({"f.a/0": B1})
    assert await host.news() == [Told({"plain/0": 7}, set(), {"f.a/0"}, 0)]
    host.released()
    host.cluster.give(B1=5, plain=7)
    await host.news()
    assert host.released() == []
    await host.membership.released(["f.a/0"])
    assert host.released() == [B0]
    assert [told.groups for told in await host.news()] == [{"f.a/0": 5, "plain/0": 7}]


async def test_a_group_whose_epoch_is_refused_gets_one_of_its_own_at_once_and_then_later_each_time(host: Bench) -> None:
    """A deletion took it over. If a stranger takes it again and again, the two must not rob each other for ever."""
    host.epochs.count_from(100)
    host.membership.place({"f.a/0": B0, "f.b/0": B0})
    await host.news()
    assert host.refuse("f.a/0", 5)
    assert host.cluster.refused == [("f.a/0", 5, B0)]
    assert [(told.groups, told.changed) for told in await host.news()] == [
        ({"f.a/0": 100, "f.b/0": 5, "plain/0": 7}, {"f.a/0"})
    ]
    for epoch, wait_s in ((100, FENCED_S), (101, 2 * FENCED_S)):
        assert host.refuse("f.a/0", epoch)
        assert host.refuse("f.a/0", epoch), "several calls may be refused"
        await asyncio.sleep(wait_s - 0.1)
        assert {told.groups["f.a/0"] for told in await host.news()} <= {epoch}
        await asyncio.sleep(0.1)
        assert await host.groups() == {"f.a/0": epoch + 1, "f.b/0": 5, "plain/0": 7}


async def test_an_epoch_of_its_own_holds_while_the_bucket_and_the_topic_stay(host: Bench) -> None:
    host.epochs.count_from(100)
    host.membership.place({"f.a/0": B0, "f.b/0": B0})
    await host.news()
    for group in ("f.a/0", "f.b/0"):
        host.refuse(group, 5)
    host.cluster.give(B0=5, B1=200)
    assert await host.groups() == {"f.a/0": 100, "f.b/0": 100}
    host.membership.place({"f.a/0": None})
    await host.news()
    await host.membership.released(["f.a/0"])
    host.membership.place({"f.a/0": B0})
    assert await host.groups() == {"f.a/0": 5, "f.b/0": 100}
    host.cluster.give(B0=300)
    await host.membership.released(["f.a/0", "f.b/0"])
    await host.news()
    await host.membership.released(["f.a/0", "f.b/0"])
    assert await host.groups() == {"f.a/0": 300, "f.b/0": 300}


async def test_the_next_topic_of_a_name_does_not_wait_for_what_strangers_did_to_the_former(host: Bench) -> None:
    host.epochs.count_from(100)
    for epoch in (100, 101):
        host.membership.place({"f.a/0": B0})
        await host.news()
        host.refuse("f.a/0", 5)
        assert (await host.groups())["f.a/0"] == epoch
        host.membership.place({"f.a/0": None})
        await host.news()
        await host.membership.released(["f.a/0"])


async def test_a_refused_group_does_not_keep_its_bucket_from_being_released(host: Bench) -> None:
    host.membership.place({"f.a/0": B0})
    await host.news()
    host.cluster.give(B1=6)
    await host.news()
    assert not host.refuse("f.a/0", 5), "the plan took it away"
    host.cluster.give(B1=6)
    await host.news()
    assert (host.released(), host.cluster.refused) == ([B0], [])


async def test_a_refusal_of_a_former_epoch_changes_nothing(host: Bench) -> None:
    host.membership.place({"f.a/0": B0})
    await host.news()
    assert not host.refuse("f.a/0", 4)
    assert host.refuse("plain/0", 7)
    assert host.cluster.refused == [("plain/0", 7, "")]
    assert await host.news() == []
    host.cluster.give(B1=6)
    await host.news()
    assert host.released() == [], "it is held"


async def test_a_host_alone_takes_a_group_back_once_and_then_leaves_it_to_the_stranger() -> None:
    epochs = Epochs()
    host = Host(LoneMembership("a", epochs))
    await host.membership.join()
    await host.membership.offer({B0: 1.0, B1: 1.0})
    host.membership.place({"f.a/0": B0})
    assert await host.groups() == {"f.a/0": 1}
    assert not host.refuse("f.a/0", 1)
    assert await host.groups() == {"f.a/0": 2}
    assert not host.refuse("f.a/0", 2)
    await asyncio.sleep(3_000)
    host.membership.place({"f.b/0": B0})
    assert await host.groups() == {"f.a/0": 2, "f.b/0": 1}
    await host.stop()


async def test_an_epoch_that_the_database_cannot_give_is_asked_for_again(host: Bench) -> None:
    host.epochs.count_from(100)
    host.epochs.down = True
    host.membership.place({"f.a/0": B0})
    await host.news()
    host.refuse("f.a/0", 5)
    await asyncio.sleep(3 * RETRY_S)
    assert {told.groups["f.a/0"] for told in await host.news()} == {5}
    host.epochs.down = False
    await asyncio.sleep(RETRY_S)
    assert await host.groups() == {"f.a/0": 100, "plain/0": 7}


async def test_a_group_that_is_gone_gets_no_epoch(host: Bench) -> None:
    host.epochs.down = True
    host.membership.place({"f.a/0": B0})
    await host.news()
    host.refuse("f.a/0", 5)
    await host.news()
    host.membership.place({"f.a/0": None})
    host.epochs.down = False
    await asyncio.sleep(2 * RETRY_S)
    host.membership.place({"f.a/0": B0})
    assert await host.groups() == {"f.a/0": 5, "plain/0": 7}


async def test_a_membership_that_was_lost_forgets_what_it_held_and_releases_nothing_of_it(host: Bench) -> None:
    host.membership.place({"f.a/0": B0, "f.b/0": B1})
    await host.news()
    host.refuse("f.b/0", 6)
    await host.news()
    host.membership.place({"f.c/0": name_of("f.*", 2), "f.d/0": B0, "f.e/0": B0})
    host.cluster.give(era=1)
    assert await host.news() == [Told({}, set(), None, 1)]
    host.membership.place({"f.d/0": None, "f.e/0": name_of("f.*", 2)})
    await host.membership.released(["f.a/0"])
    assert host.released() == []
    host.cluster.give(era=1, B0=8, B1=9)
    assert await host.news() == [Told({"f.a/0": 8, "f.b/0": 9}, set(), None, 1)]
    await host.membership.released(["f.a/0", "f.b/0"])
    await host.news()
    assert host.released() == []
    host.cluster.give(era=2, B0=8)
    assert await host.news() == [Told({"f.a/0": 8}, set(), None, 2)]
    assert host.released() == []


async def test_given_names_the_groups_of_the_plan_also_those_that_others_still_hold(host: Bench) -> None:
    host.membership.place({"f.a/0": B0, "f.b/0": B1, "f.c/0": name_of("f.*", 2)})
    host.cluster.give(B0=5, plain=7)
    await host.news()
    assert host.membership.given() == {"f.a/0", "plain/0"}
    host.cluster.planned = {B0: 5, B1: 8, "plain/0": 7, "other/0": 8}
    assert host.membership.given() == {"f.a/0", "f.b/0", "plain/0", "other/0"}


async def test_a_reader_that_broke_is_told_of_all_groups_again(host: Bench) -> None:
    host.membership.place({"f.a/0": B0})
    await host.news()
    await host.stop()
    async for told in host.membership.assignments():
        assert (told.groups, told.changed) == ({"f.a/0": 5, "plain/0": 7}, None)
        break


async def test_a_host_that_joins_gets_a_group_when_the_former_owner_has_released_it() -> None:
    """Under a higher epoch; and the groups of topics that are made later, too, without an offer."""
    cluster = LocalCluster(Epochs())
    a, b = Host(cluster.member("a")), Host(cluster.member("b"))
    groups = {f"f.{i}/0": bucket_of(Topic(f"f.{i}", 1.0, family="f.*"), 0, {}) for i in range(300)}
    await a.membership.join()
    await a.membership.offer(dict.fromkeys(names_of("f.*"), 1.0))
    for host in (a, b):
        host.membership.place(dict(list(groups.items())[:200]))
    before = await a.groups()
    assert before.keys() == dict(list(groups.items())[:200]).keys()
    await b.membership.join()
    kept = await a.groups()
    lost = before.keys() - kept
    assert 80 < len(lost) < 120
    assert await b.groups() == {}
    for host in (a, b):
        host.membership.place(dict(list(groups.items())[200:]))
    new_a, new_b = (await a.groups()).keys() - kept, await b.groups()
    assert not new_a & new_b.keys()
    assert 40 < len(new_b) < 60
    waiting = {group for group in list(groups)[200:] if group not in new_a and group not in new_b}
    assert {groups[group] for group in waiting} <= {groups[group] for group in lost}
    await a.membership.released(lost)
    after = await b.groups()
    assert after.keys() == lost | waiting | new_b.keys()
    assert all(after[group] > before[group] for group in lost)
    assert not any(map(is_bucket, after))
    for host in (a, b):
        await host.stop()
