"""The identity of a store, on every adapter: one for all who ask, lost only with everything that the store held."""

from __future__ import annotations

import asyncio

import pytest

from emq.runtime import errors
from emq.runtime.environment import Environment
from emq.storage import identity
from emq.storage.lane_store import LaneSettle, LaneVerdict
from emq.storage.store import Store
from emq_testing.contract.target import Target

pytestmark = pytest.mark.usefixtures("no_identity")


async def test_the_first_who_keeps_it_decides_and_looking_makes_none(store: Store) -> None:
    assert await identity.find(store.lanes) is None
    assert await identity.find(store.lanes) is None
    made = await identity.keep(store.lanes)
    assert await identity.find(store.lanes) == made
    assert await identity.keep(store.lanes) == await identity.keep(store.lanes, "another") == made


async def test_all_who_come_at_once_agree(store: Store, other: Store) -> None:
    made = await asyncio.gather(*(identity.keep(each.lanes) for each in (store, other) * 4))
    assert len(set(made)) == 1


async def test_one_copy_is_enough_and_the_others_are_put_back(store: Store) -> None:
    made = await identity.keep(store.lanes)
    for left in range(identity.COPIES):
        gone = [lane for index, lane in enumerate(identity.LANES) if index != left]
        recalls = [LaneSettle(lane, "identity", LaneVerdict.RECALL) for lane in gone]
        assert all(answer is True for answer in await store.lanes.settle(recalls))
        assert await identity.find(store.lanes) == made
        assert await identity.keep(store.lanes) == made


async def test_an_emptied_store_takes_the_identity_that_a_host_remembers(store: Store) -> None:
    assert await identity.keep(store.lanes, "remembered") == "remembered"
    assert await identity.find(store.lanes) == "remembered"


async def test_environments_have_their_own(store: Store, opened: Target) -> None:
    sandbox = await opened.open(Environment.SANDBOX)
    recalls = [LaneSettle(lane, "identity", LaneVerdict.RECALL) for lane in identity.LANES]
    await sandbox.lanes.settle(recalls)
    made = await identity.keep(store.lanes)
    assert await identity.find(sandbox.lanes) is None
    assert await identity.keep(sandbox.lanes) != made


async def test_a_server_that_is_away_hides_no_identity_and_is_not_taken_for_an_empty_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await identity.keep(store.lanes)
    asked, away = store.lanes.waiting, {identity.LANES[0]}

    async def waiting(lane: str, *args: int) -> object:
        if lane in away:
            raise errors.StoreUnavailable("away")
        return await asked(lane, *args)

    monkeypatch.setattr(store.lanes, "waiting", waiting)
    assert await identity.find(store.lanes) == await identity.keep(store.lanes) == made
    away.update(identity.LANES)
    for call in (identity.find, identity.keep):
        with pytest.raises(errors.StoreUnavailable):
            await call(store.lanes)
