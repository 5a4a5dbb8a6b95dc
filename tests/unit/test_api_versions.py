"""Changes of tenants and endpoints lose nothing that the body leaves out, and nothing that others have changed."""

from __future__ import annotations

from typing import Any

import pytest

from emq_push.attributes import DISABLED, URL
from emq_push.service.host_changes import HostChanges
from support import push_api
from support.push_api import Api
from support.push_api_calls import endpoint_of

TENANT = "/v1/tenants/acme"
SETTINGS = {
    "name": "Acme",
    "payload_retention_s": 7_200,
    "log_retention_s": 86_400,
    "delete_on_success": True,
}


api = push_api.fixture(puts={TENANT: {"qps": 10, **SETTINGS}})


async def etag_of(api: Api, path: str) -> str:
    return str((await api.raw("GET", path)).headers["etag"])


async def changed(api: Api, method: str, path: str, body: Any, etag: str) -> tuple[int, str]:
    """Send a request with If-Match; return the status and the ETag of the answer."""
    response = await api.raw(method, path, body, headers={"If-Match": etag})
    assert response.status_code < 400 or response.json()["code"] == "other_version", response.text
    return response.status_code, response.headers.get("etag", "")


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_a_change_of_the_rate_resets_nothing(api: Api, method: str) -> None:
    found = await api(method, TENANT, {"qps": 20}, status=200)
    assert {name: found[name] for name in SETTINGS} == SETTINGS
    assert (await api.app.catalog.get("acme")).qps == 20
    entry = (await api("GET", f"{TENANT}/audit-log"))["data"][0]
    assert (entry["action"], entry["changes"]) == ("tenant.changed", {"qps": 20})


async def test_a_patch_names_what_it_changes_and_creates_nothing(api: Api) -> None:
    found = await api("PATCH", TENANT, {"name": "", "delete_on_success": False})
    assert (found["name"], found["delete_on_success"], found["qps"]) == ("", False, 10)
    await api("PATCH", TENANT, {"log_retention_s": 3_600}, status=422)
    await api("PATCH", TENANT, {"qps": 0}, status=422)
    await api("PATCH", "/v1/tenants/nobody", {"name": "x"}, status=404)
    assert (await api("GET", TENANT))["log_retention_s"] == 86_400


async def test_null_in_a_patch_gives_a_tenant_the_default_again(api: Api) -> None:
    body = {"name": None, "payload_retention_s": None, "log_retention_s": None, "delete_on_success": None}
    merge = {"Content-Type": "application/merge-patch+json"}
    found = await api("PATCH", TENANT, body, headers=merge)
    expected = {"name": "", "payload_retention_s": 2_592_000, "log_retention_s": 7_776_000, "delete_on_success": False}
    assert {name: found[name] for name in expected} == expected
    assert (await api("GET", f"{TENANT}/audit-log"))["data"][0]["changes"] == expected
    assert (await api("PATCH", TENANT, {"qps": None}, status=422))["pointer"] == "/qps"


async def test_a_tenant_of_another_version_stays_as_it_is(api: Api) -> None:
    old = await etag_of(api, TENANT)
    status, new = await changed(api, "PATCH", TENANT, {"qps": 20}, old)
    assert status == 200
    assert new == await etag_of(api, TENANT) != old
    for method, path, body in (
        ("PATCH", TENANT, {"qps": 30}),
        ("PUT", TENANT, {"qps": 30}),
        ("POST", f"{TENANT}:pause", None),
        ("POST", f"{TENANT}:resume", None),
        ("DELETE", TENANT, None),
    ):
        assert (await changed(api, method, path, body, old))[0] == 412, (method, path)
    found = await api("GET", TENANT)
    assert (found["qps"], found["paused"]) == (20, False)
    assert (await api.app.catalog.get("acme")).qps == 20
    assert (await changed(api, "POST", f"{TENANT}:pause", None, new))[0] == 200
    assert (await changed(api, "DELETE", TENANT, None, await etag_of(api, TENANT)))[0] == 204


async def test_a_tenant_is_only_created(api: Api) -> None:
    only_new = {"If-None-Match": "*"}
    await api("PUT", TENANT, {"qps": 5}, headers=only_new, status=412)
    await api("PUT", "/v1/tenants/other", {"qps": 5}, headers=only_new, status=201)
    await api("PUT", "/v1/tenants/third", {"qps": 5}, headers={"If-Match": '"7"'}, status=412)
    await api("GET", "/v1/tenants/third", status=404)
    assert "third" not in [topic.name for topic in await api.app.catalog.list()]


