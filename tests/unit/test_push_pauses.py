"""Pausing a tenant as a whole, by the API, the command line and the pages; endpoints whose topics sleep."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Any

import pytest
from test_pages_gate import SAME_SITE, proof_in, signed_in

import emq
from emq.offsets.sleep import put_to_sleep
from emq.topics.model import Topic
from emq_push.cli.pushing import _Surroundings
from emq_push.records.endpoints import EndpointSettings
from emq_push.service.tenants import TenantService
from support import push_api
from support.emq_shell import Shell
from support.http_receiver import HttpReceiver
from support.push_api import Api
from support.push_api_calls import endpoint_of, hosting
from support.waiting import until

TENANT = "/v1/tenants/acme"
ENDPOINTS = f"{TENANT}/endpoints"
MESSAGE = {"event_type": "order.paid", "payload": {"n": 1}}

api = push_api.fixture("acme", push_allow="127.0.0.1")


async def state_of(api: Api, receipt: dict[str, Any], number: int = 0) -> str:
    found = await api("GET", f"{TENANT}/deliveries/{receipt['deliveries'][number]}")
    return str(found["state"])


async def test_nothing_is_delivered_while_a_tenant_is_paused_and_everything_afterwards(
    api: Api, receiver: HttpReceiver
) -> None:
    for path in ("/one", "/two"):
        await api("POST", ENDPOINTS, {"url": receiver.url(path)}, status=201)
    assert (await api("POST", f"{TENANT}:pause"))["paused"] is True
    # An endpoint that is made meanwhile is held as well, and a change of an endpoint resumes nothing.
    late = await api("POST", ENDPOINTS, {"url": receiver.url("/late")}, status=201)
    await api("PATCH", f"{ENDPOINTS}/{late['id']}", {"description": "changed"})
    await api("PUT", TENANT, {"qps": 50})
    assert (await api("GET", TENANT))["paused"] is True
    async with hosting(api):
        receipt = await api("POST", f"{TENANT}/messages", MESSAGE, status=202)
        assert len(receipt["deliveries"]) == 3
        await asyncio.sleep(1.5)
        assert receiver.requests == []
        assert {await state_of(api, receipt, i) for i in range(3)} == {"parked"}
        found = await api("GET", f"{TENANT}/deliveries/{receipt['deliveries'][0]}")
        assert found["hold"]["reason"] == "the tenant is paused"

        assert (await api("POST", f"{TENANT}:resume"))["paused"] is False

        await until(lambda: len(receiver.requests) == 3)
    assert {request.path for request in receiver.requests} == {"/one", "/two", "/late"}
    assert {request.headers["emq-attempt"] for request in receiver.requests} == {"1"}


async def test_a_pause_reaches_a_host_that_is_delivering(api: Api, receiver: HttpReceiver) -> None:
    await api("PUT", TENANT, {"qps": 20})
    await endpoint_of(api, receiver)
    async with hosting(api):
        await api("POST", f"{TENANT}/messages", {"messages": [MESSAGE] * 200}, status=202)

        await until(lambda: len(receiver.requests) >= 5)
        await api("POST", f"{TENANT}:pause")
        await asyncio.sleep(2.5)
        before = len(receiver.requests)
        await asyncio.sleep(1.5)
        assert len(receiver.requests) == before < 200


async def test_an_endpoint_out_of_order_gets_no_more_after_a_pause_of_its_tenant(
    api: Api, receiver: HttpReceiver
) -> None:
    receiver.answers = lambda _: 500
    made = await api("POST", ENDPOINTS, {"url": receiver.url(), "retry_schedule_s": [3600]}, status=201)
    async with hosting(api):
        await api("POST", f"{TENANT}/messages", {"messages": [MESSAGE] * 100}, status=202)
        assert api.app.host is not None
        topics, throttles = api.app.host.ownership.topics, api.app.host.throttles
        name = f"acme.{made['id']}"
        before = await until(lambda: throttles.of(name))
        for action, is_paused in (("pause", True), ("resume", False)):
            await api("POST", f"{TENANT}:{action}")
            await until(lambda wanted=is_paused: ("push.paused" in topics[name].options.attributes) is wanted)  # type: ignore[misc]
            assert throttles.of(name) == before, action

        http = await signed_in(api, api.admin)

        async def is_shown() -> bool:
            return "out of order HTTP 500" in re.sub(r"<[^>]*>", "", (await http.get("/ui/tenants/acme")).text)

        await until(is_shown, step_s=0.05)


async def test_an_endpoint_that_was_paused_by_itself_stays_so(api: Api) -> None:
    paused, other = [(await endpoint_of(api))["id"] for _ in range(2)]
    await api("POST", f"{ENDPOINTS}/{paused}:pause")
    for action in ("pause", "pause", "resume", "resume"):  # safe to repeat
        await api("POST", f"{TENANT}:{action}")
    assert (await api("GET", f"{ENDPOINTS}/{paused}"))["paused"] is True
    assert (await api("GET", f"{ENDPOINTS}/{other}"))["paused"] is False
    for endpoint in (paused, other):
        assert "push.paused" not in (await api.app.catalog.get(f"acme.{endpoint}")).options.attributes
    actions = [entry["action"] for entry in (await api("GET", f"{TENANT}/audit-log"))["data"]]
    assert actions[:4] == ["tenant.resumed", "tenant.resumed", "tenant.paused", "tenant.paused"]


async def test_of_a_pause_and_a_resume_at_once_the_last_row_counts(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await endpoint_of(api)
    service: TenantService = api.service.tenants
    await asyncio.gather(*[service.set_paused("acme", i % 2 == 0, "test") for i in range(10)])
    paused = (await service.get("acme")).is_paused
    attributes = (await api.app.catalog.get(f"acme.{made['id']}")).options.attributes
    assert ("push.paused" in attributes) is paused


class Crash(BaseException):
    """The process ends here."""


def crash_at(patch: pytest.MonkeyPatch, api: Api, number: int) -> None:
    """Let the process end at a transaction, counted from 0."""
    run, calls = api.app.database.run, 0

    async def crashing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > number:
            raise Crash
        return await run(*args, **kwargs)

    patch.setattr(api.app.database, "run", crashing)


@pytest.mark.parametrize("crashes_at", range(6))
async def test_a_crash_leaves_all_endpoints_paused_or_none(
    api: Api, monkeypatch: pytest.MonkeyPatch, crashes_at: int
) -> None:
    made = [await endpoint_of(api) for _ in range(3)]
    with monkeypatch.context() as patch:
        crash_at(patch, api, crashes_at)
        with contextlib.suppress(Crash):
            await api.service.tenants.set_paused("acme", True, "test")
    topics = [await api.app.catalog.get(f"acme.{each['id']}") for each in made]
    paused = {"push.paused" in topic.options.attributes for topic in topics}
    assert paused == {(await api("GET", TENANT))["paused"]}
    entries = [entry["action"] for entry in (await api("GET", f"{TENANT}/audit-log"))["data"]]
    assert ("tenant.paused" in entries) is paused.pop()


async def test_an_endpoint_made_just_before_a_crash_is_paused_with_its_tenant(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = api.service.endpoints
    create_topic, fit = service._create_topic, service.fit

    async def paused_meanwhile(*args: Any) -> None:
        await create_topic(*args)
        await api.service.tenants.set_paused("acme", True, "test")

    async def crash(*args: Any) -> None:
        raise Crash

    monkeypatch.setattr(service, "_create_topic", paused_meanwhile)
    monkeypatch.setattr(service, "fit", crash)
    with pytest.raises(Crash):
        await service.create("acme", EndpointSettings(url="http://127.0.0.1:9/"), "test")
    monkeypatch.setattr(service, "fit", fit)
    [made] = (await api("GET", ENDPOINTS))["data"]
    await api.service.upkeep().tidy_delivered()
    assert "push.paused" in (await api.app.catalog.get(f"acme.{made['id']}")).options.attributes


@pytest.mark.parametrize("crashes_at", range(0, 14, 2))
async def test_a_crash_leaves_all_topics_with_the_cap_that_is_shown(
    api: Api, monkeypatch: pytest.MonkeyPatch, crashes_at: int
) -> None:
    made = [await endpoint_of(api) for _ in range(3)]
    with monkeypatch.context() as patch:
        crash_at(patch, api, crashes_at)
        with contextlib.suppress(Crash):
            await api.service.tenants.change("acme", {"qps": 40}, "test", creates=True)
    names = ["acme", *[f"acme.{each['id']}" for each in made]]
    assert {(await api.app.catalog.get(name)).qps for name in names} == {(await api("GET", TENANT))["qps"]}


async def test_upkeep_completes_what_does_not_follow_its_tenant(api: Api) -> None:
    made = await endpoint_of(api)
    for name in ("acme", f"acme.{made['id']}"):
        await api.app.update_topic(name, qps=7)
    await api.service.upkeep().tidy_delivered()
    assert {(await api.app.catalog.get(name)).qps for name in ("acme", f"acme.{made['id']}")} == {100}


async def test_a_manager_pauses_the_tenant_on_its_page_after_a_look_at_what_it_does(api: Api) -> None:
    http = await signed_in(api, await api.key_of("manage", "acme"))
    assert 'href="/ui/tenants/acme/pause">Pause…' in (await http.get("/ui/tenants/acme")).text
    asked = (await http.get("/ui/tenants/acme/pause")).text
    assert "This is for all its endpoints" in asked
    assert (await api("GET", TENANT))["paused"] is False
    form = {"csrf": proof_in(asked), "to": "pause"}
    await http.post("/ui/tenants/acme/pause", data=form, headers=SAME_SITE)
    assert (await api("GET", TENANT))["paused"] is True
    page = (await http.get("/ui/tenants/acme")).text
    assert 'class="badge paused"' in page
    assert "Resume…" in page


def test_the_command_line_pauses_a_tenant_or_one_endpoint(emq: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMQ_PUSH_ALLOW", "127.0.0.1")
    emq("push tenant acme --qps 5")
    endpoint = emq.json("push endpoint acme http://127.0.0.1:9/")["id"]
    assert "tenant 'acme': paused" in emq("push pause acme")
    assert [tenant["paused"] for tenant in emq.json("push tenants")] == [True]
    emq("push resume acme")
    assert [tenant["paused"] for tenant in emq.json("push tenants")] == [False]
    emq(f"push pause acme --endpoint {endpoint}")
    assert [each["state"] for each in emq.json("push endpoints acme")] == ["paused"]
    assert "there is no tenant 'nobody'" in emq.refused("push pause nobody")


async def test_the_audit_log_has_what_an_operator_changes_of_a_plain_topic_on_its_page(api: Api) -> None:
    await api.app.create_topic("plain", qps=10)
    http = await signed_in(api, api.admin)
    proof = proof_in((await http.get("/ui/tenants/plain/pause")).text)
    for path, form in (("rate", {"qps": "7"}), ("pause", {"to": "pause"}), ("pause", {"to": "resume"})):
        done = await http.post(f"/ui/tenants/plain/{path}", data={"csrf": proof, **form}, headers=SAME_SITE)
        assert done.status_code < 400, done.text
    entries = (await api("GET", "/v1/audit-log"))["data"]
    seen = [(each["action"], each["changes"]) for each in entries if each["target"] == "plain"]
    changes: list[tuple[str, dict[str, Any]]] = [
        ("topic.resumed", {"state": "active"}),
        ("topic.paused", {"state": "paused"}),
        ("topic.changed", {"qps": 7}),
    ]
    assert seen == changes


async def test_the_audit_log_has_the_endpoint_that_a_host_disabled(api: Api, receiver: HttpReceiver) -> None:
    receiver.answers = lambda _: 410
    made = await endpoint_of(api, receiver)
    async with hosting(api):
        await api("POST", f"{TENANT}/messages", MESSAGE, status=202)

        async def disabled() -> Any:
            return (await api("GET", f"{ENDPOINTS}/{made['id']}"))["disabled"]

        assert await until(disabled, step_s=0.05) == "it is gone: HTTP 410"
    latest = (await api("GET", f"{TENANT}/audit-log"))["data"][0]
    assert (latest["action"], latest["target"]) == ("endpoint.disabled", made["id"])
    assert latest["actor"].startswith("host ")
    assert latest["changes"] == {"reason": "it is gone: HTTP 410"}


# ------------------------------------------------------------------------------------------------- endpoints that sleep


async def asleep(app: emq.App, made: dict[str, Any]) -> str:
    """Put the topic of an endpoint to sleep, as its host does; return its name."""
    name = f"acme.{made['id']}"
    topic = await app.catalog.get(name)
    assert await put_to_sleep(app.store, app.catalog, app.checkpoints, [topic], 0) == {name}
    return name


async def test_an_endpoint_that_sleeps_is_changed_paused_and_resumed_and_gets_its_next_message(
    api: Api, receiver: HttpReceiver
) -> None:
    made = await api("POST", ENDPOINTS, {"url": receiver.url("/before")}, status=201)
    other = await api("POST", ENDPOINTS, {"url": receiver.url("/other")}, status=201)
    name = await asleep(api.app, made)
    await asleep(api.app, other)

    await api("PATCH", f"{ENDPOINTS}/{made['id']}", {"url": receiver.url("/after"), "qps": 7})
    assert (await api("POST", f"{TENANT}:pause"))["paused"] is True
    assert (await api("POST", f"{TENANT}:resume"))["paused"] is False
    await api("PUT", TENANT, {"qps": 50})
    assert (await api("GET", f"{ENDPOINTS}/{made['id']}"))["url"] == receiver.url("/after")
    assert len((await api("GET", ENDPOINTS))["data"]) == 2
    topic: Topic = await api.app.catalog.get(name)
    assert (topic.asleep_s > 0, topic.qps) == (True, 7.0)
    assert await _Surroundings(api.app).pushed([name, "acme", "gone"]) == [name]  # old records of it go

    async with hosting(api):
        await api("POST", f"{TENANT}/messages", MESSAGE, status=202)
        await until(lambda: len(receiver.requests) == 2)
    assert {request.path for request in receiver.requests} == {"/after", "/other"}


async def test_an_endpoint_that_sleeps_is_deleted_with_its_tenant(api: Api) -> None:
    made = [await api("POST", ENDPOINTS, {"url": "http://127.0.0.1:9/"}, status=201) for _ in range(2)]
    for one in made:
        await asleep(api.app, one)
    await api("DELETE", f"{ENDPOINTS}/{made[0]['id']}", status=204)
    assert len((await api("GET", ENDPOINTS))["data"]) == 1
    await api("DELETE", TENANT, status=204)
    assert await api.app.catalog.names("acme*") == []
