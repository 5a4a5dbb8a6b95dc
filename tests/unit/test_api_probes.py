"""`/livez` and `/readyz` of the API: what supervisors and load balancers are told, whatever else is asked."""

from __future__ import annotations

from typing import Any

import pytest

from emq.runtime import errors
from emq_web import probes
from emq_web.limits import Limits
from support import push_api
from support.push_api import Api

api = push_api.fixture()


async def statuses(api: Api) -> list[int]:
    return [(await api.raw("GET", path, key="")).status_code for path in (probes.LIVE, probes.READY)]


async def test_a_process_whose_database_is_away_lives_and_is_not_ready_until_it_is_back(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "REST_S", 0.0)
    assert await statuses(api) == [200, 200]

    async def refused(*_: object, **__: object) -> Any:
        raise errors.DatabaseUnavailable("postgresql://secret-place is away")

    with monkeypatch.context() as away:
        away.setattr(api.app.database, "run", refused)
        assert await statuses(api) == [200, 503]
        assert "secret-place" not in (await api.raw("GET", probes.READY, key="")).text
    assert await statuses(api) == [200, 200]


async def test_the_database_is_asked_once_a_second_at_most(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    run = api.app.database.run

    async def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal asked
        asked += 1
        return await run(*arguments, **named)

    monkeypatch.setattr(probes, "REST_S", 1000.0)
    monkeypatch.setattr(api.app.database, "run", counted)
    for _ in range(5):
        assert await statuses(api) == [200, 200]
    assert asked == 1


async def test_a_flood_of_strangers_does_not_make_a_process_look_dead() -> None:
    async with push_api.opened() as api, push_api.another(api, Limits(strangers_per_s=1)) as other:
        for _ in range(5):
            assert await statuses(other) == [200, 200]
        flood = [(await other.raw("GET", "/v1/tenants", key="")).status_code for _ in range(5)]
        assert 429 in flood
        assert await statuses(other) == [200, 200]
