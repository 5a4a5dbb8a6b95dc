"""The API: keys, tokens, the audit log, and the limits of requests."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import httpx
import pytest

from emq_push.service import keys
from emq_web.limits import Limits, Rates
from emq_web.problems import Problem
from support import push_api
from support.push_api import Api

api = push_api.fixture("acme", "other")


async def test_keys_are_made_listed_and_deleted(api: Api) -> None:
    made = await api("POST", "/v1/keys", {"role": "read", "tenant": "acme", "name": "shop"}, status=201)
    await api("GET", "/v1/tenants/acme", key=made["key"])
    listed = (await api("GET", "/v1/keys"))["data"]
    assert [key["name"] for key in listed] == ["", "shop"]
    assert "key" not in listed[1]
    await api("DELETE", f"/v1/keys/{made['id']}", status=204)
    await api("GET", "/v1/tenants/acme", key=made["key"], status=401)
    assert (await api("DELETE", f"/v1/keys/{made['id']}", status=404))["code"] == "unknown_key"


@pytest.mark.parametrize(
    "body", [{"role": "admin", "tenant": "acme"}, {"role": "read"}, {"role": "owner"}, {"role": "read", "tenant": "x"}]
)
async def test_a_key_without_sense_is_refused(api: Api, body: Any) -> None:
    response = await api.raw("POST", "/v1/keys", body)
    assert response.status_code in (404, 422)


async def test_a_token_is_of_one_tenant_and_ends(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = (await api("POST", "/v1/keys", {"role": "manage", "tenant": "acme"}))["key"]
    token = (await api("POST", "/v1/tenants/acme/tokens", {"lifetime_s": 60}, key=manager, status=201))["key"]
    await api("GET", "/v1/tenants/acme", key=token)
    await api("POST", "/v1/tenants/acme/tokens", {}, key=token, status=403)
    await api("POST", "/v1/tenants/other/tokens", {}, key=manager, status=404)
    await api("POST", "/v1/tenants/acme/tokens", {"role": "admin"}, key=manager, status=422)
    await api("POST", "/v1/tenants/acme/tokens", {"lifetime_s": 86_401}, key=manager, status=422)
    now_us = api.service.parts.now_us
    monkeypatch.setattr(api.service.parts, "now_us", lambda: now_us() + 61_000_000)
    await api("GET", "/v1/tenants/acme", key=token, status=401)


async def test_a_token_does_not_outlive_the_key_that_makes_it(api: Api) -> None:
    path = "/v1/tenants/acme/tokens"
    first = await api("POST", path, {"role": "manage", "lifetime_s": 60}, status=201)
    longer = await api("POST", path, {"role": "manage", "lifetime_s": 3600}, key=first["key"], status=201)
    shorter = await api("POST", path, {"role": "read", "lifetime_s": 5}, key=first["key"], status=201)
    assert longer["expires"] == first["expires"] > shorter["expires"]


async def lineage(api: Api) -> dict[str, Any]:
    """Make an admin key, a tenant's key of it, a token of that one, and a token of the token; return them by name."""
    made = {"top": await api("POST", "/v1/keys", {"role": "admin"})}
    body = {"role": "manage", "tenant": "acme"}
    made["key"] = await api("POST", "/v1/keys", body, key=made["top"]["key"])
    for name, maker in (("token", "key"), ("token of token", "token")):
        body = {"role": "manage", "lifetime_s": 600}
        made[name] = await api("POST", "/v1/tenants/acme/tokens", body, key=made[maker]["key"])
    return made


async def working(api: Api, made: dict[str, Any]) -> list[str]:
    statuses = {
        name: (await api.raw("GET", "/v1/tenants/acme", key=key["key"])).status_code for name, key in made.items()
    }
    return [name for name, status in statuses.items() if status == 200]


