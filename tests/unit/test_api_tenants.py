"""The API: tenants, keys and problems."""

from __future__ import annotations

from typing import Any

import fastapi
import pytest

from emq.runtime import errors
from emq_push.service import tenants
from emq_web import application
from support import push_api
from support.push_api import Api


async def test_a_tenant_is_created_changed_listed_and_deleted(api: Api) -> None:
    made = await api("PUT", "/v1/tenants/acme", {"qps": 10}, status=201)
    assert (made["id"], made["qps"], made["delete_on_success"]) == ("acme", 10, False)
    assert made["created"].endswith("Z")
    assert (await api.app.catalog.get("acme")).qps == 10
    await api("PUT", "/v1/tenants/acme", {"qps": 20.5, "name": "Acme"}, status=200)
    assert (await api("GET", "/v1/tenants/acme"))["name"] == "Acme"
    assert (await api.app.catalog.get("acme")).qps == 20.5
    await api("DELETE", "/v1/tenants/acme", status=204)
    await api("GET", "/v1/tenants/acme", status=404)
    with pytest.raises(errors.UnknownTopic):
        await api.app.catalog.get("acme")


async def test_lists_go_on_at_their_cursor(api: Api) -> None:
    for n in range(5):
        await api("PUT", f"/v1/tenants/t{n}", {"qps": 1})
    assert [each["id"] for each in await api.listed("/v1/tenants", limit=2)] == ["t0", "t1", "t2", "t3", "t4"]
    problem = await api("GET", "/v1/tenants?cursor=xx", status=422)
    assert problem["code"] == "invalid_cursor"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/qps"),
        ({"qps": 0}, "/qps"),
        ({"qps": "10"}, "/qps"),
        ({"qps": 10, "colour": "red"}, "/colour"),
        ({"qps": 10, "log_retention_s": 3600}, "/log_retention_s"),
        ({"qps": 10, "name": "x" * 201}, "/name"),
    ],
)
async def test_a_wrong_value_is_named_by_its_pointer(api: Api, body: Any, pointer: str) -> None:
    response = await api.raw("PUT", "/v1/tenants/acme", body)
    problem = response.json()
    assert response.headers["content-type"] == "application/problem+json"
    assert (response.status_code, problem["code"], problem["pointer"]) == (422, "invalid_request", pointer)
    assert problem["type"] == "urn:emq:problem:invalid_request"


@pytest.mark.parametrize("tenant", ["a.b", "a b", "ä", "x" * 65])
async def test_an_id_that_no_tenant_can_have_is_refused(api: Api, tenant: str) -> None:
    await api("PUT", f"/v1/tenants/{tenant}", {"qps": 1}, status=422)


async def test_a_topic_of_somebody_else_is_not_taken_over(api: Api) -> None:
    await api.app.create_topic("acme", 5)
    problem = await api("PUT", "/v1/tenants/acme", {"qps": 1}, status=409)
    assert problem["code"] == "topic_exists"
    assert (await api.app.catalog.get("acme")).qps == 5


async def test_without_a_valid_key_nothing_works(api: Api) -> None:
    for key in ("", "nonsense", "emqk_" + "x" * 43, "emqk_ü"):
        headers = {"Authorization": f"Bearer {key}".encode()} if key else {}
        response = await api.raw("GET", "/v1/tenants", key="", headers=headers)
        assert response.status_code == 401
        assert response.headers["www-authenticate"].startswith("Bearer")


async def test_a_key_reaches_its_own_tenant_only(api: Api) -> None:
    for tenant in ("acme", "other"):
        await api("PUT", f"/v1/tenants/{tenant}", {"qps": 1})
    reader, sender, manager = [await api.key_of(role, "acme") for role in ("read", "send", "manage")]
    for key in (reader, manager):
        await api("GET", "/v1/tenants/acme", key=key)
        assert (await api("GET", "/v1/tenants/other", key=key, status=404))["code"] == "unknown_tenant"
        assert (await api("GET", "/v1/tenants/nobody", key=key, status=404))["code"] == "unknown_tenant"
        await api("GET", "/v1/tenants", key=key, status=403)
        await api("PUT", "/v1/tenants/acme", {"qps": 99}, key=key, status=403)
        await api("DELETE", "/v1/tenants/acme", key=key, status=403)
    await api("GET", "/v1/tenants/acme", key=sender, status=403)


