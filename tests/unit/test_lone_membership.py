"""A host that consumes alone owns every group that is offered, and no group twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from emq.allocation.membership import Assignment, LoneMembership, PlanInForce
from emq.runtime import errors
from support.local_cluster import Epochs, quotas

GROUPS = [f"t{i}/0" for i in range(20)]


class Host:
    def __init__(self) -> None:
        self.epochs = Epochs()
        self.membership = LoneMembership("a", self.epochs)

    async def assignment(self) -> Assignment:
        """Return the newest assignment."""
        return await asyncio.wait_for(anext(self.membership.assignments()), 10)

    async def told(self) -> dict[str, int]:
        return (await self.assignment()).groups

    async def offer(self, groups: Iterable[str]) -> dict[str, int]:
        await self.membership.offer(quotas(groups))
        return await self.told()


async def joined() -> Host:
    host = Host()
    await host.membership.join()
    return host


async def test_it_gets_every_group_and_hears_of_every_offer() -> None:
    host = await joined()
    assert host.membership.leads
    for count in (0, 20, 7, 7):
        assert set(await host.offer(GROUPS[:count])) == set(GROUPS[:count]) == set(host.membership.given())
        await host.membership.released(GROUPS[count:])
    assert isinstance(host.membership.plan, PlanInForce)
    assert host.membership.plan.hosts == 1


async def test_a_group_that_stays_keeps_its_epoch() -> None:
    host = await joined()
    first = await host.offer(GROUPS[:2])
    assert (await host.offer(GROUPS))[GROUPS[0]] == first[GROUPS[0]]


async def test_a_group_that_comes_back_is_given_only_after_its_release_and_under_a_higher_epoch() -> None:
    host = await joined()
    before = await host.offer(GROUPS)
    assert GROUPS[0] not in await host.offer(GROUPS[1:])
    assert GROUPS[0] not in await host.offer(GROUPS)
    await host.membership.released(GROUPS[:1])
    assert (await host.told())[GROUPS[0]] > before[GROUPS[0]]


@pytest.mark.parametrize("fails", [False, True])
async def test_only_what_is_offered_after_the_beginning_is_called_first(fails: bool) -> None:
    """What was there at the beginning, an earlier process may have had in this very second."""
    host = await joined()
    if fails:
        host.epochs.down = True
        with pytest.raises(errors.DatabaseUnavailable):
            await host.offer(GROUPS[:2])
        host.epochs.down = False
    await host.offer(GROUPS[:2])
    assert not (await host.assignment()).first
    await host.offer(GROUPS[:4])
    assert (await host.assignment()).first == {*GROUPS[2:4]}
    await host.offer(GROUPS[:4])
    assert not (await host.assignment()).first


async def test_what_was_offered_before_it_joined_is_given_when_it_joins() -> None:
    host = Host()
    await host.membership.offer(quotas(GROUPS))
    assert not host.membership.given()
    await host.membership.join()
    assert set(await host.told()) == set(GROUPS)


async def test_it_hears_of_a_loss_even_without_an_epoch_for_what_is_new() -> None:
    host = await joined()
    await host.offer(GROUPS)
    host.epochs.down = True
    with pytest.raises(errors.DatabaseUnavailable):
        await host.membership.offer(quotas([*GROUPS[5:], "new/0"]))
    assert set(await host.told()) == set(GROUPS[5:])
    host.epochs.down = False
    assert set(await host.offer([*GROUPS[5:], "new/0"])) == {*GROUPS[5:], "new/0"}


async def test_after_it_left_it_owns_nothing_and_joins_again_under_higher_epochs() -> None:
    host = await joined()
    before = await host.offer(GROUPS)
    await host.membership.leave()
    assert not host.membership.leads
    assert not host.membership.given()
    await host.membership.join()
    after = await host.told()
    assert all(after[group] > before[group] for group in GROUPS)
