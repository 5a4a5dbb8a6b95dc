"""Who consumes which groups: one owner at a time, and nobody before the last one let go."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from emq.allocation.membership import Assignment
from emq.runtime import errors
from support.local_cluster import Epochs, LocalCluster, LocalMembership, quotas

GROUPS = [f"t{i}/{j}" for i in range(5) for j in range(4)]


class Member:
    """Follows its assignments like a host: releases what it lost, after `drain` was called."""

    def __init__(self, membership: LocalMembership) -> None:
        self.membership = membership
        self.owned: dict[str, int] = {}
        self.to_release: set[str] = set()
        self._assignments = membership.assignments()

    async def look(self) -> None:
        """Take over the newest assignment, if there is one."""
        assigned = await newest(self._assignments)
        if assigned is None:
            return
        self.to_release |= {g for g, e in self.owned.items() if assigned.get(g) != e}
        for group, epoch in assigned.items():
            if group not in self.owned:
                self.owned[group] = epoch

    async def drain(self) -> None:
        groups, self.to_release = self.to_release, set()
        for group in groups:
            del self.owned[group]
        await self.membership.released(groups)


async def newest(assignments: AsyncIterator[Assignment]) -> dict[str, int] | None:
    waiting = asyncio.ensure_future(anext(assignments))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if not waiting.done():
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return None
    return waiting.result().groups


async def settled(members: Iterable[Member]) -> None:
    for _ in range(6):
        for member in members:
            member._assignments = member.membership.assignments()
            await member.look()
            await member.drain()


async def test_a_single_member_gets_everything_and_hears_of_every_change() -> None:
    cluster = LocalCluster(Epochs())
    a = Member(cluster.member("a"))
    await a.membership.join()
    await a.membership.offer({})
    await a.look()
    assert a.owned == {}
    for count in (20, 7, 13):
        await a.membership.offer(quotas(GROUPS[:count]))
        await settled([a])
        assert set(a.owned) == set(GROUPS[:count])


async def test_a_group_moves_only_after_its_owner_let_go_and_under_a_higher_epoch() -> None:
    cluster = LocalCluster(Epochs())
    a, b = Member(cluster.member("a")), Member(cluster.member("b"))
    await a.membership.join()
    await a.membership.offer(quotas(GROUPS))
    await settled([a])
    before = dict(a.owned)
    await b.membership.join()
    await b.look()
    assert b.owned == {}
    await settled([a, b])
    assert set(a.owned) | set(b.owned) == set(GROUPS)
    assert not set(a.owned) & set(b.owned)
    assert b.owned
    assert all(a.owned[g] == before[g] for g in a.owned)  # what did not move was not disturbed
    assert all(b.owned[g] > before[g] for g in b.owned)


async def test_what_a_leaving_member_had_goes_to_the_others() -> None:
    cluster = LocalCluster(Epochs())
    a, b = Member(cluster.member("a")), Member(cluster.member("b"))
    for member in (a, b):
        await member.membership.join()
    await a.membership.offer(quotas(GROUPS))
    await settled([a, b])
    await a.membership.leave()
    await settled([b])
    assert set(b.owned) == set(GROUPS)


async def test_a_loser_hears_of_its_loss_even_if_the_winner_gets_no_epoch() -> None:
    epochs = Epochs()
    cluster = LocalCluster(epochs)
    a, b = Member(cluster.member("a")), Member(cluster.member("b"))
    await a.membership.join()
    await a.membership.offer(quotas(GROUPS))
    await settled([a])
    epochs.down = True
    with pytest.raises(errors.DatabaseUnavailable):
        await a.membership.offer(quotas([*GROUPS[5:], "new/0"]))
    epochs.down = False
    await settled([a])
    assert set(a.owned) == {*GROUPS[5:], "new/0"}
    await b.membership.join()
    await settled([a, b])
    assert set(a.owned) | set(b.owned) == {*GROUPS[5:], "new/0"}


class ClusterMachine(RuleBasedStateMachine):
    """Members come and go, groups come and go, everybody acts late: never two owners, and in the end one for each."""

    def __init__(self) -> None:
        super().__init__()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.members: dict[str, Member] = {}
        self.groups: set[str] = set()
        self.highest: dict[str, int] = {}
        self.names = itertools.count()

    @initialize()
    def start(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.cluster = LocalCluster(Epochs())
        self.join()

    def teardown(self) -> None:
        if self.loop is None:
            return
        try:
            self.run(settled(self.members.values()))
            owned = [g for m in self.members.values() for g in m.owned]
            assert sorted(owned) == sorted(self.groups)
        finally:
            self.loop.close()

    def run(self, step: Coroutine[Any, Any, None]) -> None:
        assert self.loop is not None
        self.loop.run_until_complete(step)

    @precondition(lambda self: len(self.members) < 3)
    @rule()
    def join(self) -> None:
        member = Member(self.cluster.member(f"host-{next(self.names)}"))
        self.run(member.membership.join())
        self.members[member.membership.host] = member

    @precondition(lambda self: len(self.members) > 1)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.members)))
        member = self.members.pop(name)
        member.owned.clear()  # it stopped consuming before it leaves
        self.run(member.membership.leave())

    @rule(data=st.data(), groups=st.sets(st.sampled_from(GROUPS)))
    def offer(self, data: st.DataObject, groups: set[str]) -> None:
        member = self.members[data.draw(st.sampled_from(sorted(self.members)))]
        self.groups = groups
        self.run(member.membership.offer(quotas(groups)))

    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        member = self.members[data.draw(st.sampled_from(sorted(self.members)))]
        member._assignments = member.membership.assignments()
        self.run(member.look())
        for group, epoch in member.owned.items():
            assert epoch >= self.highest.get(group, 0)
            self.highest[group] = epoch

    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        member = self.members[data.draw(st.sampled_from(sorted(self.members)))]
        self.run(member.drain())

    @invariant()
    def nobody_shares_a_group(self) -> None:
        owned = [g for m in self.members.values() for g in m.owned]
        assert len(owned) == len(set(owned))


TestLocalCluster = ClusterMachine.TestCase
TestLocalCluster.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
