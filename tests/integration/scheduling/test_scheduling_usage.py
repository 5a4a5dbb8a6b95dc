"""The use of limits in the database: one owner at a time saves, and what it saved is what the next one gets."""

from __future__ import annotations

import asyncio

import pytest

from emq.database import Database
from emq.runtime import errors
from emq_scheduling.limits.accounts import Accounts
from emq_scheduling.limits.usage import SavedLimit, SavedUse
from emq_scheduling.limits.usage_keeper import UsageKeeper, UsageTable
from emq_scheduling.model import Limit, Pool, Resource
from support.manual_clock import ManualClock
from support.waiting import until

POOL = Pool("sms", resources={"a": Resource(limits=(Limit("requests", 1_000, "day"),))})
USE = SavedUse(1_000.0, {"requests/day": SavedLimit(((86_400.0, 5.0),), 0.5, 3.0)})


@pytest.fixture
def table(database: Database, environment: str) -> UsageTable:
    return UsageTable(database, environment)


async def test_the_next_owner_gets_what_was_saved(table: UsageTable) -> None:
    assert await table.claim("sms", "one") == {}
    assert await table.save("sms", "one", 1, {"a": USE, "b": USE})
    assert await table.save("sms", "one", 2, {"b": SavedUse(1_001.0, {})})
    assert await table.claim("sms", "two") == {"a": USE, "b": SavedUse(1_001.0, {})}
    assert await table.claim("other", "two") == {}


async def test_a_former_owner_saves_nothing(table: UsageTable) -> None:
    await table.claim("sms", "one")
    await table.claim("sms", "two")
    assert not await table.save("sms", "one", 1, {"a": USE})
    assert await table.save("sms", "two", 1, {})
    assert await table.claim("sms", "three") == {}


async def test_a_save_that_comes_late_changes_nothing(table: UsageTable) -> None:
    await table.claim("sms", "one")
    assert await table.save("sms", "one", 2, {"a": USE})
    assert not await table.save("sms", "one", 1, {"a": SavedUse(999.0, {})})
    assert await table.claim("sms", "two") == {"a": USE}


async def test_a_dropped_pool_has_used_nothing(table: UsageTable) -> None:
    await table.claim("sms", "one")
    await table.save("sms", "one", 1, {"a": USE})
    await table.drop("sms")
    await table.drop("sms")
    assert not await table.save("sms", "one", 2, {"a": USE})
    assert await table.claim("sms", "two") == {}


def keeper(table: UsageTable, clock: ManualClock) -> tuple[Accounts, UsageKeeper]:
    accounts = Accounts(POOL, clock.now(), saves=True)
    return accounts, UsageKeeper(table, "sms", accounts, clock)


async def test_a_day_quota_holds_across_owners_that_crash(table: UsageTable) -> None:
    clock, started = ManualClock(86_400.0 * 20_000), 0
    for _ in range(4):
        accounts, of = keeper(table, clock)
        await of.begin()
        saving = asyncio.create_task(of.run())
        for _ in range(20):
            clock.advance(1)
            while accounts.charge("a", {"requests": 7}, clock.now()) is not None:
                started += 7
            await asyncio.sleep(0.06)
        saving.cancel()
        await asyncio.gather(saving, return_exceptions=True)
    assert 600 < started <= 1_000


async def test_an_owner_that_ends_orderly_loses_nothing(table: UsageTable) -> None:
    clock = ManualClock(86_400.0 * 20_000)
    accounts, of = keeper(table, clock)
    await of.begin()
    assert accounts.charge("a", {}, clock.now()) is not None
    await of.end()
    accounts, of = keeper(table, clock)
    await of.begin()
    assert accounts.used(clock.now())["a"] == {"requests/day": 1}


async def test_a_claimed_pool_ends_the_saving(table: UsageTable) -> None:
    clock = ManualClock(86_400.0 * 20_000)
    accounts, of = keeper(table, clock)
    await of.begin()
    await table.claim("sms", "other")
    accounts.charge("a", {}, clock.now())
    accounts.fits("a", {"requests": 100}, clock.now())
    await asyncio.wait_for(of.run(), 10)
    await of.end()
    first = SavedUse(clock.now(), {"requests/day": SavedLimit((), 0.0, 2.0, "calendar")})
    assert await table.claim("sms", "third") == {"a": first}, "neither saved once more"


async def test_starts_wait_while_the_database_is_away(
    table: UsageTable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(86_400.0 * 20_000)
    accounts, of = keeper(table, clock)
    await of.begin()

    async def away(*_: object) -> bool:
        raise errors.DatabaseUnavailable("it is away")

    with monkeypatch.context() as patch:
        patch.setattr(table, "save", away)
        saving = asyncio.create_task(of.run())
        while accounts.charge("a", {}, clock.now()) is not None:
            pass
        await asyncio.sleep(0.2)
        assert accounts.charge("a", {}, clock.now()) is None
        assert "starts wait when their reserve ends" in caplog.text
    await until(lambda: accounts.charge("a", {}, clock.now()) is not None, step_s=0.05)
    saving.cancel()
    await asyncio.gather(saving, return_exceptions=True)
