"""The API: endpoints, what they are refused for, their secrets, and tenants with their endpoints."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from emq.runtime import errors
from emq_push.records.endpoints import EndpointSettings, Filter
from emq_push.service.refusals import Invalid
from support import push_api
from support.http_receiver import HttpReceiver
from support.push_api import Api
from support.push_api_calls import PATH, Names, endpoint_of, hosting, message, post, states
from support.waiting import until

OAUTH2 = {"type": "oauth2", "token_url": "https://93.184.216.34/token", "client_id": "me", "client_secret": "s3cret"}


api = push_api.fixture("acme", push_allow="127.0.0.1")


async def test_an_endpoint_with_settings_that_an_earlier_version_took_is_read_and_corrected(api: Api) -> None:
    filters = (Filter("a" * 300, "in", (1 << 60, "b" * 2_000)),)
    wide = EndpointSettings(url="https://93.184.216.34/hook", qps=5e6, event_types=("order paid",), filters=filters)
    made = await api.service.endpoints.create("acme", wide, "test")
    [shown] = (await api("GET", "/v1/tenants/acme/endpoints"))["data"]
    assert (shown["qps"], shown["event_types"], shown["filters"][0]["value"][0]) == (5e6, ["order paid"], 1 << 60)
    await post(api, message())
    path = f"/v1/tenants/acme/endpoints/{made.endpoint.id}"
    refused = await api("PATCH", path, {"qps": 5}, status=422)
    assert "event_types" in refused["detail"]
    shown = await api("PATCH", path, {"qps": 5, "event_types": ["order.paid"], "filters": []})
    assert (shown["qps"], shown["event_types"]) == (5, ["order.paid"])


async def test_secrets_lie_encrypted_in_the_catalog(receiver: HttpReceiver) -> None:
    key = base64.b64encode(b"k" * 32).decode()
    async with push_api.opened(push_allow="127.0.0.1", secret_key=key) as api, hosting(api):
        await api("PUT", "/v1/tenants/acme", {"qps": 100})
        auth = {"type": "basic", "username": "me", "password": "s3cret"}
        made = await endpoint_of(api, receiver, headers={"X-Key": "h1dden"}, auth=auth)
        await api("POST", f"/v1/tenants/acme/endpoints/{made['id']}:rotate-secret")
        text = str((await api.app.catalog.get(f"acme.{made['id']}")).options.attributes)
        assert text.count("enc:v1:") == 3
        assert not any(secret in text for secret in ("whsec_", "h1dden", "Basic"))
        await post(api, message())
        [request] = await receiver.got(1)
    Webhook(made["secret"]).verify(request.body, request.headers)
    assert request.headers["x-key"] == "h1dden"
    assert request.headers["authorization"].startswith("Basic ")


async def test_a_change_keeps_what_it_does_not_name(api: Api) -> None:
    auth = {"type": "header", "name": "X-Auth", "value": "v"}
    made = await endpoint_of(api, headers={"X-One": "1"}, auth=auth, event_types=["a.*"], qps=7)
    path = f"/v1/tenants/acme/endpoints/{made['id']}"
    changed = await api("PATCH", path, {"description": "new", "retry_schedule_s": [1, 2]})
    kept = {
        name: value for name, value in changed.items() if name not in ("description", "retry_schedule_s", "changed")
    }
    assert kept == {name: value for name, value in made.items() if name in kept} | {"warnings": [], "secret": None}
    options = (await api.app.catalog.get(f"acme.{made['id']}")).options
    assert (options.backoff_s, options.max_attempts) == ((1, 2), 3)
    assert options.attributes["push.headers.X-One"] == "1"
    assert options.attributes["push.headers.X-Auth"] == "v"
    await api("PATCH", path, {"auth": {"type": "none"}})
    attributes = (await api.app.catalog.get(f"acme.{made['id']}")).options.attributes
    assert [name for name in attributes if name.startswith("push.headers.")] == ["push.headers.X-One"]
    assert (await api("PATCH", path, {"priorities": ["a"]}, status=422))["pointer"] == "/priorities"
    assert (await api("PATCH", path, {"url": None}, status=422))["pointer"] == "/url"


async def test_a_patch_changes_the_headers_that_it_names(api: Api) -> None:
    auth = {"type": "header", "name": "X-Auth", "value": "v"}
    made = await endpoint_of(api, headers={"X-One": "1", "X-Two": "2"}, auth=auth)
    path = f"/v1/tenants/acme/endpoints/{made['id']}"

    async def headers() -> dict[str, str]:
        attributes = (await api.app.catalog.get(f"acme.{made['id']}")).options.attributes
        return {name[13:]: value for name, value in attributes.items() if name.startswith("push.headers.")}

    changed = await api("PATCH", path, {"headers": {"x-two": "3", "X-Four": "4", "X-One": None}})
    assert changed["header_names"] == ["x-two", "X-Four"]
    assert await headers() == {"x-two": "3", "X-Four": "4", "X-Auth": "v"}
    entry = (await api("GET", "/v1/tenants/acme/audit-log"))["data"][0]
    assert entry["changes"] == {"header_names": ["x-two", "X-Four", "X-One"]}
    assert (await api("PATCH", path, {"headers": {}}))["header_names"] == ["x-two", "X-Four"]
    problem = await api("PATCH", path, {"headers": {f"X-{n}": "v" for n in range(19)}}, status=422)
    assert (problem["pointer"], "at most 20 headers, and not 21" in problem["detail"]) == ("/headers", True)
    assert (await api("PATCH", path, {"headers": None}))["header_names"] == []
    assert await headers() == {"X-Auth": "v"}


async def test_null_in_a_patch_gives_an_endpoint_the_default_again(api: Api) -> None:
    given = {"description": "d", "timeout_s": 3, "ttl_s": 9, "retry_schedule_s": [1], "qps": 5, "event_types": ["a"]}
    auth = {"type": "bearer", "token": "t"}
    plain = await endpoint_of(api)
    made = await endpoint_of(api, **given, auth=auth, signing="svix", batch={"most": 5, "wait_s": 2})
    path = f"/v1/tenants/acme/endpoints/{made['id']}"
    changed = await api("PATCH", path, {"batch": {"most": 7, "format": "lines"}})
    assert changed["batch"] == {"most": 7, "wait_s": 2.0, "format": "lines"}
    assert (await api("PATCH", path, {"batch": {"wait_s": None}}))["batch"]["wait_s"] == 0.1
    assert (await api("PATCH", path, {"batch": {"most": None}}, status=422))["pointer"] == "/batch/most"
    assert (await api("PATCH", path, {"batch": {"most": 1}}, status=422))["pointer"] == "/batch/most"
    changed = await api("PATCH", path, dict.fromkeys((*given, "auth", "signing", "batch", "signature", "secret")))
    assert (await api("PATCH", path, {"batch": {"wait_s": 1}}, status=422))["pointer"] == "/batch"
    own = ("id", "created", "changed", "secret", "signature")
    assert {k: v for k, v in changed.items() if k not in own} == {k: v for k, v in plain.items() if k not in own}


async def test_disabling_and_pausing_are_shown_and_taken_back(api: Api) -> None:
    made = await endpoint_of(api)
    path = f"/v1/tenants/acme/endpoints/{made['id']}"
    assert (await api("POST", f"{path}:disable", {"reason": "moving"}))["disabled"] == "moving"
    assert (await api("POST", f"{path}:pause"))["paused"] is True
    await api("PATCH", path, {"qps": 3})
    shown = await api("GET", path)
    assert (shown["disabled"], shown["paused"], shown["qps"]) == ("moving", True, 3)
    assert (await api("POST", f"{path}:enable"))["disabled"] is None
    assert (await api("POST", f"{path}:resume"))["paused"] is False


@pytest.mark.parametrize(
    ("body", "code", "pointer"),
    [
        ({"url": "http://10.0.0.1/"}, "forbidden_address", "/url"),
        ({"url": "http://[::ffff:10.0.0.1]/"}, "forbidden_address", "/url"),
        ({"url": "ftp://93.184.216.34/"}, "invalid_request", "/url"),
        ({"url": "http://me:s3cret@93.184.216.34/"}, "invalid_request", "/url"),
        ({"headers": {"Host": "x"}}, "invalid_request", "/headers"),
        ({"headers": {"X-A": "a\r\nX-B: b"}}, "invalid_request", "/headers"),
        ({"headers": {"Authorization": "x"}, "auth": {"type": "bearer", "token": "t"}}, "invalid_request", "/headers"),
        ({"auth": {"type": "bearer"}}, "invalid_request", "/auth/token"),
        ({"auth": {"type": "basic", "username": "a:b", "password": "c"}}, "invalid_request", "/auth/username"),
        ({"auth": OAUTH2 | {"client_secret": ""}}, "invalid_request", "/auth/client_secret"),
        ({"auth": OAUTH2 | {"token": "s3cret"}}, "invalid_request", "/auth/token"),
        ({"auth": OAUTH2 | {"type": "none"}}, "invalid_request", "/auth/token_url"),
        ({"auth": OAUTH2 | {"token_url": "http://10.0.0.1/"}}, "forbidden_address", "/auth/token_url"),
        ({"auth": OAUTH2 | {"token_url": "ftp://93.184.216.34/"}}, "invalid_request", "/auth/token_url"),
        ({"auth": OAUTH2 | {"token_url": "https://me:s3cret@93.184.216.34/"}}, "invalid_request", "/auth/token_url"),
        ({"auth": OAUTH2, "headers": {"authorization": "x"}}, "invalid_request", "/headers"),
        ({"auth": OAUTH2 | {"type": "oauth1"}}, "invalid_request", "/auth/type"),
        ({"batch": {"most": 1}}, "invalid_request", "/batch/most"),
        ({"batch": {"most": 1001}}, "invalid_request", "/batch/most"),
        ({"batch": {"most": 2, "wait_s": 60.1}}, "invalid_request", "/batch/wait_s"),
        ({"batch": {"most": 2, "format": "xml"}}, "invalid_request", "/batch/format"),
        ({"signature": "rsa"}, "invalid_request", "/signature"),
        ({"filters": [{"field": "a", "op": "in", "value": 1}]}, "invalid_request", "/filters/0"),
        ({"event_types": ["*.paid"]}, "invalid_request", "/event_types/0"),
        ({"timeout_s": 0}, "invalid_request", "/timeout_s"),
        ({"qps": 0}, "invalid_request", "/qps"),
        ({"colour": 1}, "invalid_request", "/colour"),
    ],
)
async def test_a_wrong_endpoint_is_refused_by_its_place(api: Api, body: Any, code: str, pointer: str) -> None:
    given = {"url": "https://93.184.216.34/hook", **body}
    problem = await api("POST", "/v1/tenants/acme/endpoints", given, status=422)
    assert (problem["code"], problem.get("pointer")) == (code, pointer)
    assert "s3cret" not in str(problem)
    assert [topic.name for topic in await api.app.catalog.list("acme.*")] == []


async def test_a_rate_too_low_is_refused_whoever_asks(api: Api) -> None:
    made = await endpoint_of(api)
    with pytest.raises(Invalid, match=r"1e-06.*`\$.qps`"):  # as a page does, past the models of the API
        await api.service.endpoints.change("acme", made["id"], {"qps": 1e-9}, "test")


async def test_a_name_that_leads_inside_is_refused_and_one_without_an_address_is_a_warning(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.service._reach, "_resolver", Names(inside="93.184.216.34 10.0.0.1"))
    problem = await api("POST", "/v1/tenants/acme/endpoints", {"url": "https://inside.example/"}, status=422)
    assert problem["code"] == "forbidden_address"
    made = await api("POST", "/v1/tenants/acme/endpoints", {"url": "https://nowhere.example/"}, status=201)
    assert made["warnings"] == ["nowhere.example has no address now; deliveries are retried until it has one"]


async def test_the_ids_of_another_tenant_do_not_exist(api: Api) -> None:
    made = await endpoint_of(api)
    await post(api, message(id="m1"))
    await api("PUT", "/v1/tenants/other", {"qps": 1})
    key = await api.key_of("manage", "other")
    mine, theirs = f"/v1/tenants/other/endpoints/{made['id']}", f"/v1/tenants/acme/endpoints/{made['id']}"
    for path in (mine, theirs):
        for method, more in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", ":pause"), ("POST", ":send-example")):
            body = {} if method == "PATCH" else None
            await api(method, f"{path}{more}", body, key=key, status=404)
    for tenant in ("acme", "other"):
        await api("GET", f"/v1/tenants/{tenant}/messages/m1", key=key, status=404)
    await api("POST", PATH, message(), key=key, status=404)
    receipt = await api("POST", "/v1/tenants/other/messages", message(id="m1", payload=2), key=key, status=202)
    assert receipt["deliveries"] == []
    assert (await api("GET", f"{PATH}/m1"))["payload"] == {"amount": 5}


async def test_a_smaller_tenant_makes_its_endpoints_smaller(api: Api) -> None:
    free, capped = await endpoint_of(api), await endpoint_of(api, qps=50)
    await api("PUT", "/v1/tenants/acme", {"qps": 20})
    assert [(await api.app.catalog.get(f"acme.{made['id']}")).qps for made in (free, capped)] == [20, 20]
    await api("PUT", "/v1/tenants/acme", {"qps": 80})
    assert [(await api.app.catalog.get(f"acme.{made['id']}")).qps for made in (free, capped)] == [80, 50]


async def test_a_deleted_tenant_leaves_nothing(api: Api) -> None:
    await endpoint_of(api)
    await post(api, {"messages": [message() for _ in range(3)]}, headers={"Idempotency-Key": "k"})
    await api.service.keys.create("manage", "test", tenant="acme")
    await api("DELETE", "/v1/tenants/acme", status=204)
    await api("GET", "/v1/tenants/acme", status=404)
    await post(api, message(), status=404)
    for table in ("tenants", "endpoints", "messages", "deliveries", "idempotency"):
        count = f"SELECT count(*) FROM emq_push_{table}"
        assert await api.app.database.run(lambda c, q=count: c.exec_driver_sql(q).scalar()) == 0, table
    assert await api.app.catalog.list("acme*") == []
    await api("PUT", "/v1/tenants/acme", {"qps": 5}, status=201)


async def test_a_deleted_tenant_leaves_no_messages_in_the_store(api: Api) -> None:
    made = [await endpoint_of(api, qps=80) for _ in range(5)]  # of two groups each
    await post(api, {"messages": [message() for _ in range(4)]})
    await post(api, {"messages": [message(delay_s=3600) for _ in range(4)]})
    topics = [await api.app.catalog.get(f"acme.{each['id']}") for each in made]
    groups = [topic.group(group) for topic in topics for group in range(topic.groups)]
    assert sum(state.waiting for state in await api.app.store.lanes.inspect(groups)) == 20  # type: ignore[union-attr]
    await api("DELETE", "/v1/tenants/acme", status=204)
    assert sum(state.waiting for state in await api.app.store.lanes.inspect(groups)) == 0  # type: ignore[union-attr]
    bounds = await api.app.store.log.bounds([queue for topic in topics for queue in topic.all_queues()])
    assert all(each.head == each.tail for each in bounds)  # type: ignore[union-attr]
    checkpoints = "SELECT count(*) FROM emq_checkpoints"
    assert await api.app.database.run(lambda c: c.exec_driver_sql(checkpoints).scalar()) == 0


async def test_an_example_is_a_signed_delivery_to_its_endpoint_alone(api: Api, receiver: HttpReceiver) -> None:
    made = await endpoint_of(api, receiver, event_types=["order.created"])
    await endpoint_of(api)
    path = f"/v1/tenants/acme/endpoints/{made['id']}:send-example"
    example = await api("POST", path, {"event_type": "order.paid"}, status=202)
    assert receiver.requests == []
    async with hosting(api):
        [request] = await receiver.got(1)
    Webhook(made["secret"]).verify(request.body, request.headers)
    assert request.headers["webhook-id"] == example["id"]
    assert (request.headers["emq-priority"], request.headers["emq-header-emq-example"]) == ("high", "true")
    assert json.loads(request.body) == example["payload"]
    shown = await api("GET", f"/v1/tenants/acme/deliveries/{example['delivery']}")
    assert (shown["state"], shown["endpoint"]) == ("delivered", made["id"])
    assert (await api("GET", f"/v1/tenants/acme/messages/{example['id']}"))["deliveries"] == [example["delivery"]]


async def test_examples_keep_to_the_cap_and_hold_up_no_request(api: Api, receiver: HttpReceiver) -> None:
    made = await endpoint_of(api, receiver, qps=10)
    path = f"/v1/tenants/acme/endpoints/{made['id']}:send-example"
    async with hosting(api):
        await asyncio.gather(*[api("POST", path, status=202) for _ in range(100)])
        await until(lambda: receiver.requests)
        await asyncio.sleep(1.5)
    assert len(receiver.requests) <= 30, "three seconds at most"


async def test_a_deleted_endpoint_cancels_its_deliveries(api: Api) -> None:
    made = await endpoint_of(api)
    await post(api, message(id="m1"))
    await api("DELETE", f"/v1/tenants/acme/endpoints/{made['id']}", status=204)
    await api("GET", f"/v1/tenants/acme/endpoints/{made['id']}", status=404)
    assert await states(api) == {"m1": "cancelled"}
    with pytest.raises(errors.UnknownTopic):
        await api.app.catalog.get(f"acme.{made['id']}")