async def test_an_endpoint_of_another_version_stays_as_it_is(api: Api) -> None:
    made = await endpoint_of(api)
    path = f"{TENANT}/endpoints/{made['id']}"
    old = await etag_of(api, path)
    status, new = await changed(api, "PATCH", path, {"qps": 5}, old)
    assert (status, new) == (200, await etag_of(api, path))
    calls = [("PATCH", path, {"qps": 6}), ("DELETE", path, None)]
    calls += [("POST", f"{path}:{action}", None) for action in ("pause", "resume", "disable", "enable")]
    calls.append(("POST", f"{path}:rotate-secret", None))
    for method, where, body in calls:
        assert (await changed(api, method, where, body, old))[0] == 412, where
    found = await api("GET", path)
    assert (found["qps"], found["paused"], found["disabled"]) == (5, False, None)
    for action in ("pause", "resume", "disable", "enable", "rotate-secret"):
        status, after = await changed(api, "POST", f"{path}:{action}", None, new)
        assert (status, after) == (200, await etag_of(api, path))
        assert after != new
        new = after
    assert (await changed(api, "DELETE", path, None, new))[0] == 204


async def test_an_endpoint_that_a_host_has_disabled_has_another_version(api: Api) -> None:
    made = await endpoint_of(api)
    path = f"{TENANT}/endpoints/{made['id']}"
    old = await etag_of(api, path)
    changes = HostChanges(api.app, lambda: "h1")
    await changes.change(f"acme.{made['id']}", {DISABLED: "it is gone"}, {URL: made["url"]})
    assert (await changed(api, "PATCH", path, {"qps": 5}, old))[0] == 412
    assert (await api("GET", path))["disabled"] == "it is gone"


@pytest.mark.parametrize("moment", [0, 1, 1.5, True, "1", "1e3", "2026-11-26", "2026-11-26T07:00:00", "0x1"])
async def test_only_a_time_by_rfc_3339_is_a_time(api: Api, moment: Any) -> None:
    for path, body in (
        ("dead-letters:purge", {"died_gte": moment}),
        ("dead-letters:purge", {"died_lt": moment}),
        ("replays", {"filter": {"created_gte": moment}}),
    ):
        problem = await api("POST", f"{TENANT}/{path}", body, status=422)
        assert "RFC 3339" in problem["detail"] or "timezone" in problem["detail"]
    for path, name in (("messages", "created[gte]"), ("deliveries", "created[lt]"), ("dead-letters", "died[gte]")):
        await api("GET", f"{TENANT}/{path}", params={name: str(moment)}, status=422)
    message = {"event_type": "a", "payload": 1, "at": moment}
    await api("POST", f"{TENANT}/messages", message, status=422)


@pytest.mark.parametrize("moment", ["2026-11-26T07:00:00Z", "2026-11-26 07:00:00.123456+01:00"])
async def test_a_time_by_rfc_3339_is_taken(api: Api, moment: str) -> None:
    assert await api("POST", f"{TENANT}/dead-letters:purge", {"died_gte": moment}) == {"purged": 0, "more": False}
    await api("GET", f"{TENANT}/messages", params={"created[gte]": moment})


async def seen(api: Api, path: str, etag: str) -> tuple[int, bytes, str]:
    """Read what somebody has read before; return status, body and ETag."""
    response = await api.raw("GET", path, headers={"If-None-Match": etag})
    return response.status_code, response.content, response.headers["etag"]


async def test_an_answer_that_the_reader_has_comes_without_a_body_until_it_changes(api: Api) -> None:
    made = await endpoint_of(api)
    receipt = await api("POST", f"{TENANT}/messages", {"event_type": "a", "payload": {}})
    replay = await api("POST", f"{TENANT}/replays", {"filter": {"states": ["dead"]}, "rate_per_s": 1})
    delivery = f"{TENANT}/deliveries/{receipt['deliveries'][0]}"
    paths = [delivery, f"{TENANT}/deliveries", f"{TENANT}/replays/{replay['id']}", f"{TENANT}/replays", "/v1/keys"]
    tags = {path: await etag_of(api, path) for path in paths}
    assert len(set(tags.values())) == len(paths)
    for path, etag in tags.items():
        for given in (etag, f'"other", W/{etag}'):
            assert await seen(api, path, given) == (304, b"", etag), path
        assert (await seen(api, path, '"other"'))[0] == 200
    versioned = f"{TENANT}/endpoints/{made['id']}"
    assert (await seen(api, versioned, await etag_of(api, versioned)))[0] == 200, "hosts change parts of it"
    await api("DELETE", versioned)
    await api("POST", f"{TENANT}/replays/{replay['id']}:cancel")
    await api("POST", "/v1/keys", {"role": "admin"})
    for path, etag in tags.items():
        status, _, new = await seen(api, path, etag)
        assert (status, new != etag) == (200, True), path
