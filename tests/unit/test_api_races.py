"""The API: changes of a tenant or an endpoint that meet another change half-way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from aiohttp.abc import AbstractResolver

from emq.runtime import errors
from emq_push.records.tenants import Tenant
from emq_push.service import upkeep
from support import push_api
from support.push_api import Api
from support.push_api_calls import endpoint_of

ENDPOINTS = "/v1/tenants/acme/endpoints"


api = push_api.fixture("acme", push_allow="127.0.0.1")


@pytest.fixture
def meanwhile(api: Api, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Awaitable[Any]]], None]:
    """Let something happen once, when the next new URL is looked up: after the state was read, before it is written."""

    def arrange(act: Callable[[], Awaitable[Any]]) -> None:
        left = [act]

        class Resolver(AbstractResolver):
            async def resolve(self, *_: object) -> Any:
                while left:
                    await left.pop()()
                return [{"host": "93.184.216.34"}]

            async def close(self) -> None: ...

        monkeypatch.setattr(api.service._reach, "_resolver", Resolver())

    return arrange


async def test_a_change_leaves_an_endpoint_disabled_that_was_disabled_meanwhile(api: Api, meanwhile: Any) -> None:
    made = await endpoint_of(api)
    meanwhile(lambda: api.service.endpoints.set_disabled("acme", made["id"], "it is gone", "a host"))
    changed = await api("PATCH", f"{ENDPOINTS}/{made['id']}", {"url": "https://other.test/"})
    assert (changed["disabled"], changed["url"]) == ("it is gone", "https://other.test/")


async def test_a_change_keeps_a_secret_that_was_rotated_meanwhile(api: Api, meanwhile: Any) -> None:
    made = await endpoint_of(api)
    rotated = []

    async def rotate() -> None:
        rotated.append(await api.service.endpoints.rotate_secret("acme", made["id"], "test", overlap_s=60))

    meanwhile(rotate)
    await api("PATCH", f"{ENDPOINTS}/{made['id']}", {"url": "https://other.test/"})
    attributes = (await api.app.catalog.get(f"acme.{made['id']}")).options.attributes
    assert attributes["push.secret"].split() == [rotated[0].secret, made["secret"]]


async def test_a_rotation_that_begins_again_keeps_the_old_secret(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await endpoint_of(api)
    service = api.service.endpoints
    saved, refusals = service._save, [errors.ChangedMeanwhile("by others")]

    def refused_once(*args: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return saved(*args)

    monkeypatch.setattr(service, "_save", refused_once)
    rotated = await service.rotate_secret("acme", made["id"], "test", overlap_s=60)
    attributes = (await api.app.catalog.get(f"acme.{made['id']}")).options.attributes
    assert attributes["push.secret"].split() == [rotated.secret, made["secret"]]


async def test_an_endpoint_made_while_its_tenant_shrinks_is_capped_by_it(api: Api, meanwhile: Any) -> None:
    meanwhile(lambda: api("PUT", "/v1/tenants/acme", {"qps": 3}))
    made = await api("POST", ENDPOINTS, {"url": "https://other.test/", "event_types": ["*"]}, status=201)
    assert (await api.app.catalog.get(f"acme.{made['id']}")).qps == 3


async def test_of_two_caps_at_once_the_one_that_is_shown_holds(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    tenants = api.service.tenants
    ensure_topic, go_on = tenants._ensure_topic, asyncio.Event()

    async def slow(tenant: str, qps: float) -> None:
        await ensure_topic(tenant, qps)
        if qps == 10:
            await go_on.wait()

    monkeypatch.setattr(tenants, "_ensure_topic", slow)
    first = asyncio.create_task(api("PUT", "/v1/tenants/acme", {"qps": 10}))
    await asyncio.sleep(0.05)
    await api("PUT", "/v1/tenants/acme", {"qps": 90})
    go_on.set()
    await first
    assert (await api("GET", "/v1/tenants/acme"))["qps"] == 10
    assert (await api.app.catalog.get("acme")).qps == 10


async def test_an_endpoint_made_while_its_tenant_is_deleted_leaves_nothing(api: Api, meanwhile: Any) -> None:
    meanwhile(lambda: api("DELETE", "/v1/tenants/acme", status=204))
    await api("POST", ENDPOINTS, {"url": "https://other.test/", "event_types": ["*"]}, status=404)
    assert await api.app.catalog.list("acme*") == []


async def test_what_a_broken_creation_left_goes_with_the_tenant(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise RuntimeError("the process ends here")

    with monkeypatch.context() as patch:
        patch.setattr(api.service.endpoints._rows, "save", crash)
        await api("POST", ENDPOINTS, {"url": "https://93.184.216.34/", "event_types": ["*"]}, status=500)
    assert len(await api.app.catalog.list("acme.*")) == 1
    await api("DELETE", "/v1/tenants/acme", status=204)
    assert await api.app.catalog.list("acme*") == []


async def test_a_tenant_made_again_does_not_see_the_replays_of_the_former_one(api: Api) -> None:
    await api("POST", "/v1/tenants/acme/replays", {"filter": {}}, status=202)
    await api("DELETE", "/v1/tenants/acme", status=204)
    await api("PUT", "/v1/tenants/acme", {"qps": 5}, status=201)
    assert (await api("GET", "/v1/tenants/acme/replays"))["data"] == []


@pytest.mark.parametrize(
    ("loop", "work", "pause"), [("send_left", "publishing.send_left", "LOOK_S"), ("tidy", "tenants.page", "TIDY_S")]
)
async def test_a_failure_that_nobody_expected_does_not_end_the_upkeep(
    api: Api, monkeypatch: pytest.MonkeyPatch, loop: str, work: str, pause: str
) -> None:
    looks, second = 0, asyncio.Event()

    async def fail(*_: object) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            second.set()
        raise RuntimeError("a damaged row")

    part, _, name = work.partition(".")
    monkeypatch.setattr(getattr(api.service, part), name, fail)
    monkeypatch.setattr(upkeep, pause, 0.01)
    task = asyncio.create_task(getattr(api.service.upkeep(), loop)())
    try:
        async with asyncio.timeout(10):
            await second.wait()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("work", ["erasing.erase_old", "tenants._with_topics"])
async def test_a_damaged_tenant_keeps_the_upkeep_from_no_other(
    api: Api, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    await api("PUT", "/v1/tenants/aaa", {"qps": 5}, status=201)
    asked, keeper = list[str](), api.service.upkeep()

    async def unlike(tenants: Sequence[Tenant]) -> set[str]:
        return {tenant.id for tenant in tenants}

    async def fail(tenant: str, *_: object) -> int:
        asked.append(tenant)
        raise RuntimeError("a damaged row")

    part, _, name = work.partition(".")
    monkeypatch.setattr(getattr(api.service, part), name, fail)
    monkeypatch.setattr(keeper._messages, "has_older", lambda *_: True)
    monkeypatch.setattr(api.service.endpoints, "unlike", unlike)
    await keeper.tidy_once()
    assert set(asked) == {"aaa", "acme"}
