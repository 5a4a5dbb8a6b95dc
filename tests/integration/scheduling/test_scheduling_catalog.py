"""The catalog of pools: nothing is overwritten unseen, and every version stays known."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from emq.database import Database
from emq.runtime import errors
from emq_scheduling.model import Limit, Pool, Resource, TaskType
from emq_scheduling.pools.catalog import PoolCatalog


def pool(name: str = "sms", amount: float = 10) -> Pool:
    resource = Resource(limits=(Limit("requests", amount, "second"),), takes={"code": {}})
    return Pool(name, resources={"acme": resource}, types={"code": TaskType()})


def with_amount(amount: float) -> Pool:
    return pool(amount=amount)


@pytest.fixture
def catalog(database: Database, environment: str) -> PoolCatalog:
    return PoolCatalog(database, environment)


async def test_a_pool_comes_back_as_it_was_put(catalog: PoolCatalog) -> None:
    assert await catalog.list() == []
    assert await catalog.version("sms") == 0
    stored = await catalog.put(pool())
    assert stored.version == 1
    assert await catalog.get("sms") == stored
    assert await catalog.list() == [stored]
    assert await catalog.versions() == {"sms": 1}


async def test_environments_do_not_see_each_other(catalog: PoolCatalog, database: Database, environment: str) -> None:
    await catalog.put(pool())
    assert await PoolCatalog(database, f"{environment}-other").list() == []


async def test_an_unknown_pool_is_named_with_the_pools_there_are(catalog: PoolCatalog) -> None:
    with pytest.raises(errors.UnknownPool, match="there is no pool 'sms'; no pool has been made yet"):
        await catalog.get("sms")
    await catalog.put(pool())
    with pytest.raises(errors.UnknownPool, match="there is no pool 'sns'; did you mean 'sms'"):
        await catalog.get("sns")
    for call in (catalog.delete("x"), catalog.change("x", lambda p: p)):
        with pytest.raises(errors.UnknownPool):
            await call


async def test_a_wrong_pool_gets_in_neither_whole_nor_by_a_change(catalog: PoolCatalog) -> None:
    with pytest.raises(errors.InvalidPool, match="amount"):
        await catalog.put(with_amount(-1))
    with pytest.raises(errors.InvalidPool):
        await catalog.put(msgspec.structs.replace(pool(), zone=7))  # type: ignore[arg-type]
    stored = await catalog.put(pool())
    for wrong in (with_amount(-1), pool("other")):
        with pytest.raises(errors.InvalidPool):
            await catalog.change("sms", lambda _, wrong=wrong: wrong)  # type: ignore[misc]
    assert await catalog.get("sms") == stored


async def test_a_change_of_an_old_version_is_refused(catalog: PoolCatalog) -> None:
    await catalog.put(pool(), 0)
    with pytest.raises(errors.ChangedMeanwhile, match="is at version 1, not 0"):
        await catalog.put(pool(), 0)
    await catalog.put(with_amount(20), 1)
    with pytest.raises(errors.ChangedMeanwhile, match="is at version 2, not 1"):
        await catalog.put(with_amount(30), 1)
    assert (await catalog.put(with_amount(40))).version == 3
    await catalog.delete("sms")
    with pytest.raises(errors.ChangedMeanwhile, match="is not there any more"):
        await catalog.put(with_amount(50), 3)


async def test_of_changes_at_the_same_time_none_is_lost(catalog: PoolCatalog) -> None:
    await catalog.put(pool())

    async def one(name: str) -> None:
        await catalog.change(
            "sms", lambda p: msgspec.structs.replace(p, types={**p.types, name: TaskType(), "code": TaskType()})
        )

    await asyncio.gather(*(one(f"type-{i}") for i in range(6)))
    found = await catalog.get("sms")
    assert set(found.pool.types) == {"code", *(f"type-{i}" for i in range(6))}
    assert found.version == 7


async def test_a_change_to_the_same_makes_no_version(catalog: PoolCatalog) -> None:
    stored = await catalog.put(pool())
    assert await catalog.change("sms", lambda p: p) == stored


async def test_versions_go_on_after_a_deletion_and_stay_known(catalog: PoolCatalog) -> None:
    await catalog.put(with_amount(1))
    await catalog.put(with_amount(2))
    await catalog.delete("sms")
    assert await catalog.version("sms") == 0
    assert (await catalog.put(with_amount(4))).version == 4
    amounts = {v: p.resources["acme"].limits[0].amount for v, p in (await catalog.history("sms")).items()}
    assert amounts == {1: 1, 2: 2, 4: 4}


async def test_a_pool_of_a_newer_emq_is_told_as_such(catalog: PoolCatalog, database: Database) -> None:
    await catalog.put(pool())
    await database.run(
        lambda c: c.exec_driver_sql("""UPDATE emq_scheduling_pools SET body = '{"name": "sms", "later": 1}'""")
    )
    with pytest.raises(errors.InvalidPool, match=r"pool 'sms' in the database cannot be read .* upgrade this"):
        await catalog.get("sms")
