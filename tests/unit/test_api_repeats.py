"""A request with an Idempotency-Key is carried out once, whatever it makes or changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa

from emq.runtime import errors
from emq_push.records.accepted import Accepted
from emq_push.service import repeats
from emq_push.service.endpoints import EndpointService
from emq_push.service.keys import KeyService
from support import push_api
from support.push_api import Api
from support.push_api_calls import endpoint_of, message, post

ENDPOINTS = "/v1/tenants/acme/endpoints"
BODY = {"url": "https://93.184.216.34/hook"}
KEY = {"Idempotency-Key": "a-1"}

api = push_api.fixture("acme", "other")


async def endpoints(api: Api) -> list[str]:
    return [each["id"] for each in await api.listed(ENDPOINTS)]


async def rows(api: Api) -> list[tuple[str, str, str]]:
    query = "SELECT tenant, key, answer FROM emq_push_idempotency"
    return [tuple(row) for row in await api.app.database.run(lambda c: c.exec_driver_sql(query).all())]


async def test_an_endpoint_is_made_once_and_the_repeat_gets_its_secret_and_its_version(api: Api) -> None:
    first, again = [await api.raw("POST", ENDPOINTS, BODY, headers=KEY) for _ in range(2)]
    assert first.status_code == again.status_code == 201
    assert first.json() == again.json()
    assert first.json()["secret"].startswith("whsec_")
    assert first.headers["etag"] == again.headers["etag"]
    assert again.headers["content-type"] == "application/json"
    assert await endpoints(api) == [first.json()["id"]]
    quoted = await api("POST", ENDPOINTS, BODY, headers={"Idempotency-Key": '"a-1"'})
    assert quoted == first.json()
    await api("POST", ENDPOINTS, BODY, headers={"Idempotency-Key": "a-2"}, status=201)
    assert len(await endpoints(api)) == 2


async def test_answers_are_kept_encrypted(api: Api) -> None:
    made = await api("POST", ENDPOINTS, BODY, headers=KEY)
    key = await api("POST", "/v1/keys", {"role": "admin"}, headers={"Idempotency-Key": "b"})
    kept = str(await rows(api))
    assert "enc:v1:" in kept
    for hidden in (made["secret"], made["id"], key["key"], api.admin):
        assert hidden not in kept


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/keys", {"role": "admin"}),
        ("POST", "/v1/tenants/acme/tokens", {}),
        ("POST", "{endpoint}:rotate-secret", None),
        ("POST", "{endpoint}:send-example", None),
        ("PATCH", "{endpoint}", {"signature": "ed25519"}),
        ("POST", "/v1/tenants/acme/replays", {"filter": {"states": ["delivered"]}}),
        ("DELETE", "/v1/tenants/other", None),
        ("PUT", "/v1/tenants/new", {"qps": 1}),
    ],
)
async def test_each_kind_of_request_is_carried_out_once(api: Api, method: str, path: str, body: Any) -> None:
    made = await endpoint_of(api)
    path = path.replace("{endpoint}", f"{ENDPOINTS}/{made['id']}")
    first, again = [await api.raw(method, path, body, headers=KEY) for _ in range(2)]
    assert first.status_code < 300, first.text
    assert (first.status_code, first.content) == (again.status_code, again.content)
    other = await api.raw(method, path, body, headers={"Idempotency-Key": "other"})
    assert (other.status_code, other.content) != (first.status_code, first.content)


@pytest.mark.parametrize(
    ("method", "path", "body", "more"),
    [
        ("POST", ENDPOINTS, {**BODY, "qps": 1}, {}),
        ("POST", "/v1/tenants/other/endpoints", BODY, {}),
        ("PUT", ENDPOINTS.removesuffix("/endpoints"), {"qps": 7}, {}),
        ("POST", f"{ENDPOINTS}?", BODY, {"If-Match": '"7"'}),
    ],
)
async def test_a_key_of_another_request_is_refused(api: Api, method: str, path: str, body: Any, more: Any) -> None:
    await api("POST", ENDPOINTS, BODY, headers=KEY)
    problem = await api(method, path, body, headers={**KEY, **more}, status=422)
    assert problem["code"] == "idempotency_key_reused"
    assert len(await endpoints(api)) == 1


async def test_a_key_belongs_to_the_bearer_key(api: Api) -> None:
    managers = [await api.key_of("manage", "acme"), await api.key_of("manage", "acme")]
    made = [await api("POST", ENDPOINTS, BODY, headers=KEY, key=key) for key in (*managers, managers[0])]
    assert made[0]["id"] == made[2]["id"] != made[1]["id"]
    assert {tenant for tenant, _, _ in await rows(api)} == {"acme"}
    await post(api, message(), headers=KEY, key=managers[0])  # messages have keys of their own
    await api("DELETE", "/v1/tenants/acme", status=204)
    assert await rows(api) == []


async def test_a_repeat_is_answered_whatever_other_authorization_the_first_request_had(api: Api) -> None:
    other = [("Authorization", "Bearer other"), ("Authorization", f"Bearer {api.admin}"), *KEY.items()]
    first = await api.http.post(ENDPOINTS, headers=other, json=BODY)
    assert first.status_code == 201
    assert await api("POST", ENDPOINTS, BODY, headers=KEY, status=201) == first.json()


async def test_a_refused_request_may_be_repeated(api: Api) -> None:
    await api("POST", ENDPOINTS, {}, headers=KEY, status=422)
    reader = await api.key_of("read", "acme")
    await api("POST", ENDPOINTS, BODY, headers=KEY, key=reader, status=403)
    await api("POST", "/v1/tenants/nobody/endpoints", BODY, headers=KEY, status=404)
    assert await rows(api) == []
    await api("POST", ENDPOINTS, BODY, headers=KEY, status=201)
    await api("POST", ENDPOINTS, BODY, headers={"Idempotency-Key": "with space"}, status=422)
    await api("POST", ENDPOINTS, BODY, headers=KEY, key="wrong", status=401)


@pytest.mark.parametrize(
    "body",
    [b'{"url":"\xff"}', b"[" * 100_000, b'{"qps":' + b"9" * 10_000 + b"}"],
    ids=["no UTF-8", "deep", "a long number"],
)
async def test_a_body_that_nobody_can_read_is_refused_and_leaves_no_row(
    api: Api, caplog: pytest.LogCaptureFixture, body: bytes
) -> None:
    headers = {**KEY, "Content-Type": "application/json"}
    for _ in range(2):
        assert (await api.raw("POST", ENDPOINTS, content=body, headers=headers)).status_code == 400
    assert await rows(api) == []
    assert caplog.text == ""


async def test_a_failure_is_logged_once(
    api: Api, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(KeyService, "create", fails)
    await api("POST", "/v1/keys", {"role": "admin"}, headers=KEY, status=500)
    assert len([each for each in caplog.records if each.exc_info]) == 1


async def test_an_endpoint_that_is_made_is_shown_although_the_database_goes_away(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> None:
        raise errors.DatabaseUnavailable("away")

    monkeypatch.setattr(EndpointService, "fit", fails)
    made = await api("POST", ENDPOINTS, BODY, headers=KEY, status=201)
    rotated = await api("POST", f"{ENDPOINTS}/{made['id']}:rotate-secret", headers={"Idempotency-Key": "r"}, status=200)
    assert rotated["secret"] != made["secret"]


async def test_a_request_that_failed_without_a_change_may_be_repeated(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any, **__: Any) -> Any:
        raise errors.DatabaseUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(KeyService, "create", fails)
        await api("POST", "/v1/keys", {"role": "admin"}, headers=KEY, status=503)
    await api("POST", "/v1/keys", {"role": "admin"}, headers=KEY, status=201)


@pytest.mark.parametrize(
    "failure", [errors.OutcomeUnknown("lost"), errors.DatabaseInDoubt("lost"), RuntimeError("unforeseen")]
)
async def test_a_request_with_an_unknown_outcome_is_not_carried_out_again(
    api: Api, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    create = EndpointService.create

    async def fails(*args: Any, **more: Any) -> Any:
        await create(*args, **more)
        raise failure

    monkeypatch.setattr(repeats, "LOOKS", 1)
    with monkeypatch.context() as patched:
        patched.setattr(EndpointService, "create", fails)
        assert (await api.raw("POST", ENDPOINTS, BODY, headers=KEY)).status_code >= 500
    refused = await api.raw("POST", ENDPOINTS, BODY, headers=KEY)
    assert (refused.status_code, refused.json()["code"]) == (409, "request_in_progress")
    assert refused.headers["retry-after"] == "1"
    monkeypatch.setattr(repeats, "UNDER_WAY_US", 0)
    refused = await api.raw("POST", ENDPOINTS, BODY, headers=KEY)
    assert (refused.status_code, refused.json()["code"]) == (409, "outcome_unknown")
    assert "retry-after" not in refused.headers
    assert len(await endpoints(api)) == 1


async def test_repeats_at_the_same_time_wait_for_the_first_one(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    create = KeyService.create

    async def slow(*args: Any, **more: Any) -> Any:
        await asyncio.sleep(0.05)
        return await create(*args, **more)

    monkeypatch.setattr(KeyService, "create", slow)
    found = await asyncio.gather(*[api("POST", "/v1/keys", {"role": "admin"}, headers=KEY) for _ in range(5)])
    assert len({each["key"] for each in found}) == 1
    assert len(await api.listed("/v1/keys")) == 2


async def test_a_repeat_is_carried_out_although_others_were_quicker_twice_and_were_refused(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, quicker = Accepted.add_repeats, [True, True]

    def adds(*args: Any) -> None:
        if quicker and quicker.pop():
            raise sa.exc.IntegrityError("INSERT", {}, Exception("there is one"))
        add(*args)

    monkeypatch.setattr(Accepted, "add_repeats", adds)
    await api("POST", ENDPOINTS, BODY, headers=KEY, status=201)
    assert len(await endpoints(api)) == 1


async def test_keys_are_forgotten_after_a_day(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await api("POST", ENDPOINTS, BODY, headers=KEY)
    await api.service.upkeep().tidy_once()
    assert len(await rows(api)) == 1
    later = api.service.parts.now_us() + 25 * 3_600_000_000
    monkeypatch.setattr(api.service.parts, "now_us", lambda: later)
    await api.service.upkeep().tidy_once()
    assert await rows(api) == []
