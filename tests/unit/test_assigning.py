"""What a host takes and lets go of, as it is assigned, taken away, refused, and assigned again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Set
from typing import Any, cast
from unittest import mock

import pytest

from emq.allocation.bucket_membership import BucketMembership
from emq.allocation.membership import Assignment
from emq.groups.owned import OwnedGroup
from emq.host.assignments import COMPARE_S, EARLIEST, LATEST, LOOK_S, Assignments
from emq.host.catalog_loop import CatalogLoop
from emq.host.letting_go import LettingGo
from emq.host.ownership import Acquired, Ownership
from emq.runtime import errors
from emq.runtime.guard import Guard
from support.virtual import LoopClock, virtual
from support.waiting import until

pytestmark = virtual


class Group:
    """As much of an owned group as the assignments look at."""

    def __init__(self, name: str, epoch: int) -> None:
        self.name = name
        self.epoch = epoch
        self.stopping = False


class Host:
    """A membership that assigns what it is told to, and an ownership that takes and drains on demand.

    Attributes:
        groups: what is owned, by name.
        step_s: seconds that each group takes to be acquired or forgotten.
        breaks: called with the names of groups that are to be acquired; may raise anything.
        refuse: epochs that the stores refuse, by group.
        drained: while it is not set, what is let go of has messages in flight.
        said: while it is not set, the cluster does not answer who says that groups are released.
        told: what happened, in order.
        let_go_at: how far into a second groups were let go of.
    """

    def __init__(self) -> None:
        self.assigned: asyncio.Queue[Assignment] = asyncio.Queue()
        self.groups: dict[str, Group] = {}
        self.step_s = 0.0
        self.refuse: dict[str, int] = {}
        self.breaks: Callable[[Iterable[str]], None] = lambda names: None
        self.drained = asyncio.Event()
        self.drained.set()
        self.said = asyncio.Event()
        self.said.set()
        self.told: list[str] = []
        self.begun_at_once: list[str] = []
        self.let_go_at: list[float] = []

        self.catalog = catalog = mock.create_autospec(CatalogLoop)  # always new enough
        self.assignments = Assignments(
            cast(BucketMembership, self), cast(Ownership, self), cast(LettingGo, self), catalog, LoopClock(), 10.0
        )

    def assign(self, era: int = 0, *first: str, **groups: int) -> None:
        self.assigned.put_nowait(Assignment(groups, era, first=frozenset(first)))

    async def owns(self, **groups: int) -> None:
        await until(lambda: {name: group.epoch for name, group in self.groups.items()} == groups, 10)

    @contextlib.asynccontextmanager
    async def running(self, **groups: int) -> AsyncIterator[None]:
        """Run; the block begins when the host owns these groups."""
        loops = {"membership": self.assignments.follow, "allocation": self.assignments.carry_out}
        tasks = Guard().start(loops)
        try:
            if groups:
                self.assign(**groups)
                await self.owns(**groups)
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # ---------------------------------------------------------------------------------------- of the membership

    async def assignments_of(self) -> AsyncIterator[Assignment]:
        while True:
            yield await self.assigned.get()

    async def released(self, groups: Iterable[str]) -> None:
        await self.said.wait()
        self.told += [f"released {group}" for group in groups]

    def fenced(self, group: str, epoch: int, was_held: bool) -> None:
        self.told.append(f"fenced {group} {epoch}")

    # ----------------------------------------------------------------------------------------- of the ownership

    @property
    def consumed(self) -> dict[str, int]:
        return {name: group.epoch for name, group in self.groups.items() if not group.stopping}

    async def acquire(
        self, assigned: Mapping[str, int], look: object, still: Callable[[], bool], first: Set[str]
    ) -> Acquired:
        self.breaks(assigned)
        self.begun_at_once += sorted(first)
        refused = [name for name, epoch in assigned.items() if self.refuse.get(name) == epoch]
        for name, epoch in assigned.items():
            await asyncio.sleep(self.step_s)
            if not still():
                return Acquired()
            assert name not in self.groups, "it is owned already"
            self.told.append(f"acquire {name} {epoch}")
            if name not in refused:
                self.groups[name] = Group(name, epoch)
        return Acquired(refused)

    async def releasing(self, names: Iterable[str], drain_s: float) -> AsyncIterator[list[str]]:
        names = list(names)
        self.let_go_at.append(LoopClock().now() % 1.0)
        await self.drained.wait()
        for name in names:
            self.groups.pop(name, None)
        yield names

    async def abandon(self, group: Any, drain_s: float) -> None:
        self.told.append(f"abandon {group.name}")
        self.groups.pop(group.name, None)

    async def forget_all(self) -> None:
        self.told.append("forget all")
        for name in [*self.groups]:
            await asyncio.sleep(self.step_s)
            del self.groups[name]

    def lost(self, group: Any) -> None:
        self.groups.pop(group.name, None)

    async def look_at_lanes(self) -> None:
        self.told.append("look at lanes")


@pytest.fixture
async def h() -> Host:
    made = Host()
    # One double plays both parts; the name is taken by the part under test.
    made.assignments._membership = cast(BucketMembership, _Part(made))
    return made


class _Part:
    def __init__(self, of: Host) -> None:
        self.assignments = of.assignments_of
        self.released = of.released
        self.fenced = of.fenced


async def test_a_group_that_is_assigned_anew_is_taken_when_it_has_been_let_go_of(h: Host) -> None:
    async with h.running(a=1, b=1):
        h.drained.clear()
        h.assign(a=2, b=1)
        await asyncio.sleep(5)
        assert h.groups["a"].epoch == 1
        h.drained.set()
        await h.owns(a=2, b=1)
        assert h.told[2:] == ["released a", "acquire a 2"]


async def test_a_group_that_no_host_had_begins_at_once_but_only_the_first_time(h: Host) -> None:
    async with h.running(a=1):
        h.assign(0, "b", a=1, b=2)
        await h.owns(a=1, b=2)
        assert h.begun_at_once == ["b"]
        h.assignments.shrunk(cast(OwnedGroup, h.groups["b"]))
        await until(lambda: h.told[-1] == "acquire b 2" and h.told.count("acquire b 2") == 2, 10)
        h.assign(a=1)
        await h.owns(a=1)
        h.assign(a=1, b=3)
        await h.owns(a=1, b=3)
        assert h.begun_at_once == ["b"]


async def test_a_group_that_went_to_another_host_before_it_began_here_does_not_begin_at_once_later(h: Host) -> None:
    """The database was away when the host was given the group for the first time."""
    async with h.running(a=1):
        look_for = cast(mock.Mock, h.catalog.look_for)
        look_for.side_effect = errors.DatabaseUnavailable("away")
        h.assign(0, "b", a=1, b=2)
        await until(lambda: look_for.call_count > 1, 10)
        h.assign(a=1)
        await until(lambda: "released b" in h.told, 10)
        look_for.side_effect = None
        h.assign(a=1, b=3)
        await h.owns(a=1, b=3)
        assert h.begun_at_once == []


async def test_no_group_is_tried_again_while_another_part_is_being_acquired(
    h: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emq.host.assignments.TOGETHER", 1)
    tried: list[str] = []

    def breaks(names: Iterable[str]) -> None:
        tried.extend(names)
        if tried == ["a", "b"]:
            raise errors.DatabaseUnavailable("away")

    h.breaks, h.step_s = breaks, 1.5 * LOOK_S
    async with h.running():
        h.assign(a=1, b=1, c=1)
        await h.owns(a=1, b=1, c=1)
    assert tried == ["a", "b", "c", "b"]


async def test_what_is_taken_away_before_it_was_acquired_is_not_remembered(h: Host) -> None:
    """Strangers may make topics that come and go while the store is away."""
    async with h.running(a=1):
        h.step_s = 3_600.0
        for epoch in range(2, 12):
            h.assign(0, f"g{epoch}", **{"a": 1, f"g{epoch}": epoch})
            await asyncio.sleep(1.0)
        assert len(h.assignments._first) <= 1


async def test_a_group_is_not_taken_again_before_it_is_said_to_be_released(h: Host) -> None:
    """The others would take that for a word about the newer ownership."""
    async with h.running(a=1):
        h.said.clear()
        h.assign()
        await h.owns()
        h.assign(a=2)
        await asyncio.sleep(5)
        assert h.told == ["acquire a 1"]
        h.said.set()
        await h.owns(a=2)
        assert h.told == ["acquire a 1", "released a", "acquire a 2"]


async def test_a_group_that_is_taken_away_while_it_drains_and_comes_back_is_let_go_of_once(h: Host) -> None:
    async with h.running(a=1):
        h.drained.clear()
        h.assign()
        await asyncio.sleep(2)
        h.assign(a=3)
        await asyncio.sleep(2)
        h.drained.set()
        await h.owns(a=3)
        assert h.told == ["acquire a 1", "released a", "acquire a 3"]


async def test_a_group_that_was_refused_too_late_is_taken_under_that_epoch_again(h: Host) -> None:
    """Its topic was deleted, and the next topic of the name is in the same bucket, with the same epoch."""
    async with h.running(a=1, b=1):
        former = h.groups["a"]
        h.assign(b=1)
        await h.owns(b=1)
        h.assignments.fenced(cast(OwnedGroup, former))  # a handler of it has just ended
        h.assign(a=1, b=1)
        await h.owns(a=1, b=1)


async def test_a_group_of_a_new_topic_is_taken_under_an_epoch_that_was_refused_to_the_former_topic(h: Host) -> None:
    """The host could not get another epoch, and hears of the deletion and of the new topic at once."""
    h.refuse["a"] = 1
    async with h.running(b=1):
        h.assign(a=1, b=1)
        await until(lambda: "fenced a 1" in h.told, 10)
        h.refuse.clear()
        h.assignments.created(["a"], ())
        await h.owns(a=1, b=1)


async def test_a_group_is_not_asked_for_again_under_an_epoch_that_was_refused(h: Host) -> None:
    h.refuse["a"] = 1
    async with h.running():
        h.assign(a=1)
        await until(lambda: "fenced a 1" in h.told, 5)
        h.assign(a=1, b=1)
        await h.owns(b=1)
        await asyncio.sleep(5)
        assert h.told.count("acquire a 1") == 1
        h.assign(a=2, b=1)
        await h.owns(a=2, b=1)


@pytest.mark.parametrize("was_held", [True, False])
async def test_a_group_that_a_store_refused_does_not_begin_at_once_under_its_next_epoch(
    h: Host, was_held: bool
) -> None:
    """Whoever took it may have used this second. It counts as first for the membership, which knows no other owner."""
    h.refuse |= {} if was_held else {"a": 1}
    async with h.running():
        h.assign(a=1)
        if was_held:
            await h.owns(a=1)
            h.assignments.fenced(cast(OwnedGroup, h.groups["a"]))
        await until(lambda: "fenced a 1" in h.told, 5)
        h.assign(0, "a", "b", a=2, b=2)
        await h.owns(a=2, b=2)
    assert h.begun_at_once == ["b"]


async def test_what_was_held_in_an_earlier_life_of_the_membership_is_forgotten_at_once(h: Host) -> None:
    """It belongs to others: it is not drained, nor said to be released."""
    async with h.running(a=1):
        h.drained.clear()
        h.assign(era=1, b=2)
        await h.owns(b=2)
        assert h.told == ["acquire a 1", "forget all", "acquire b 2"]


async def test_what_is_being_acquired_when_the_membership_is_lost_is_not_kept(h: Host) -> None:
    h.step_s = 0.1  # for each group that is acquired or forgotten, as if there were thousands
    async with h.running(a=1, b=1):
        h.assign(a=1, b=1, c=1, d=1, e=1, f=1)
        await asyncio.sleep(0.15)
        h.assign(1)
        await asyncio.sleep(5)
        assert h.told[-1] == "forget all"
        assert not h.groups
        h.assign(1, a=2)
        await h.owns(a=2)


async def test_who_loses_a_group_to_a_stranger_asks_the_stores_about_all_others(h: Host) -> None:
    async with h.running(a=1, b=1, c=1):
        h.assignments.fenced(cast(OwnedGroup, h.groups["a"]))
        h.assignments.fenced(cast(OwnedGroup, h.groups["b"]))
        await asyncio.sleep(0.5)
        assert h.told.count("look at lanes") == 1, "once for all that it loses in that moment"
        assert "fenced a 1" in h.told
        await h.owns(c=1)
        h.assign(c=1)
        await asyncio.sleep(2)
        h.assignments.fenced(cast(OwnedGroup, Group("b", 1)))
        await asyncio.sleep(0.5)
        assert h.told.count("look at lanes") == 1, "that the plan took it away is as it should be"


async def test_groups_are_let_go_of_early_in_a_second(h: Host) -> None:
    """Their new owner starts nothing in that second, so what is left of it is lost."""
    clock = LoopClock()
    async with h.running():
        for epoch, taken_away_at in enumerate((0.05, 0.25, 0.5, 0.95), 1):
            h.assign(a=epoch)
            await h.owns(a=epoch)
            await asyncio.sleep((taken_away_at - clock.now()) % 1.0)
            h.assign()
            await h.owns()
    assert h.let_go_at == pytest.approx([EARLIEST, 0.25, EARLIEST, EARLIEST], abs=0.01)
    assert all(at < LATEST for at in h.let_go_at)


# ---------------------------------------------------------------------- whatever happens, the host finds it by itself


def raising(times: int, bad: str = "") -> Callable[[Iterable[str]], None]:
    """Raise, as uvloop does, the first `times` times, or whenever the bad group is among those asked for."""
    asked = itertools.count(1)

    def breaks(names: Iterable[str]) -> None:
        if bad in names if bad else next(asked) <= times:
            raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

    return breaks


async def test_an_error_that_nobody_expects_leaves_no_group_to_nobody(h: Host) -> None:
    h.breaks = raising(2)
    async with h.running():
        h.assign(a=1, b=1)
        await until(lambda: "the handler is closed" in h.assignments.trouble(), 5)
        await h.owns(a=1, b=1)
        assert h.assignments.trouble() == ""


async def test_a_loop_that_breaks_before_a_release_has_begun_leaves_no_group_held(h: Host) -> None:
    async with h.running():
        h.assign(a=1, b=1)
        await h.owns(a=1, b=1)
    with mock.patch.object(h.assignments._catalog, "look_for", side_effect=RuntimeError("nobody expects this")):
        h.assign(b=1)
        async with h.running():  # the loop ends in the step in which it has made the task of the release
            await asyncio.sleep(1)
    assert "a" in h.groups
    async with h.running():
        h.assign(b=1)
        await h.owns(b=1)


async def test_a_group_that_always_fails_keeps_no_other_from_being_acquired(h: Host) -> None:
    h.breaks = raising(0, bad="b")
    async with h.running():
        h.assign(a=1, b=1, c=1)
        await h.owns(a=1, c=1)
        await asyncio.sleep(30)
        assert h.assignments.trouble().startswith("b: RuntimeError: ")
        h.breaks = raising(0)
        await h.owns(a=1, b=1, c=1)


async def test_what_a_host_holds_without_having_been_told_is_let_go_of(h: Host) -> None:
    async with h.running(a=1):
        h.groups["x"] = Group("x", 7)
        await h.owns(a=1)
        h.groups["a"] = Group("a", 9)
        await until(lambda: h.consumed == {"a": 1}, COMPARE_S + 2 * LOOK_S)


async def test_a_group_that_stands_though_nobody_lets_go_of_it_is_acquired_again(h: Host) -> None:
    async with h.running(a=1, b=1):
        h.groups["a"].stopping = True
        await until(lambda: h.told.count("acquire a 1") == 2, 5)
        assert "abandon a" in h.told
        assert h.told.count("acquire b 1") == 1


async def test_a_failure_just_after_groups_began_to_stop_leaves_no_group_to_nobody(h: Host) -> None:
    """It cancels tasks that have taken no step: no `finally` of theirs runs."""
    async with h.running(a=1, b=1):
        with mock.patch.object(h.assignments, "_start_again_what_stands", side_effect=RuntimeError) as failing:
            h.assign(b=1)
            await until(lambda: failing.called, 5)
        await h.owns(b=1)


async def test_a_lost_group_is_acquired_again_though_nobody_says_so(h: Host) -> None:
    async with h.running(a=1):
        h.groups.clear()
        await h.owns(a=1)


async def test_a_host_that_stops_acquires_nothing_more(h: Host) -> None:
    async with h.running(a=1):
        h.assignments.stop()
        h.groups.clear()
        await asyncio.sleep(10)
        assert not h.groups


async def test_a_host_is_not_ready_before_its_first_assignment_however_late_that_comes(h: Host) -> None:
    async with h.running():
        await asyncio.sleep(60)
        assert not h.assignments.ready.is_set()
        h.assign()
        await asyncio.wait_for(h.assignments.ready.wait(), 1)


async def test_what_was_told_just_before_an_error_is_released_when_it_is_taken_away(h: Host) -> None:
    """The cluster counts a group as taken once it has told it, and gives it to nobody else before it is released."""
    forget_all = mock.AsyncMock(side_effect=[ValueError("unforeseen"), None])
    async with h.running(a=1):
        with mock.patch.object(h, "forget_all", forget_all):
            h.groups.clear()
            h.assign(1, b=2)
            await until(lambda: forget_all.await_count == 1, 10)
            h.assign(1)
            await until(lambda: "released b" in h.told, 10)
    assert "released a" not in h.told, "it was of an earlier era"
