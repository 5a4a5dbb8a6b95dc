"""The API: pools and their entries, versions, forecasts, and who may do what."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
import time
from typing import Any

import pytest

from emq import App
from emq_scheduling import administering
from emq_scheduling.forecast import what_if
from emq_scheduling.model import Pool, Resource, TaskType
from emq_scheduling.pools import documents
from emq_scheduling.records.snapshot import CostView, PoolState, ResourceView, Snapshot, TypeView
from emq_scheduling.records.snapshots import Snapshots
from emq_web.scheduling.desk import MOST_FORECASTS, MOST_OF_ONE, PoolDesk
from support import push_api
from support.pools import POOL
from support.push_api import Api

SMS = "/v1/pools/sms"


api = push_api.fixture(puts={SMS: POOL})


async def tell(api: Api, *, at: float | None = None, **fields: Any) -> None:
    """Write a snapshot, as the owner of the pool does."""
    state = PoolState(time.time() if at is None else at, fields.pop("waiting", {}), fields.pop("arrivals", {}))
    await Snapshots(api.app.database, "online").save(Snapshot("sms", 1, "host-1", state, since=1e9, **fields))


# ------------------------------------------------------------------------------------------------------------ catalog


async def test_a_pool_comes_back_as_it_was_given_and_a_put_of_the_same_changes_nothing(api: Api) -> None:
    found = await api("GET", SMS)
    assert found["version"] == 1
    assert found["changed"].endswith("Z")
    again = await api("PUT", SMS, found["pool"], status=200)
    assert (again["version"], again["pool"]) == (1, found["pool"])
    assert found["pool"]["resources"]["north 1"]["parent"] == "north"
    assert found["warnings"] == []


async def test_a_limit_says_how_it_counts(api: Api) -> None:
    bucket = {"name": "messages", "amount": 600, "per": "minute", "kind": "bucket", "burst": 50}
    of_day = {"name": "messages", "amount": 9000, "per": "day", "zone": "Asia/Kolkata"}
    await api("PATCH", f"{SMS}/resources/south", {"limits": [bucket, of_day]})
    limits = (await api("GET", f"{SMS}/resources/south"))["value"]["limits"]
    assert [{name: each[name] for name in each if each[name] is not None} for each in limits] == [bucket, of_day]
    wrong = {"limits": [{**bucket, "kind": "rolling"}]}
    problem = await api("PATCH", f"{SMS}/resources/south", wrong, status=422)
    assert "limit 'messages' per minute: burst 50 is for buckets; leave it out" in problem["detail"]
    wrong = {"limits": [{**bucket, "kind": "sliding"}]}
    problem = await api("PATCH", f"{SMS}/resources/south", wrong, status=422)
    assert "limits[0].kind = 'sliding' must be one of bucket, calendar, rolling" in problem["detail"]
    found = await api("POST", f"{SMS}/what-if", {"changes": ["limit south messages=60/minute bucket of 5"]})
    assert found["after"]
    limit = (await api("GET", "/v1/openapi.json"))["components"]["schemas"]["Limit"]["properties"]
    assert {"type": "string", "enum": ["bucket", "calendar", "rolling"]} in limit["kind"]["anyOf"]
    assert limit["burst"]["description"].startswith("of a bucket")


async def test_a_change_with_an_old_version_is_refused(api: Api) -> None:
    response = await api.raw("GET", SMS)
    assert response.headers["etag"] == '"1"'
    changed = {**POOL, "zone": "UTC"}
    old = {"If-Match": response.headers["etag"]}
    assert (await api("PUT", SMS, changed, headers=old))["version"] == 2
    problem = await api("PUT", SMS, POOL, headers=old, status=412)
    assert problem["code"] == "other_version"
    assert "at version 2, not 1" in problem["detail"]
    assert (await api("PATCH", f"{SMS}/resources/south", {"price": 1}, headers=old, status=412))["code"]
    assert (await api("DELETE", SMS, headers=old, status=412))["code"] == "other_version"
    assert (await api("PUT", SMS, POOL, headers={"If-None-Match": "*"}, status=412))["code"] == "other_version"
    assert (await api("PATCH", SMS, {"zone": "UTC"}, headers=old, status=412))["code"] == "other_version"
    assert (await api("PUT", SMS, POOL, headers={"If-Match": '"x"'}, status=422))["code"] == "invalid_request"
    assert (await api("GET", SMS))["pool"]["zone"] == "UTC"


async def test_an_entry_that_is_only_created_is_never_changed(api: Api) -> None:
    only = {"If-None-Match": "*"}
    assert (await api("PUT", f"{SMS}/tenants/bank", {"weight": 2}, headers=only, status=201))["version"] == 2
    for method, path, body in (
        ("PUT", "tenants/bank", {"weight": 3}),
        ("PATCH", "tenants/bank", {"weight": 3}),
        ("DELETE", "tenants/bank", None),
        ("POST", "resources/south:pause", None),
    ):
        assert (await api(method, f"{SMS}/{path}", body, headers=only, status=412))["code"] == "other_version"
    assert (await api("GET", SMS))["version"] == 2


async def test_null_in_a_patch_of_a_pool_removes_an_entry_or_gives_a_default(api: Api) -> None:
    before = (await api("GET", SMS))["pool"]
    assert before["tenants"].keys() == {"shop"}
    merge = {"Content-Type": "application/merge-patch+json"}
    body = {
        "tenants": {"shop": None, "bank": {"weight": 2}},
        "types": {"marketing": {"timeout_s": "none", "priority": 3}},
    }
    found = (await api("PATCH", SMS, body, headers=merge))["pool"]
    assert found["tenants"] == {"bank": {"weight": 2.0}}
    assert found["types"]["marketing"] == {**before["types"]["marketing"], "timeout_s": None, "priority": 3}
    found = (await api("PATCH", SMS, {"types": {"marketing": {"timeout_s": None, "priority": None}}, "tenants": None}))[
        "pool"
    ]
    assert "tenants" not in found
    assert found["types"]["marketing"] == {
        k: v for k, v in before["types"]["marketing"].items() if k not in ("timeout_s", "priority")
    }
    south = f"{SMS}/resources/south"
    await api("PATCH", south, {"attributes": {"url": "a", "zone": "b"}, "price": 3})
    value = (await api("PATCH", south, {"attributes": {"url": None}, "price": None}))["value"]
    assert (value["attributes"], value.get("price")) == ({"zone": "b"}, None)


async def test_a_patch_of_a_pool_leaves_what_it_does_not_name(api: Api) -> None:
    before = (await api("GET", SMS))["pool"]
    changed = await api("PATCH", SMS, {"zone": "UTC", "tenants": {"bank": {"weight": 2}}}, status=200)
    assert changed["pool"] == {**before, "zone": "UTC", "tenants": {**before["tenants"], "bank": {"weight": 2.0}}}
    assert changed["version"] == 2
    for wrong in ({"name": "calls"}, {"zone": "nowhere"}, {"zones": "UTC"}, ["zone"]):
        await api("PATCH", SMS, wrong, status=422)
    await api("PATCH", "/v1/pools/calls", {"zone": "UTC"}, status=404)


async def test_a_pool_that_is_changed_while_it_is_deleted_stays(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = administering.waiting

    async def meanwhile(app: App, name: str) -> dict[str, int]:
        monkeypatch.undo()
        await api("PATCH", SMS, {"zone": "UTC"})
        return await waiting(app, name)

    monkeypatch.setattr(administering, "waiting", meanwhile)
    assert (await api("DELETE", SMS, headers={"If-Match": '"1"'}, status=412))["code"] == "other_version"
    assert (await api("GET", SMS))["version"] == 2


async def test_wrong_pools_are_refused_in_one_line_and_nothing_is_stored(api: Api) -> None:
    cyclic = copy.deepcopy(POOL)
    cyclic["resources"]["north"]["parent"] = "north 1"
    problem = await api("PUT", SMS, cyclic, status=422)
    assert problem["code"] == "invalid_pool"
    assert "parents lead back" in problem["detail"]
    problem = await api("PUT", SMS, {**POOL, "colour": "red"}, status=422)
    assert "there is no key 'colour'" in problem["detail"]
    problem = await api("PUT", "/v1/pools/other", POOL, status=422)
    assert "make it that of the path" in problem["detail"]
    assert (await api.raw("PUT", SMS, content=b"{", headers={"Content-Type": "application/json"})).status_code == 400
    assert (await api.raw("PUT", SMS, content=b"{}")).status_code == 415
    assert (await api("GET", SMS))["version"] == 1
    await api("GET", "/v1/pools/other", status=404)


async def test_a_body_may_be_written_as_a_file_and_an_error_names_its_entry(api: Api) -> None:
    pool = Pool("file", types={"t": TaskType(timeout_s=None)}, resources={"r": Resource(takes={"t": {}})})
    exported = json.loads(documents.dump(pool, "json"))
    assert exported["resources"]["r"]["takes"] == ["t"]
    made = await api("PUT", "/v1/pools/file", exported, status=201)
    assert made["pool"]["resources"]["r"]["takes"] == {"t": {}}
    assert (await api("PUT", "/v1/pools/file", made["pool"]))["version"] == 1
    await api("PUT", "/v1/pools/file/resources/s", {"takes": ["t"], "parent": "none"}, status=201)
    assert (await api("PATCH", "/v1/pools/file/resources/s", {"takes": ["t"]}))["value"]["takes"] == {"t": {}}
    wrong = {"name": "file", "resources": {"r": {"limits": [{"name": "calls", "amount": None, "per": "second"}]}}}
    problem = await api("PUT", "/v1/pools/file", wrong, status=422)
    assert "resource 'r': limits[0].amount" in problem["detail"]


async def test_lists_go_on_at_their_cursor_and_say_how_each_pool_does(api: Api) -> None:
    for name in ("a", "z"):
        await api("PUT", f"/v1/pools/{name}", {"name": name})
    await tell(api, waiting={"marketing": 7})
    page = await api("GET", "/v1/pools", params={"limit": 2})
    assert [pool["name"] for pool in page["data"]] == ["a", "sms"]
    assert [pool["waiting"] for pool in page["data"]] == [None, 7]
    assert page["data"][0]["state"] == "unknown"
    rest = await api("GET", "/v1/pools", params={"limit": 2, "cursor": page["next"]})
    assert ([pool["name"] for pool in rest["data"]], rest["next"]) == (["z"], None)
    assert (await api("GET", "/v1/pools?cursor=xx", status=422))["code"] == "invalid_cursor"


async def test_a_pool_with_waiting_tasks_is_deleted_by_force_only(api: Api) -> None:
    await api("POST", f"{SMS}/tasks", {"type": "marketing", "id": "mine", "payload": {}})
    problem = await api("DELETE", SMS, status=409)
    assert problem["code"] == "tasks_waiting"
    assert "1 task of pool 'sms' waits or runs (marketing 1)" in problem["detail"]
    assert (await api("GET", f"{SMS}/tasks/mine"))["state"] == "waiting"
    await api("DELETE", f"{SMS}?force=true", status=204)
    assert (await api("GET", SMS, status=404))["code"] == "unknown_pool"
    assert (await api("PUT", SMS, POOL, status=201))["version"] == 3, "versions go on after a deletion"
    assert (await api("GET", f"{SMS}/tasks/mine", status=404))["code"] == "unknown_task", "it has gone with its pool"


# ------------------------------------------------------------------------------------------------------------ entries


@pytest.mark.parametrize(
    ("path", "value", "change"),
    [
        ("resources/west", {"takes": {"marketing": {}}}, {"weight": 2}),
        ("types/voice", {"priority": 3}, {"share": 0.25}),
        ("calendars/night", {"zone": "UTC", "hours": [{"start": "22:00", "end": "06:00"}]}, {"zone": "Europe/Paris"}),
        ("tenants/bank", {"weight": 2}, {"weight": 5}),
        ("limits/each", {"by": "tenant", "amount": 5.0, "per": "in_flight"}, {"amounts": {"bank": 9.0}}),
    ],
)
async def test_each_kind_of_entry_is_made_changed_shown_and_deleted(
    api: Api, path: str, value: Any, change: Any
) -> None:
    made = await api("PUT", f"{SMS}/{path}", value, status=201)
    assert made["name"] == path.partition("/")[2]
    changed = await api("PATCH", f"{SMS}/{path}", change, status=200)
    assert changed["version"] == 3
    assert changed["value"] == {**made["value"], **change}, "what the body leaves out stays"
    assert (await api("GET", f"{SMS}/{path}"))["value"] == changed["value"]
    problem = await api("PATCH", f"{SMS}/{path}", {"limit": []}, status=422)
    assert made["name"] in problem["detail"]
    assert "there is no key 'limit'" in problem["detail"]
    await api("PATCH", f"{SMS}/{path}", [], status=422)
    await api("PUT", f"{SMS}/{path}", value, status=200)
    gone = await api("DELETE", f"{SMS}/{path}", status=200)
    assert gone["version"] == 5
    for method in ("GET", "PATCH"):
        assert (await api(method, f"{SMS}/{path}", {}, status=404))["code"].startswith("unknown_")


async def test_what_others_need_is_not_deleted(api: Api) -> None:
    problem = await api("DELETE", f"{SMS}/resources/north", status=409)
    assert (problem["code"], "north 1, north 2" in problem["detail"]) == ("in_use", True)
    assert "north 1, north 2, south" in (await api("DELETE", f"{SMS}/types/marketing", status=409))["detail"]
    each = {"by": "tenant", "amount": 5, "per": "in_flight", "types": ["verification"]}
    await api("PUT", f"{SMS}/limits/each", each, status=201)
    assert "limit each" in (await api("DELETE", f"{SMS}/types/verification", status=409))["detail"]


async def test_who_deletes_the_last_resource_of_a_type_is_told_what_waits(api: Api) -> None:
    await tell(api, waiting={"verification": 3})
    gone = await api("DELETE", f"{SMS}/resources/north 1")
    assert gone["warnings"] == ["no resource takes type 'verification'; 3 tasks of it wait, and nothing is lost"]


async def test_a_resource_is_paused_and_resumed_and_the_audit_log_says_by_whom(api: Api) -> None:
    paused = await api("POST", f"{SMS}/resources/north 1:pause")
    assert paused["value"]["paused"] is True
    assert "paused" not in (await api("POST", f"{SMS}/resources/north 1:resume"))["value"]
    log = (await api("GET", "/v1/audit-log", params={"limit": 3}))["data"]
    assert [(entry["action"], entry["target"]) for entry in log] == [
        *[("pool.changed", "sms")] * 2,
        ("pool.created", "sms"),
    ]
    assert log[1]["changes"]["resources"].keys() == {"north 1"}, "only what differs"
    assert log[1]["changes"]["resources"]["north 1"]["paused"] is True
    await api("POST", f"{SMS}/resources/none:pause", status=404)


async def test_names_with_slashes_and_colons_are_reached(api: Api) -> None:
    name = "a/b:pause"
    await api("PUT", f"{SMS}/resources/{name}", {"takes": {"marketing": {}}}, status=201)
    await api("POST", f"{SMS}/resources/{name}:pause")
    assert (await api("GET", f"{SMS}/resources/{name}"))["value"]["paused"] is True


async def test_changes_of_several_entries_at_the_same_time_all_hold(api: Api) -> None:
    names = [f"channel {n}" for n in range(8)]
    paths = [f"{SMS}/resources/{name}" for name in names]
    await asyncio.gather(*(api("PUT", path, {"takes": {"marketing": {}}}, status=201) for path in paths))
    found = await api("GET", SMS)
    assert set(names) < set(found["pool"]["resources"])
    assert found["version"] == 9
    log = (await api("GET", "/v1/audit-log", params={"limit": 8}))["data"]
    assert sorted(name for entry in log for name in entry["changes"]["resources"]) == names, "each change once"


async def test_a_change_that_fails_leaves_no_entry_in_the_audit_log(api: Api) -> None:
    await api("PATCH", f"{SMS}/resources/south", {"parent": "south"}, status=422)
    await api("PUT", SMS, POOL, headers={"If-Match": '"7"'}, status=412)
    assert [entry["action"] for entry in (await api("GET", "/v1/audit-log"))["data"]].count("pool.changed") == 0


# ---------------------------------------------------------------------------------------------------- snapshot, what if


async def test_the_snapshot_is_shown_with_its_age(api: Api) -> None:
    before = await api("GET", f"{SMS}/snapshot")
    assert (before["live"], before["at"], before["state"]) == (False, None, "unknown")
    costs = {"tokens": CostView(said=1, charged=2.5, used=3, waiting=12)}
    views = {
        "types": {"marketing": TypeView(waiting=4, costs=costs)},
        "resources": {"south": ResourceView(closed="paused")},
    }
    views["resources"]["north 1"] = ResourceView(factor=0.5, slowed="429")
    await tell(api, waiting={"marketing": 4}, arrivals={"marketing": 2.5}, **views)
    now = await api("GET", f"{SMS}/snapshot")
    assert (now["live"], now["host"], now["version"]) == (True, "host-1", 1)
    assert now["types"]["marketing"]["predicted_wait_s"] is None
    assert now["types"]["marketing"]["arrivals_per_s"] == 2.5
    assert now["types"]["marketing"]["costs"]["tokens"] == {"said": 1, "charged": 2.5, "used": 3, "waiting": 12}
    assert (now["resources"]["south"]["closed"], now["resources"]["south"]["slowed"]) == ("paused", None)
    assert now["resources"]["north 1"]["slowed"] == "429"
    await tell(api, at=time.time() + 1)
    await tell(api, at=time.time() - 60, waiting={"marketing": 9})
    assert (await api("GET", f"{SMS}/snapshot"))["types"] == {}, "an older snapshot does not replace a newer one"


async def test_what_if_shows_waits_before_and_after_and_changes_nothing(api: Api) -> None:
    await tell(api, waiting={"marketing": 12_000})
    found = await api("POST", f"{SMS}/what-if", {"changes": ["remove north"]})
    before, after = (found[at]["types"]["marketing"]["p99_s"] for at in ("before", "after"))
    assert before == pytest.approx(12_000 / 80, rel=0.1), "60 a second over north, 20 over south"
    assert after == pytest.approx(12_000 / 20, rel=0.1)
    assert found["live"] is True
    assert found["warnings"] == [
        "no resource takes type 'verification'; tasks of it would wait",
        "no resource takes type 'notification'; tasks of it would wait",
    ]
    assert (await api("GET", SMS))["version"] == 1


async def test_what_if_takes_assumed_tasks_and_refuses_what_it_cannot_read(api: Api) -> None:
    found = await api("POST", f"{SMS}/what-if", {"waiting": {"marketing": 800}})
    assert found["before"] == found["after"]
    assert found["live"] is False
    assert found["before"]["drained_s"] == pytest.approx(10, abs=2)
    for body in ({"changes": ["destroy south"]}, {"changes": ["remove west"]}, {"waiting": {"voice": 1}}):
        assert (await api("POST", f"{SMS}/what-if", body, status=422))["code"] == "invalid_pool"
    assert (await api("POST", f"{SMS}/what-if", {"change": []}, status=422))["pointer"] == "/change"


async def test_forecasts_are_made_one_at_a_time_and_too_many_are_refused(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, at_once, release = what_if.what_if, [], threading.Event()

    def slow(*given: Any) -> Any:
        at_once.append(given)
        assert len(at_once) == 1
        release.wait(20)
        at_once.pop()
        return made(*given)

    monkeypatch.setattr(what_if, "what_if", slow)
    desks, what_if_of = [], PoolDesk.what_if

    def noted(desk: PoolDesk, *given: Any) -> Any:
        desks.append(desk)
        return what_if_of(desk, *given)

    monkeypatch.setattr(PoolDesk, "what_if", noted)
    other = (await api("POST", "/v1/keys", {"role": "submit"}))["key"]

    async def under_way(n: int) -> None:
        while not desks or desks[0]._forecasts.total() < n:
            await asyncio.sleep(0.01)

    asked = [asyncio.create_task(api.raw("POST", f"{SMS}/what-if", {})) for _ in range(MOST_OF_ONE)]
    await under_way(MOST_OF_ONE)
    refused = await api.raw("POST", f"{SMS}/what-if", {})
    assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (503, "busy", "2")
    asked.append(asyncio.create_task(api.raw("POST", f"{SMS}/what-if", {}, key=other)))  # room is left for others
    await under_way(MOST_FORECASTS)
    assert (await api.raw("POST", f"{SMS}/what-if", {}, key=other)).status_code == 503
    await api("GET", SMS)  # the API goes on meanwhile
    release.set()
    assert [each.status_code for each in await asyncio.gather(*asked)] == [200] * MOST_FORECASTS
    assert not desks[0]._forecasts


# --------------------------------------------------------------------------------------------------------------- roles


async def test_a_key_for_tasks_submits_and_looks_and_changes_nothing(api: Api) -> None:
    key = await api.key_of("submit")
    for path in ("/v1/pools", SMS, f"{SMS}/snapshot", f"{SMS}/resources/south", f"{SMS}/tasks"):
        await api("GET", path, key=key, status=200)
    await api("POST", f"{SMS}/tasks", {"type": "marketing", "payload": 1}, key=key, status=202)
    await api("POST", f"{SMS}/what-if", {}, key=key, status=200)
    for method, path, body in (
        ("PUT", SMS, POOL),
        ("DELETE", SMS, None),
        ("PATCH", f"{SMS}/resources/south", {"price": 0}),
        ("POST", f"{SMS}/resources/south:pause", None),
        ("GET", "/v1/tenants", None),
        ("GET", "/v1/audit-log", None),
    ):
        assert (await api(method, path, body, key=key, status=403))["code"] == "forbidden", path
    made = await api("POST", "/v1/keys", {"role": "submit", "name": "shop"}, status=201)
    assert made["tenant"] is None
    await api("POST", "/v1/keys", {"role": "submit", "tenant": "acme"}, status=422)


@pytest.mark.parametrize("role", ["read", "send", "manage"])
async def test_a_tenant_of_the_push_service_does_not_reach_pools(api: Api, role: str) -> None:
    await api("PUT", "/v1/tenants/acme", {"qps": 1})
    key = await api.key_of(role, "acme")
    for method, path, body in (
        ("GET", "/v1/pools", None),
        ("GET", f"{SMS}/snapshot", None),
        ("POST", f"{SMS}/tasks", {"type": "marketing", "payload": 1}),
        ("POST", f"{SMS}/tasks/x:cancel", None),
    ):
        assert (await api(method, path, body, key=key, status=403))["code"] == "forbidden"
    assert (await api("GET", "/v1/pools", key="", status=401))["code"] == "no_key"
