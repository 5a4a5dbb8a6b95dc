"""Erasing: what the store and the database keep of a message whose time is over, or whose person is forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from emq.observe import dead_letters
from support import push_api
from support.http_receiver import HttpReceiver
from support.push_api import Api
from support.push_api_calls import PATH, endpoint_of, hosting, message, post, states

ANN = "ann@example.test"
HOUR_US = 3_600_000_000


api = push_api.fixture(push_allow="127.0.0.1", puts={"/v1/tenants/acme": {"qps": 100, "payload_retention_s": 3600}})


@pytest.fixture
def refusing(receiver: HttpReceiver) -> HttpReceiver:
    """An endpoint that refuses each message and repeats it."""
    receiver.answers = lambda request: web.Response(status=500, text=request.body.decode())
    return receiver


async def until(api: Api, wanted: dict[str, str], attempts: int = 1) -> None:
    async with asyncio.timeout(10):
        while await states(api) != wanted or await count(api, "emq_push_attempts") < attempts:
            await asyncio.sleep(0.05)


async def count(api: Api, table: str) -> Any:
    return await api.app.database.run(lambda c: c.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar())


async def seen_of(api: Api, text: str) -> list[str]:
    """Return where a text is still found: tables of the database, dead letters, messages that wait."""

    def tables(connection: Any) -> list[str]:
        names = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'").scalars().all()
        rows = {name: connection.exec_driver_sql(f'SELECT * FROM "{name}"').all() for name in names}
        return [name for name, all_ in rows.items() if any(text in value for row in all_ for value in map(_text, row))]

    found = await api.app.database.run(tables)
    for topic in await api.app.catalog.list("acme.*"):
        letters = [letter async for letter in dead_letters.find(api.app.store, topic)]
        found += ["dead letters" for letter in letters if text.encode() in letter.payload]
    found += ["waiting" for planned in await api.app.planned("acme.*") if text.encode() in planned.payload]
    return sorted(set(found))


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def of_ann(**more: Any) -> dict[str, Any]:
    return message(id="m1", key=ANN, headers={"customer": ANN}, payload={"mail": ANN}, **more)


async def test_nothing_is_left_of_a_forgotten_person_s_dead_letter(api: Api, refusing: HttpReceiver) -> None:
    async with hosting(api):
        await endpoint_of(api, url=refusing.url(), retry_schedule_s=[])
        await post(api, of_ann())
        await until(api, {"m1": "dead"})
    assert "dead letters" in await seen_of(api, ANN)
    assert (await api("POST", f"{PATH}:erase", {"key": ANN}))["payloads"] == 1
    assert (await api("GET", f"{PATH}/m1"))["erased"] is True
    await api.service.upkeep().tidy_delivered()
    assert await seen_of(api, ANN) == []
    await api("GET", f"{PATH}/m1", status=404)
    assert (await count(api, "emq_push_deliveries"), await count(api, "emq_push_attempts")) == (0, 0)


@pytest.mark.parametrize("schedule", [[], [3600]])
async def test_a_message_that_waited_in_its_queue_when_its_person_was_forgotten_goes_after_its_attempt(
    api: Api, refusing: HttpReceiver, schedule: list[int]
) -> None:
    made = await endpoint_of(api, url=refusing.url(), retry_schedule_s=schedule)
    path, upkeep = f"/v1/tenants/acme/endpoints/{made['id']}", api.service.upkeep()
    await api("POST", f"{path}:pause")
    await post(api, of_ann())
    await post(api, message(id="m2", key="bob", delay_s=3600))
    await api("POST", f"{PATH}:erase", {"key": ANN})
    await upkeep.tidy_delivered()
    assert await states(api) == {"m1": "pending", "m2": "pending"}
    async with hosting(api):
        await api("POST", f"{path}:resume")
        async with asyncio.timeout(10):
            while await count(api, "emq_push_attempts") == 0:
                await asyncio.sleep(0.05)
        assert await seen_of(api, ANN) != []
        await upkeep.tidy_delivered()
    assert await seen_of(api, ANN) == []
    assert await states(api) == {"m2": "pending"}


async def test_old_payloads_leave_the_dead_letters_too(
    api: Api, refusing: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosting(api):
        await endpoint_of(api, url=refusing.url(), retry_schedule_s=[])
        await post(api, of_ann())
        await until(api, {"m1": "dead"})
    now_us, upkeep = api.service.parts.now_us(), api.service.upkeep()
    for hours, is_there in ((0.9, True), (1.1, False)):
        monkeypatch.setattr(api.service.parts, "now_us", lambda h=hours: now_us + round(h * HOUR_US))
        await upkeep.tidy_once()
        assert ("dead letters" in await seen_of(api, ANN)) is is_there
        assert (await api("GET", f"{PATH}/m1"))["erased"] is not is_there
    assert await states(api) == {"m1": "dead"}


async def test_the_payload_of_a_delivery_that_waits_is_kept_until_it_is_over(
    api: Api, refusing: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await endpoint_of(api, url=refusing.url(), retry_schedule_s=[])
    path, upkeep = f"/v1/tenants/acme/endpoints/{made['id']}", api.service.upkeep()
    await api("POST", f"{path}:pause")
    await post(api, of_ann())
    now_us = api.service.parts.now_us()
    monkeypatch.setattr(api.service.parts, "now_us", lambda: now_us + 2 * HOUR_US)
    await upkeep.tidy_once()
    assert (await api("GET", f"{PATH}/m1"))["erased"] is False
    async with hosting(api):
        await api("POST", f"{path}:resume")
        await until(api, {"m1": "dead"})
    await upkeep.tidy_once()
    assert (await api("GET", f"{PATH}/m1"))["erased"] is True
    assert "dead letters" not in await seen_of(api, ANN)