async def test_keys_are_kept_as_digests_alone(api: Api) -> None:
    rows = await api.app.database.run(lambda c: str(c.exec_driver_sql("SELECT * FROM emq_push_keys").all()))
    assert api.admin not in rows
    assert api.admin.removeprefix("emqk_") not in rows


async def test_unknown_paths_and_methods_are_problems(api: Api) -> None:
    found = await api("GET", "/v1/nothing", status=404)
    assert found["code"] == "not_found"
    assert found["detail"] == "there is no path /v1/nothing; /v1/openapi.json describes all operations"
    found = await api("POST", "/v1/tenants/acme", {}, status=405)
    assert found["code"] == "method_not_allowed"
    assert found["detail"].startswith("/v1/tenants/acme does not take POST; ")
    response = await api.raw("PUT", "/v1/tenants/acme", content=b"{", headers={"Content-Type": "application/json"})
    assert (response.status_code, response.json()["code"]) == (400, "invalid_json")


async def test_an_unknown_parameter_of_a_query_is_refused(api: Api) -> None:
    problem = await api("GET", "/v1/tenants?limits=5", status=422)
    assert "'limits' is not known; known are cursor, limit" in problem["detail"]
    for path in ("/v1/tenants?limits=5", "/v1/tenants/acme/deliveries?limits=5", "/v1/hosts?limits=5"):
        await api("GET", path, status=401, key="wrong")
    await api("PUT", "/v1/tenants/acme", {"qps": 1})
    problem = await api("GET", "/v1/tenants/acme/messages?created[gt]=2026-01-01T00:00:00Z", status=422)
    assert "created[gte], created[lt]" in problem["detail"]
    await api("GET", "/v1/tenants/acme/messages?created[gte]=2026-01-01T00:00:00Z&limit=1", status=200)
    assert (await api("GET", "/v1/tenants/acme/messages?created[gte]=2026-01-01", status=422))["code"]


async def test_applications_of_a_process_share_their_paths_but_no_state(api: Api) -> None:
    one, other = (application.build(api.service) for _ in range(2))
    own = [route for route in one.routes if not any(route is each for each in other.routes)]
    assert [getattr(route, "path", "") for route in own] == ["/v1/openapi.json"] != one.routes
    assert one.state.desk is not other.state.desk


async def test_the_document_that_anybody_may_read_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made, openapi = [], fastapi.FastAPI.openapi

    def counted(self: fastapi.FastAPI) -> dict[str, Any]:
        made.append(self)
        return openapi(self)

    monkeypatch.setattr(fastapi.FastAPI, "openapi", counted)
    async with push_api.opened() as api:
        answers = [await api.raw("GET", "/v1/openapi.json", key="") for _ in range(3)]
    assert len(made) == 1
    assert len({answer.content for answer in answers}) == 1
    assert answers[0].json()["info"]["title"] == application.TITLE


async def test_deleting_a_tenant_finds_its_endpoints_behind_other_topics_below_its_name(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenants, "SOME", 2)
    await api("PUT", "/v1/tenants/shop", {"qps": 10}, status=201)
    for name in ("shop.a", "shop.b", "shop.c"):
        await api.app.create_topic(name, qps=1)
    for _ in range(3):
        await api("POST", "/v1/tenants/shop/endpoints", {"url": "https://example.com/hook"}, status=201)
    await api("DELETE", "/v1/tenants/shop", status=204)
    assert list(await api.app.catalog.names()) == ["shop.a", "shop.b", "shop.c"]
