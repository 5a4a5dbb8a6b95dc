"""What the pages of pools say, and who sees them."""

from __future__ import annotations

import re
import time
from typing import Any

import msgspec
import pytest
from test_pages_gate import SAME_SITE, key_of, proof_in, signed_in

from emq_scheduling.forecast.prediction import TypeForecast
from emq_scheduling.model import Hours, KeyLimit, Pool, Resource
from emq_scheduling.pools.catalog import Stored
from emq_scheduling.records.snapshot import (
    CostView,
    KeyLimitView,
    LimitView,
    PoolState,
    ResourceView,
    Snapshot,
    TypeView,
    Waits,
)
from emq_scheduling.records.snapshots import Snapshots
from emq_web.pages import pools_screen
from emq_web.pages.pool_what_if import TypeCompared
from emq_web.pages.rendering import UNKNOWN
from emq_web.scheduling import schemas, verdicts
from support.pools import POOL
from support.push_api import Api

NOW = 1_700_000_000.0
SMS = schemas.converted(POOL, Pool, "the pool")


def told(
    *,
    waiting: dict[str, int] | None = None,
    started: int = 0,
    resources: dict[str, ResourceView] | None = None,
    types: dict[str, TypeView] | None = None,
    age_s: float = 1.0,
) -> Snapshot:
    state = PoolState(NOW - age_s, waiting or {}, started={"south": started})
    return Snapshot("sms", 1, "host-1", state, resources=resources or {}, types=types or {})


# ------------------------------------------------------------------------------------------------------------- verdicts


OLD = told(waiting={"marketing": 5}, started=9, age_s=11)
NORTH = {name: ResourceView(closed="out of order") for name in ("north", "north 1", "north 2")}
BUSY = told(started=70, waiting={"marketing": 5000})
ALL = told(waiting={"marketing": 1}, resources={**NORTH, "south": ResourceView(closed="paused")})
LATE = told(waiting={"marketing": 3}, types={"marketing": TypeView(waiting=3)})
MARKETING = msgspec.structs.replace(SMS.types["marketing"], hours=(Hours("09:00", "18:00"),))
BY_HOURS = msgspec.structs.replace(SMS, types={**SMS.types, "marketing": MARKETING})


@pytest.mark.parametrize(
    ("pool", "snapshot", "state", "text"),
    [
        (SMS, None, "unknown", "Unknown: no host has scheduled this pool yet"),
        (SMS, OLD, "unknown", "Unknown: host-1, which scheduled the pool, has been silent for 11 s"),
        (SMS, told(), "flowing", "Flowing: nothing to start now, on 3 resources"),
        (SMS, told(started=1200), "flowing", "Flowing: 1,200 a second, on 3 resources"),
        (SMS, BUSY, "flowing", "Flowing: 70 a second, 5,000 waiting, on 3 resources"),
        # A closed parent is named, and not all below it.
        (SMS, told(started=3, resources=NORTH), "trouble", "Flowing: 3 a second, but north starts nothing"),
        (SMS, ALL, "stopped", "Not flowing: 1 task waiting: north, south start nothing"),
        (SMS, LATE, "stopped", "Not flowing: 3 tasks waiting: marketing is late"),
        # Tasks that wait for their hours are no trouble.
        (BY_HOURS, LATE, "flowing", "Flowing: nothing in the last second, 3 waiting, on 3 resources"),
    ],
)
def test_the_verdict_says_whether_a_pool_works_and_what_is_wrong(
    pool: Pool, snapshot: Snapshot | None, state: str, text: str
) -> None:
    found = verdicts.of(pool, snapshot, NOW)
    assert (found.state, found.text) == (state, text)


