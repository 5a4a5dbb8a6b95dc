"""The proof of a pool from what lies in the database."""

from __future__ import annotations

import pytest
from test_scheduling_records import end, written

from emq.database import Database
from emq_scheduling.model import Limit, Pool, Resource, TaskType
from emq_scheduling.pools.catalog import PoolCatalog
from emq_scheduling.records import ends
from emq_scheduling.records.ends import EndLog
from emq_scheduling.records.verifying import verify


def pool(amount: float) -> Pool:
    resource = Resource(limits=(Limit("requests", amount, "second"),), takes={"code": {}})
    return Pool("sms", resources={"acme-1": resource}, types={"code": TaskType()})


@pytest.fixture
async def log(database: Database, environment: str) -> EndLog:
    catalog = PoolCatalog(database, environment)
    await catalog.put(pool(2))
    await catalog.put(pool(1))
    return EndLog(lambda: database, environment, lambda: "host-1")


async def test_what_kept_to_its_limits_is_proved(
    database: Database, environment: str, log: EndLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emq_scheduling.records.records.PAGE", 2)
    first = [end("a", started_s=1, version=1), end("b", ends.FAILED, 1.5, version=1)]
    await written(log, *first, end("b", started_s=2, attempt=2, version=2), end("c", ends.EXPIRED, resource=""))
    counted: list[int] = []
    proof = await verify(database, environment, "sms", counted.append)
    assert proof.holds
    assert (proof.attempts, proof.over_s, proof.ended_twice, proof.unproven) == (3, 0, 0, 0)
    assert proof.since_us == first[0].started_us
    assert proof.outcomes == {"done": 2, "expired": 1, "failed": 1}
    [limit] = proof.limits
    assert (limit.starts, limit.peak, limit.amount) == (3, 2, 2)
    assert counted == [2, 4]


async def test_a_task_that_ended_twice_is_named(database: Database, environment: str, log: EndLog) -> None:
    await written(log, end("a", started_s=1), end("a", started_s=9), end("b", started_s=5))
    # The same id in another type, or a retry, is not a second end.
    await written(log, end("b", started_s=3, type="other"), end("b", ends.FAILED, started_s=4))
    proof = await verify(database, environment, "sms")
    assert (proof.ended_twice, list(proof.twice), proof.holds) == (1, ["a"], False)