async def test_a_deleted_key_takes_all_that_it_made_with_it(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await lineage(api)
    bystander = {"bystander": await api("POST", "/v1/keys", {"role": "read", "tenant": "acme"})}
    assert await working(api, made) == ["top", "key", "token", "token of token"]
    assert made["token of token"]["made_by"] == made["token"]["id"]
    async with push_api.another(api) as other:
        assert len(await working(other, made)) == 4
        await api("DELETE", f"/v1/keys/{made['key']['id']}", status=204)
        assert await working(api, made | bystander) == ["top", "bystander"]
        now_us = other.service.parts.now_us
        monkeypatch.setattr(other.service.parts, "now_us", lambda: now_us() + 1_000_000)
        assert await working(other, made) == ["top"]
    entry = (await api("GET", "/v1/audit-log"))["data"][0]
    assert entry["changes"]["with"] == [made["token"]["id"], made["token of token"]["id"]]


async def test_a_key_is_replaced_without_those_that_it_made(api: Api) -> None:
    made = await lineage(api)
    await api("DELETE", f"/v1/keys/{made['key']['id']}?keep_made=true", status=204)
    assert await working(api, made) == ["top", "token", "token of token"]
    await api("DELETE", f"/v1/keys/{made['top']['id']}", status=204)
    assert await working(api, made) == []


async def test_a_key_ends_with_its_maker_at_the_latest(api: Api) -> None:
    _, short = await api.service.keys.create("admin", "test", lifetime_s=60)
    longer = await api("POST", "/v1/keys", {"role": "admin"}, key=short)
    assert longer["expires"] is not None
    key, text = await api.service.keys.create("manage", "test", tenant="acme")
    async with push_api.another(api) as other:
        await other("GET", "/v1/tenants/acme", key=text)
        await api.service.keys.delete(key.id, "test")
        # The other process takes the deleted key for a second; what it would make then is refused.
        problem = await other("POST", "/v1/tenants/acme/tokens", {}, key=text, status=404)
        assert problem["code"] == "unknown_key"


async def opened(api: Api, path: str, **headers: str) -> httpx.Response:
    """Open a link as a browser does, whose script sends what is behind the `#`."""
    api.http.cookies.clear()
    same = {"origin": push_api.URL, "sec-fetch-site": "same-origin", **headers}
    return await api.http.post("/ui/sign-in", data={"key": path.partition("#")[2]}, headers=same)


async def linked(api: Api, key: str | None = None, **given: Any) -> str:
    path: str = (await api("POST", "/v1/tenants/acme/portal-links", given, key=key, status=201))["path"]
    assert path.startswith("/ui/sign-in#emql_")
    return path


async def test_a_link_signs_in_once_with_its_own_role_and_is_no_key(api: Api) -> None:
    path = await linked(api, role="read", name="Ann")
    await api("GET", "/v1/tenants/acme", key=path.partition("#")[2], status=401)
    [link] = [key for key in await api.listed("/v1/keys") if key["kind"] == "link"]
    assert (await opened(api, path)).status_code == 303
    [session] = [key for key in await api.listed("/v1/keys") if key["id"] == link["id"]]
    assert (session["kind"], session["role"], session["name"]) == ("session", "read", "Ann")
    assert (await api.http.get("/ui/tenants/acme")).status_code == 200
    assert (await api.http.get("/ui/tenants/acme/endpoints/new")).status_code == 403
    assert (await api.http.get("/ui/tenants/other")).status_code == 404
    again = await opened(api, path)
    assert (again.status_code, "set-cookie" in again.headers) == (401, False)
    assert "was opened before" in again.text


async def test_a_link_lives_for_minutes_and_its_session_for_hours(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    late, early = [await linked(api, lifetime_s=60) for _ in range(2)]
    assert (await opened(api, early)).status_code == 303
    now_us = api.service.parts.now_us
    monkeypatch.setattr(type(api.service.parts), "now_us", lambda _: now_us() + 61_000_000)
    assert (await opened(api, late)).status_code == 401
    [session] = [key for key in await api.listed("/v1/keys") if key["kind"] == "session"]
    life = datetime.datetime.fromisoformat(session["expires"]) - datetime.datetime.fromisoformat(session["created"])
    assert life == datetime.timedelta(seconds=keys.SESSION_S)


async def test_a_link_and_its_session_end_with_the_key_that_made_them(api: Api) -> None:
    maker, text = await api.service.keys.create("manage", "test", tenant="acme", lifetime_s=600)
    unopened, path = [await linked(api, text) for _ in range(2)]
    assert (await opened(api, path)).status_code == 303
    [session] = [key for key in await api.listed("/v1/keys") if key["kind"] == "session"]
    assert datetime.datetime.fromisoformat(session["expires"]).timestamp() * 1e6 == pytest.approx(maker.expires_us)
    await api.service.keys.delete(maker.id, "test")
    assert (await api.http.get("/ui/tenants/acme")).status_code == 303
    assert (await opened(api, unopened)).status_code == 401
    await api("POST", "/v1/tenants/acme/portal-links", {"role": "send"}, status=422)
    await api("POST", "/v1/tenants/acme/portal-links", {"lifetime_s": 3601}, status=422)
    await api("POST", "/v1/tenants/acme/portal-links", {}, key=await api.key_of("read", "acme"), status=403)
    await api("POST", "/v1/tenants/acme/portal-links", {}, key=await api.key_of("manage", "other"), status=404)


async def test_the_sessions_of_one_tenant_do_not_end_those_of_another(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "MOST_SESSIONS", 2)
    assert (await opened(api, await linked(api))).status_code == 303
    first = dict(api.http.cookies)
    for _ in range(3):
        path = (await api("POST", "/v1/tenants/other/portal-links", {}))["path"]
        assert (await opened(api, path)).status_code == 303
    sessions = [key["tenant"] for key in await api.listed("/v1/keys") if key["kind"] == "session"]
    assert sorted(sessions) == ["acme", "other", "other"]
    api.http.cookies.clear()
    cookie = "; ".join(f"{name}={value}" for name, value in first.items())
    assert (await api.http.get("/ui/tenants/acme", headers={"cookie": cookie})).status_code == 200


async def test_a_frame_gets_a_cookie_of_its_own(api: Api) -> None:
    cookie = (await opened(api, await linked(api), **{"sec-fetch-dest": "iframe"})).headers["set-cookie"]
    for part in ("emq_framed=emqs_", "HttpOnly", "Secure", "SameSite=none", "Partitioned", "Path=/ui"):
        assert part in cookie, cookie
    cookie = (await opened(api, await linked(api))).headers["set-cookie"]
    assert "Partitioned" not in cookie


async def test_the_audit_log_says_who_changed_what_without_secrets(api: Api) -> None:
    manager = (await api("POST", "/v1/keys", {"role": "manage", "tenant": "acme", "name": "ann"}))["key"]
    url, path = "https://93.184.216.34/hook", "/v1/tenants/acme/endpoints"
    auth = {"type": "bearer", "token": "t0ps3cret"}
    made = await api("POST", path, {"url": url, "headers": {"X-Key": "h1dden"}, "auth": auth}, key=manager)
    await api("PATCH", f"{path}/{made['id']}", {"qps": 5, "headers": {"X-Key": "h1dden"}}, key=manager)
    await api("POST", f"{path}/{made['id']}:rotate-secret", key=manager)
    response = await api.raw("GET", "/v1/tenants/acme/audit-log", key=manager)
    entries = response.json()["data"]
    actions = ["endpoint.secret_rotated", "endpoint.changed", "endpoint.created", "key.created", "tenant.created"]
    assert [entry["action"] for entry in entries] == actions
    assert entries[0]["actor"].endswith(" ann")
    assert entries[1]["changes"] == {"qps": 5, "header_names": ["X-Key"]}
    assert not any(secret in response.text for secret in ("t0ps3cret", "h1dden", "whsec_", manager))
    tenants = {entry["tenant"] for entry in (await api("GET", "/v1/audit-log"))["data"]}
    assert tenants == {None, "acme", "other"}
    await api("GET", "/v1/tenants/acme/audit-log", key="emqk_none", status=401)
    await api("GET", "/v1/tenants/other/audit-log", key=manager, status=404)


async def test_the_audit_log_is_filtered_by_who_what_and_when(api: Api) -> None:
    key, text = await api.service.keys.create("admin", "test", name="ann")
    await api("PATCH", "/v1/tenants/acme", {"qps": 5}, key=text)
    await api("PUT", "/v1/tenants/a_me", {"qps": 5})
    everything = await api.listed("/v1/audit-log", limit=1)
    assert len(everything) == 6

    async def found(path: str = "/v1/audit-log", **params: Any) -> list[tuple[str, str]]:
        return [(each["action"], each["target"]) for each in await api.listed(path, limit=1, **params)]

    assert await found(actor=key.id) == [("tenant.changed", "acme")]
    assert [target for _, target in await found(actor="key")] == ["a_me", "acme", "other", "acme"]
    assert await found(actor="key_%") == [], "no pattern"
    assert (await found(action="key."))[0] == ("key.created", key.id)
    assert {action for action, _ in await found(action="key.")} == {"key.created"}
    assert await found(target="a_me") == [("tenant.created", "a_me")]
    assert await found("/v1/tenants/acme/audit-log", action="tenant.c", target="acme") == [
        ("tenant.changed", "acme"),
        ("tenant.created", "acme"),
    ]
    middle = everything[2]["time"]
    assert len(await found(**{"created[gte]": middle})) == 3
    assert len(await found(**{"created[lt]": middle})) == 3
    await api("GET", "/v1/audit-log", params={"tenants": "acme"}, status=422)


async def test_the_last_use_of_a_key_is_noted_to_the_minute(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await api("POST", "/v1/keys", {"role": "read", "tenant": "acme"})
    assert made["used"] is None

    async def used() -> Any:
        return next(each for each in await api.listed("/v1/keys") if each["id"] == made["id"])["used"]

    async def use_at(seconds: int) -> Any:
        monkeypatch.setattr(api.service.parts, "now_us", lambda: begin_us + seconds * 1_000_000)
        await api("GET", "/v1/tenants/acme", key=made["key"])
        return await used()

    begin_us = api.service.parts.now_us()
    first = await use_at(0)
    assert first is not None
    assert await use_at(59) == first
    assert await use_at(61) > first


def test_an_account_has_its_requests_a_second() -> None:
    now_s = 0.0
    rates = Rates(10, lambda: now_s)
    for _ in range(10):
        rates.take("acme")
    rates.take("other")
    with pytest.raises(Problem, match="at most 10 requests a second") as caught:
        rates.take("acme")
    assert (caught.value.status, (caught.value.headers or {})["Retry-After"]) == (429, "1")
    now_s = 0.1
    rates.check("acme")
    rates.take("acme")
    with pytest.raises(Problem):
        rates.check("acme")


async def test_large_bodies_at_once_are_bounded_together(api: Api) -> None:
    body = b'{"event_type":"a","payload":"' + b"x" * 5_000 + b'"}'
    headers = {"Content-Type": "application/json"}
    async with push_api.another(api, Limits(held_bytes=12_000)) as other:
        calls = [other.raw("POST", "/v1/tenants/acme/messages", content=body, headers=headers) for _ in range(6)]
        answers = await asyncio.gather(*calls)
        assert sorted({answer.status_code for answer in answers}) == [202, 503]
        assert {answer.json()["code"] for answer in answers if answer.status_code == 503} == {"busy"}
        late = await other.raw("POST", "/v1/tenants/acme/messages", content=body, headers=headers)
        assert late.status_code == 202


async def test_huge_and_broken_bodies_are_problems(api: Api) -> None:
    path, headers = "/v1/tenants/acme/messages", {"Content-Type": "application/json"}
    many = b'{"messages":[' + b",".join([b'{"event_type":"a","payload":1}'] * 501) + b"]}"
    bodies = {
        b"": (400, "invalid_json", None),
        b'{"event_type":"a","payload":[1,2': (400, "invalid_json", None),
        b"\xff\xfe": (400, "invalid_json", None),
        b'{"event_type":"a","payload":"\xff"}': (400, "invalid_json", None),
        b"[" * 100_000: (422, "invalid_request", None),
        b'{"event_type":"a","payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}": (400, "invalid_json", None),
        b"x" * (9 << 20): (413, "too_large", None),
        many: (422, "invalid_request", "/messages"),
        b'{"event_type":"a","payload":"' + b"x" * (1 << 20) + b'"}': (422, "payload_too_large", "/payload"),
        b'{"event_type":"a","payload":1,"colour":2}': (422, "invalid_request", "/colour"),
        b'{"event_type":"a b","payload":1}': (422, "invalid_request", "/event_type"),
        b'{"event_type":"a\\n","payload":1}': (422, "invalid_request", "/event_type"),
        b'{"event_type":"a"}': (422, "invalid_request", "/payload"),
        b'{"event_type":"a","payload":1,"key":"\\u0000"}': (422, "invalid_request", "/key"),
        b'{"event_type":"a","payload":1,"delay_s":1,"at":"2100-01-01T00:00:00Z"}': (422, "invalid_request", "/at"),
        b'{"event_type":"a","payload":1,"at":"2100-01-01T00:00:00Z"}': (422, "invalid_request", "/at"),
        b'{"messages":[{"event_type":"a","payload":1},{"event_type":"a"}]}': (422, None, "/messages/1/payload"),
        b'{"messages":[{"event_type":"a","payload":1,"id":"m"},{"event_type":"b","payload":1,"id":"m"}]}': (
            *(422, "invalid_request"),
            "/messages/1/id",
        ),
    }
    for body, (status, code, pointer) in bodies.items():
        response = await api.raw("POST", path, content=body, headers=headers)
        problem = response.json()
        assert response.status_code == status, (body[:80], response.text)
        assert code is None or problem["code"] == code, (body[:80], problem)
        assert pointer is None or problem["pointer"] == pointer, (body[:80], problem)
    assert (await api.raw("POST", path, content=b"{}", headers={"Content-Type": "text/plain"})).status_code == 415
    assert (await api("GET", path))["data"] == []