@pytest.mark.parametrize(
    ("view", "late"),
    [
        (TypeView(predicted_wait_s=9.0, waits=Waits(p99_s=9.9)), False),
        (TypeView(predicted_wait_s=9.0, waits=Waits(p99_s=10.1)), True),
        (TypeView(predicted_wait_s=11.0), True),
        (TypeView(predicted_wait_s=None), False),
        (TypeView(waiting=1, predicted_wait_s=None), True),
    ],
)
def test_a_type_is_late_by_what_waited_by_what_would_wait_and_if_nothing_would_start(
    view: TypeView, late: bool
) -> None:
    assert verdicts.is_late(SMS.types["verification"], view) is late
    found = verdicts.of(SMS, told(started=1, types={"verification": view}), NOW)
    assert ("verification is late" in found.text) is late


# --------------------------------------------------------------------------------------------------------------- screen


def test_resources_stand_below_their_parents_also_where_the_pool_names_them_in_another_order() -> None:
    entries = {"c": "b", "b": "a", "a": None, "d": None, "e": "a"}
    pool = Pool("p", resources={name: Resource(parent=parent) for name, parent in entries.items()})
    assert list(pool.tree()) == [("a", 0), ("b", 1), ("c", 2), ("e", 1), ("d", 0)]


def test_a_screen_shows_a_hundred_resources_and_where_it_goes_on() -> None:
    pool = Pool("p", resources={f"r{n}": Resource() for n in range(250)})
    first, last = (pools_screen.of(Stored(pool, 1, 0), None, NOW, start) for start in (0, 200))
    assert (len(first.resources), first.next, first.total) == (100, 100, 250)
    assert ([row.name for row in last.resources][:1], len(last.resources), last.next) == (["r200"], 50, 0)


def test_a_limit_shows_the_part_that_is_used_of_what_holds_now() -> None:
    view = ResourceView(limits=(LimitView("requests", "second", 10, 20, 9.9),), binds="requests/second of north")
    now = pools_screen.of(Stored(SMS, 1, 0), told(resources={"south": view}), NOW)
    row = now.resources[-1]
    assert (row.name, row.binds) == ("south", "requests a second of north")
    slowed = msgspec.structs.replace(view, factor=0.1, slowed="429")
    now = pools_screen.of(Stored(SMS, 1, 0), told(resources={"south": slowed}), NOW)
    assert now.resources[-1].view == slowed
    assert [(each.part, each.is_full, each.configured) for each in row.limits] == [
        (0.99, True, 20),
        (0.0, False, 50_000),
    ]


def test_a_limit_by_key_shows_the_keys_with_the_most_waiting_tasks_and_how_long_a_new_one_waits() -> None:
    pool = msgspec.structs.replace(SMS, limits={"calls": KeyLimit("tenant", 5, "in_flight", amounts={"acme": 20})})
    view = KeyLimitView(9, 3, 70, {f"k{n}": 10 for n in range(7)}, {"k0": 59.0, "k1": None})
    snapshot = msgspec.structs.replace(told(), limits={"calls": view})
    [row] = pools_screen.of(Stored(pool, 1, 0), snapshot, NOW).key_limits
    assert row.in_words == "5 calls at the same time"
    assert row.most[:3] == [("k0", 10, "59 s"), ("k1", 10, "over a day"), ("k2", 10, UNKNOWN)]
    assert len(row.most) == pools_screen.KEYS
    [row] = pools_screen.of(Stored(pool, 1, 0), None, NOW).key_limits
    assert (row.view, row.most) == (None, [])


async def test_the_page_of_a_pool_names_the_keys_with_the_most_waiting_tasks(api: Api) -> None:
    limits = {"calls": {"by": "tenant", "amount": 5, "per": "in_flight"}}
    await api("PUT", "/v1/pools/sms", {**POOL, "limits": limits}, status=201)
    view = KeyLimitView(9, 1, 70, {"acme<": 70}, {"acme<": 59.0})
    now = Snapshot("sms", 1, "h", PoolState(time.time()), limits={"calls": view})
    await Snapshots(api.app.database, "online").save(now)
    page = (await (await signed_in(api, api.admin)).get("/ui/pools/sms")).text
    assert 'acme&lt; <span class="reason">70; a new one waits 59 s</span>' in page
    told_now = await api("GET", "/v1/pools/sms/snapshot")
    assert told_now["limits"]["calls"]["waits"] == {"acme<": 59.0}


