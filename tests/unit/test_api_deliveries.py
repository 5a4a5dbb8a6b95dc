"""Deliveries, replays, dead letters, lag and limits over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa

from emq.host.statistics import ThrottledTopic
from emq_push.records import tables
from emq_push.service.replay_runner import Lost, ReplayRunner
from support import push_api, push_hosts
from support.push_api import Api
from support.push_tenant import Tenant

T = "/v1/tenants/t1"


class Case:
    """An API with a tenant `t1` and its endpoints `ep_a` and `ep_b`, and a tenant `t2`; keys of both."""

    def __init__(self, api: Api, tenant: Tenant, keys: dict[str, str]) -> None:
        self.api = api
        self.tenant = tenant
        self.keys = keys


@pytest.fixture
async def case() -> AsyncIterator[Case]:
    async with push_api.opened("t1", "t2") as api:
        tenant = Tenant(api.app, "t1")
        for endpoint in ("ep_a", "ep_b"):
            await tenant.add_endpoint(endpoint)
        roles = {"reader": ("read", "t1"), "manager": ("manage", "t1"), "stranger": ("manage", "t2")}
        yield Case(api, tenant, {name: await api.key_of(*of) for name, of in roles.items()})


async def test_a_delivery_with_its_attempts(case: Case) -> None:
    api = case.api
    await case.tenant.add(3, "delivered")
    row = {"environment": "online", "topic": "t1.ep_a", "message": "m00001", "started_us": 1_700_000_000_123_456}
    row |= {"number": 1, "took_us": 2500, "status": 500, "outcome": "retry", "reason": "HTTP 500", "answer": "x" * 900}
    await api.app.database.run(lambda c: c.execute(sa.insert(tables.attempts).values(**row, host="h1")))
    found = await api("GET", f"{T}/deliveries/ep_a:m00001", key=case.keys["reader"])
    assert (found["id"], found["state"], found["endpoint"], found["message"]) == (
        *("ep_a:m00001", "delivered", "ep_a", "m00001"),
    )
    assert found["created"].endswith("Z")
    assert found["hold"] is None
    [attempt] = found["latest_attempts"]
    assert attempt == {
        "delivery": "ep_a:m00001",
        "number": 1,
        "started": "2023-11-14T22:13:20.123456Z",
        "took_ms": 2.5,
        "status": 500,
        "outcome": "retry",
        "reason": "HTTP 500",
        "answer": "x" * 256,
        "host": None,
    }
    [for_admin] = (await api("GET", f"{T}/deliveries/ep_a:m00001/attempts"))["data"]
    assert for_admin["host"] == "h1"
    assert len(await api.listed(f"{T}/endpoints/ep_a/attempts")) == 1


async def test_the_list_has_filters_and_pages(case: Case) -> None:
    api = case.api
    await case.tenant.add(5, "delivered")
    await case.tenant.add(4, "dead", first=10, endpoint="ep_b", event_type="user.left")
    assert len(await api.listed(f"{T}/deliveries", limit=2)) == 9
    assert {d["id"] for d in await api.listed(f"{T}/deliveries", state="dead", limit=3)} == {
        f"ep_b:m{i:05d}" for i in range(10, 14)
    }
    assert len(await api.listed(f"{T}/deliveries", event_type=["user.*", "x"])) == 4
    assert len(await api.listed(f"{T}/deliveries", endpoint="ep_a", message="m00002")) == 1
    assert await api.listed(f"{T}/deliveries", status=500) == []
    third = (await api("GET", f"{T}/deliveries/ep_a:m00003"))["created"]
    since = await api.listed(f"{T}/deliveries", **{"created[gte]": third, "endpoint": "ep_a"})
    assert sorted(d["message"] for d in since) == ["m00003", "m00004"]
    before = await api.listed(f"{T}/deliveries", **{"created[lt]": third, "endpoint": "ep_a"})
    assert sorted(d["message"] for d in before) == ["m00000", "m00001", "m00002"]


WRONG = [
    {"state": "pending"},
    {"limit": "0"},
    {"limit": "501"},
    {"cursor": "made-up"},
    {"cursor": "x" * 3000},
    {"created[gte]": "yesterday"},
    {"created[gte]": "2026-01-01T00:00:00"},
    {"stat": "dead"},
    {"event_type": "a*b"},
    {"message": "a\0b"},
    {"status": "99"},
    {"endpoint": "ep_a'; --"},
]


async def test_wrong_parameters_are_named(case: Case) -> None:
    for params in WRONG:
        problem = await case.api("GET", f"{T}/deliveries", params=params, status=422)
        assert problem["code"] in ("invalid_request", "invalid_cursor"), params
        assert problem["detail"]


PATHS = [
    ("GET", "/deliveries"),
    ("GET", "/deliveries/ep_a:m00000"),
    ("GET", "/deliveries/ep_a:m00000/attempts"),
    ("GET", "/deliveries/ep_a:m00000/trace"),
    ("GET", "/endpoints/ep_a/attempts"),
    ("POST", "/deliveries/ep_a:m00000:resend"),
    ("POST", "/deliveries/ep_a:m00000:cancel"),
    ("POST", "/replays"),
    ("GET", "/replays"),
    ("GET", "/replays/rpl_x"),
    ("POST", "/replays/rpl_x:pause"),
    ("POST", "/replays/rpl_x:resume"),
    ("POST", "/replays/rpl_x:cancel"),
    ("GET", "/dead-letters"),
    ("GET", "/dead-letters/count"),
    ("POST", "/dead-letters:replay"),
    ("POST", "/dead-letters:purge"),
    ("GET", "/lag"),
    ("GET", "/rate-limit-status"),
    ("POST", ":pause"),
    ("POST", ":resume"),
    ("POST", "/endpoints/ep_a:handshake"),
    ("GET", "/endpoints/ep_a/handshake"),
]


async def test_another_tenant_s_things_are_not_there(case: Case) -> None:
    api = case.api
    await case.tenant.add(1, "dead")
    for method, path in PATHS:
        body = {"filter": {}, "ids": ["ep_a:m00000"]} if method == "POST" else None
        problem = await api(method, T + path, body, key=case.keys["stranger"], status=404)
        assert problem["code"] == "unknown_tenant", path
        await api(method, T + path, body, key="", status=401)
        await api(method, "/v1/tenants/nobody" + path, body, key="", status=401)
        if method == "POST":
            await api(method, T + path, body, key=case.keys["reader"], status=403)
        else:
            assert (await api(method, "/v1/tenants/nobody" + path, status=404))["code"] == "unknown_tenant", path
    assert (await case.tenant.get("m00000")).state == "dead"


async def test_resend_and_cancel(case: Case) -> None:
    api, key = case.api, case.keys["manager"]
    await case.tenant.add(2, "dead")
    sent = await api("POST", f"{T}/deliveries/ep_a:m00000:resend", key=key, status=202)
    assert sent["state"] == "waiting"
    again = await api("POST", f"{T}/deliveries/ep_a:m00000:resend", key=key, status=409)
    assert again["code"] == "not_settled"
    await api("POST", f"{T}/deliveries/ep_a:m00001:resend", {"priority": "no-such"}, key=key, status=422)
    await api("POST", f"{T}/deliveries/ep_a:m00001:resend", {"rate": 1}, key=key, status=422)
    taken = await api("POST", f"{T}/deliveries/ep_a:m00000:cancel", key=key)
    assert taken["state"] == "cancelled"
    assert (await api("POST", f"{T}/deliveries/ep_a:m00000:cancel", key=key, status=409))["code"] == "settled"
    assert await case.tenant.lane() == ([], ["m00001"])
    entries = (await api("GET", "/v1/audit-log", params={"tenant": "t1"}))["data"]
    assert {"delivery.resent", "delivery.cancelled"} <= {entry["action"] for entry in entries}


async def carried_out(case: Case) -> None:
    """Carry out all replays without their rests."""
    runner = ReplayRunner(case.api.service.parts)
    for seen in await runner._free(runner._parts.now_us()):
        seen = await runner._renewed(seen)
        try:
            while True:
                seen, _ = await runner.step(seen)
        except Lost:
            continue


async def test_a_replay_from_dry_run_to_done(case: Case) -> None:
    api, key = case.api, case.keys["manager"]
    await case.tenant.add(30, "dead")
    await case.tenant.add(5, "delivered", first=100)
    wanted = {"filter": {"states": ["dead"], "event_types": ["order.*"]}, "rate_per_s": 5000}
    counted = await api("POST", f"{T}/replays", {**wanted, "dry_run": True}, key=key, status=200)
    assert counted == {"total": 30, "total_is_exact": True}
    assert (await api("GET", f"{T}/replays", key=key))["data"] == []
    made = await api("POST", f"{T}/replays", wanted, key=key, status=202)
    assert (made["state"], made["total"], made["replayed"]) == ("running", 30, 0)
    assert (await api("POST", f"{T}/replays/{made['id']}:pause", key=key))["state"] == "paused"
    await carried_out(case)
    assert (await api("GET", f"{T}/replays/{made['id']}", key=key))["replayed"] == 0
    assert (await api("POST", f"{T}/replays/{made['id']}:resume", key=key))["state"] == "running"
    await carried_out(case)
    done = await api("GET", f"{T}/replays/{made['id']}", key=key)
    assert (done["state"], done["replayed"], done["left_out"]) == ("done", 30, 0)
    assert done["filter"]["event_types"] == ["order.*"]
    assert (await api("POST", f"{T}/replays/{made['id']}:cancel", key=key, status=409))["code"] == "ended"
    assert len((await case.tenant.lane())[0]) == 30
    assert (await api("GET", f"{T}/dead-letters/count", key=key))["dead"] == 0
    await api("GET", f"/v1/tenants/t2/replays/{made['id']}", key=case.keys["stranger"], status=404)
    assert (await api.listed(f"{T}/replays", limit=1))[0]["id"] == made["id"]


WRONG_REPLAYS: list[dict[str, Any]] = [
    {},
    {"filter": {"states": ["pending"]}},
    {"filter": {"states": []}},
    {"filter": {"tenant": "t2"}},
    {"filter": {}, "rate_per_s": 0},
    {"filter": {}, "rate_per_s": 1e9},
    {"filter": {"created_gte": "2026-01-02T00:00:00Z", "created_lt": "2026-01-01T00:00:00Z"}},
    {"filter": {"created_gte": "2026-01-02"}},
    {"filter": {"endpoint": "ep_a"}, "priority": "no-such"},
    {"filter": {}, "priority": "a\0b"},
]


async def test_wrong_replays_are_refused(case: Case) -> None:
    for body in WRONG_REPLAYS:
        problem = await case.api("POST", f"{T}/replays", body, status=422)
        assert problem["code"] in ("invalid_request", "invalid_priority"), body
    assert (await case.api("GET", f"{T}/replays"))["data"] == []


async def test_dead_letters(case: Case) -> None:
    api, key = case.api, case.keys["manager"]
    await case.tenant.add(5)
    await case.tenant.add(2, endpoint="ep_b", first=50)
    found = await api.listed(f"{T}/dead-letters", limit=2)
    assert len(found) == 7
    assert (found[0]["id"], found[0]["reason"], found[0]["payload"]) == ("ep_a:m00000", "HTTP 500", "{}")
    counted = await api("GET", f"{T}/dead-letters/count", key=key)
    assert counted == {"dead": 7, "endpoints": [{"endpoint": "ep_a", "dead": 5}, {"endpoint": "ep_b", "dead": 2}]}
    put_back = await api("POST", f"{T}/dead-letters:replay", {"ids": ["ep_a:m00000", "ep_b:nobody"]}, key=key)
    assert put_back == {"ids": ["ep_a:m00000"]}
    assert (await api("GET", f"{T}/deliveries/ep_a:m00000"))["state"] == "waiting"
    await api("POST", f"{T}/dead-letters:purge", {}, key=key, status=422)
    await api("POST", f"{T}/dead-letters:purge", {"endpont": "ep_a"}, key=key, status=422)
    purged = await api("POST", f"{T}/dead-letters:purge", {"endpoint": "ep_a"}, key=key)
    assert purged == {"purged": 4, "more": False}
    assert len(await api.listed(f"{T}/dead-letters", **{"died[gte]": "2020-01-01T00:00:00Z"})) == 2
    assert await api.listed(f"{T}/dead-letters", **{"died[lt]": "2020-01-01T00:00:00Z"}) == []


async def test_lag_and_limits(case: Case) -> None:
    api = case.api
    await case.tenant.add(2, "pending")
    for n in range(3):
        await api.app.publish("t1.ep_a", b"{}", message_id=f"q{n}")
    unknown = await api("GET", f"{T}/lag", key=case.keys["reader"])
    assert [each["endpoint"] for each in unknown["data"]] == ["ep_a", "ep_b"]
    assert (unknown["data"][0]["ready"], unknown["data"][0]["in_flight"]) == (3, None)
    assert unknown["sum"] == {
        "ready": 3,
        "held_by_rate": None,
        "delayed": 0,
        "in_flight": None,
        "parked": None,
        "dead": 0,
    }
    assert unknown["oldest_claimable_s"] > 0
    closed = ThrottledTopic("t1.ep_a", None, 0.0, api.app.clock.now() + 60, "HTTP 503")
    await push_hosts.save(api.app, push_hosts.topic("t1.ep_a"), throttled=(closed,))
    async with push_api.another(api) as other:
        lag = await other("GET", f"{T}/lag", params={"endpoint": "ep_a"})
        assert (lag["sum"]["parked"], lag["sum"]["ready"]) == (3, 0)
        [whole, a, b] = (await other("GET", f"{T}/rate-limit-status"))["data"]
        assert (whole["endpoint"], whole["cap_per_s"], whole["limited_by"]) == (None, 100, None)
        assert (a["limited_by"]["name"], a["limited_by"]["reason"]) == ("circuit_open", "HTTP 503")
        assert a["limited_by"]["until"] is not None
        assert b["limited_by"] is None
        [d] = (await other("GET", f"{T}/deliveries", params={"message": "m00000"}))["data"]
        assert (d["state"], d["hold"]["name"]) == ("parked", "circuit_open")


async def test_operators_alone_see_hosts_plan_and_traces(case: Case) -> None:
    api = case.api
    await push_hosts.save(api.app, host="h7")
    assert [host["host"] for host in (await api("GET", "/v1/hosts"))["data"]] == ["h7"]
    assert (await api("GET", "/v1/plan", status=409))["code"] == "no_plan"
    await api.app.publish("t1.ep_a", b"{}", message_id="m1", delay_ms=60_000)
    found = await api("GET", "/v1/trace/m1", params={"topic": "t1.ep_a"})
    assert (found["state"], found["place"]["where"]) == ("waiting", "lane")
    assert (await api("GET", "/v1/trace/m1", status=404))["code"] == "no_trail"
    await api("GET", "/v1/trace/m1", params={"topic": "nowhere"}, status=404)
    for path in ("/v1/hosts", "/v1/plan", "/v1/trace/m1"):
        await api("GET", path, key=case.keys["manager"], status=403)


async def test_odd_ids_are_not_found(case: Case) -> None:
    odd = ("ep_a", ":", "ep_a:", "%00:%00", "a" * 500, "ep_a:../..", "\u00fc:\u00fc", "ep_a:m00000:resend", "\0:\0")
    for id_ in odd:
        response = await case.api.raw("GET", f"{T}/deliveries/{quote(id_, safe='')}")
        assert response.status_code in (404, 422), (id_, response.text)
        assert response.json()["code"]