def test_no_figure_of_a_snapshot_that_is_too_old_is_shown() -> None:
    views = {"south": ResourceView(limits=(LimitView("requests", "second", 10, 20, 9.9),), running=7, closed="full")}
    old = told(waiting={"marketing": 5}, resources=views, types={"marketing": TypeView(waiting=5)}, age_s=11)
    now = pools_screen.of(Stored(SMS, 1, 0), old, NOW)
    row = now.resources[-1]
    assert (now.told, now.last_at) == (None, NOW - 11)
    assert (row.view, row.closed, row.limits[0].amount, row.limits[0].used) == (None, "", 20, None)
    assert [each.view for each in now.types] == [None] * 3


# -------------------------------------------------------------------------------------------------------------- what if


@pytest.mark.parametrize(
    ("before", "after", "better", "worse"),
    [
        (TypeForecast(p99_s=10), TypeForecast(p99_s=9), True, False),
        (TypeForecast(p99_s=10), TypeForecast(p99_s=10.4), False, False),
        (TypeForecast(p99_s=0.02), TypeForecast(p99_s=0.04), False, False),
        (TypeForecast(p99_s=10), TypeForecast(p99_s=1, left=50), False, True),
        (TypeForecast(p99_s=1, expired=50), TypeForecast(p99_s=10), True, False),
    ],
)
def test_a_change_is_better_if_more_starts_or_the_same_clearly_sooner(
    before: Any, after: Any, better: bool, worse: bool
) -> None:
    found = TypeCompared("x", before, after)
    assert (found.better, found.worse) == (better, worse)


# ------------------------------------------------------------------------------------------------------------------ who


async def test_pages_of_pools_are_for_operators_and_hold_nothing_from_elsewhere(api: Api) -> None:
    await api("PUT", "/v1/pools/sms", POOL, status=201)
    http = await signed_in(api, api.admin)
    paths = ("pools", "pools/sms", "pools/sms/what-if", "pools/sms/what-if?change=remove+south")
    for path in (*paths, "pools/sms/limit?resource=north&limit=requests/second", "pools/sms/pause?resource=north"):
        page = await http.get(f"/ui/{path}")
        assert page.status_code == 200, path
        assert not re.search(r"<script(?![^>]* src=)|<style| style=| on\w+=|hx-on|https?://", page.text), path
    manager = await signed_in(api, await key_of(api, "manage"))
    for path in paths:
        assert (await manager.get(f"/ui/{path}")).status_code == 403, path
    proof = proof_in((await manager.get("/ui/tenants/shop")).text)
    for path, form in (("pause", {"to": "pause"}), ("limit", {"limit": "requests/second", "amount": "1"})):
        form |= {"csrf": proof, "resource": "north"}
        assert (await manager.post(f"/ui/pools/sms/{path}", data=form, headers=SAME_SITE)).status_code == 403
    assert (await api("GET", "/v1/pools/sms"))["version"] == 1


async def test_topics_of_a_pool_are_no_plain_topics_whose_rate_or_pause_an_operator_changes(api: Api) -> None:
    await api("PUT", "/v1/pools/sms", POOL, status=201)
    await api("POST", "/v1/pools/sms/tasks", {"type": "marketing", "payload": 1, "tenant": "acme"})
    for name in ("sms.plain", "shop-7"):
        await api.app.create_topic(name, qps=10)
    assert {"sms..pool", "sms.marketing.acme"} <= set(await api.app.catalog.names())
    http = await signed_in(api, api.admin)
    found = (await http.get("/ui/tenants")).text
    assert re.findall(r'<a href="/ui/tenants/([^"]+)">', found) == ["shop-7", "sms.plain"]
    for name, is_of_pool in (
        ("sms..pool", True),
        ("sms.marketing.acme", True),
        ("sms.plain", False),
        ("shop-7", False),
    ):
        page = (await http.get(f"/ui/tenants/{name}")).text
        assert ("Pause…" in page, 'href="/ui/pools/sms"' in page) == (not is_of_pool, is_of_pool), name


async def test_what_comes_is_0_when_its_average_has_all_but_run_out() -> None:
    snapshot = msgspec.structs.replace(
        told(), state=PoolState(NOW - 1, {}, {"marketing": 3.2e-8, "verification": 0.25})
    )
    now = pools_screen.of(Stored(SMS, 1, 0), snapshot, NOW)
    assert {row.name: row.arrivals for row in now.types}["marketing"] == 0
    assert {row.name: row.arrivals for row in now.types}["verification"] == 0.25


async def test_a_slowed_resource_says_why_and_which_limit_holds_it_back_beside(api: Api) -> None:
    await api("PUT", "/v1/pools/sms", POOL, status=201)
    view = ResourceView(factor=0.1, slowed="429 of the operator", binds="requests/second of north")
    state = PoolState(time.time())
    await Snapshots(api.app.database, "online").save(Snapshot("sms", 1, "h", state, resources={"north 1": view}))
    page = (await (await signed_in(api, api.admin)).get("/ui/pools/sms")).text
    [cell] = [part for part in page.split("<td") if "10 % of its limits" in part]
    assert "429 of the operator" in cell
    assert "requests a second of north" in cell


async def test_a_type_says_what_its_tasks_are_charged_and_use_if_the_pool_says_other_costs(api: Api) -> None:
    await api("PUT", "/v1/pools/sms", POOL, status=201)
    view = TypeView(costs={"tokens": CostView(said=1, charged=2.5, used=812)})
    now = Snapshot("sms", 1, "h", PoolState(time.time()), types={"marketing": view})
    await Snapshots(api.app.database, "online").save(now)
    page = (await (await signed_in(api, api.admin)).get("/ui/pools/sms")).text
    assert page.count("tokens: charged 2.5, used 812</small>") == 1


async def test_a_key_for_tasks_does_not_sign_in(api: Api) -> None:
    key = await key_of(api, "submit", "")
    answer = await api.http.post("/ui/sign-in", data={"key": key}, headers=SAME_SITE)
    assert answer.status_code == 403
    assert "may only submit tasks" in answer.text


async def test_names_are_shown_as_text_and_wrong_forms_are_answered_with_a_page(api: Api) -> None:
    name = "<b>\"'&/x?"
    pool = {
        **POOL,
        "resources": {**POOL["resources"], name: {"limits": [{"name": "<i>", "amount": 1, "per": "day"}]}},
    }
    await api("PUT", "/v1/pools/sms", pool, status=201)
    http = await signed_in(api, api.admin)
    page = (await http.get("/ui/pools/sms")).text
    assert "<b>" not in page
    assert "<i>" not in page
    asked = {"resource": name, "limit": "<i>/day"}
    confirm = await http.get("/ui/pools/sms/limit", params={**asked, "amount": "7"})
    assert "From 1 to 7" in confirm.text
    form = {**asked, "amount": "7", "csrf": proof_in(confirm.text)}
    assert (await http.post("/ui/pools/sms/limit", data=form, headers=SAME_SITE)).status_code == 303
    assert (await api("GET", "/v1/pools/sms"))["pool"]["resources"][name]["limits"][0]["amount"] == 7
    for path in (
        "limit?resource=none&limit=x",
        "limit?resource=north&limit=x",
        "pause?resource=none",
        "../pools/none",
    ):
        assert (await http.get(f"/ui/pools/sms/{path}")).status_code == 404, path
    for amount in ("-1", "nan", "inf", "many", "1e13"):
        found = await http.get("/ui/pools/sms/limit", params={**asked, "amount": amount})
        assert "A limit is a number of units" in found.text, amount
        bad = {**form, "amount": amount}
        assert (await http.post("/ui/pools/sms/limit", data=bad, headers=SAME_SITE)).status_code == 422
    for verb in ("limit", "add", "remove", "destroy"):
        found = await http.get(f"/ui/pools/sms/what-if?verb={verb}")
        assert 'role="alert"' in found.text, verb
        assert found.status_code == 200
