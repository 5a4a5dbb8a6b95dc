"""The API, the whole way: tenant, endpoint, message, a signed delivery; and what happens when something fails."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa
from standardwebhooks.webhooks import Webhook

from emq.runtime import errors
from emq_push.records import tables
from emq_push.service import publishing
from support import push_api
from support.http_receiver import HttpReceiver
from support.push_api import Api
from support.push_api_calls import PATH, endpoint_of, hosting, lag, message, post, states

api = push_api.fixture("acme", push_allow="127.0.0.1")


async def test_a_published_message_arrives_signed(api: Api, receiver: HttpReceiver) -> None:
    async with hosting(api):
        made = await endpoint_of(api, receiver, headers={"X-Shop": "1"}, auth={"type": "bearer", "token": "t0ken"})
        receipt = await post(api, message(), status=202)
        assert receipt["deliveries"] == [f"{made['id']}:{receipt['id']}"]
        [request] = await receiver.got(1)
    assert json.loads(request.body) == {"amount": 5}
    assert Webhook(made["secret"]).verify(request.body, request.headers) == {"amount": 5}
    assert request.headers["webhook-id"] == receipt["id"]
    assert request.headers["emq-header-event-type"] == "order.paid"
    assert (request.headers["x-shop"], request.headers["authorization"]) == ("1", "Bearer t0ken")
    assert await states(api) == {receipt["id"]: "delivered"}
    assert (await api.app.catalog.get(f"acme.{made['id']}")).options.budget == "acme"


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"event_type": "order.paid"}, "payload: is missing; give it a value"),
        ({"event_type": "a", "payload": 1, "foo": 2}, "foo: there is no such field; /v1/openapi.json has those"),
        ({"event_type": "order paid", "payload": 1}, r"event_type: must match ^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$"),
        ({"event_type": "a", "payload": 1, "delay_s": "x"}, "delay_s: expected `float | null`, got `str`"),
    ],
)
async def test_what_is_wrong_with_a_message_is_said_in_words(api: Api, body: dict[str, Any], detail: str) -> None:
    assert (await post(api, body, status=422))["detail"].startswith(detail)


async def test_a_batch_arrives_in_order_at_each_endpoint_that_wants_it(api: Api, receiver: HttpReceiver) -> None:
    async with hosting(api):
        paid = await endpoint_of(api, receiver, event_types=["order.*"])
        large = await endpoint_of(
            api, receiver, filters=[{"field": "amount", "op": "gte", "value": 2}], event_types=["*"]
        )
        await endpoint_of(api, receiver, event_types=["user.*"])
        many = [message(payload={"amount": n}, id=f"m{n}", key="one") for n in range(4)]
        answer = await post(api, {"messages": many}, status=202)
        requests = await receiver.got(6)
    assert [len(receipt["deliveries"]) for receipt in answer["data"]] == [1, 1, 2, 2]
    by_topic: dict[str, list[str]] = {}
    for request in requests:
        by_topic.setdefault(request.headers["emq-topic"], []).append(request.headers["webhook-id"])
    assert by_topic == {f"acme.{paid['id']}": ["m0", "m1", "m2", "m3"], f"acme.{large['id']}": ["m2", "m3"]}


async def test_a_payload_is_delivered_byte_by_byte(api: Api, receiver: HttpReceiver) -> None:
    async with hosting(api):
        await endpoint_of(api, receiver)
        text = '{"event_type":"a","payload":{ "n": 1.10, "ü":"\\u00e4" , "big":123456789012345678901234567890}}'
        headers = {"Content-Type": "application/json"}
        await api("POST", "/v1/tenants/acme/messages", content=text.encode(), headers=headers, status=202)
        [request] = await receiver.got(1)
    assert request.body.decode() == text.removeprefix('{"event_type":"a","payload":').removesuffix("}")


# -------------------------------------------------------------------------------------------------------------- repeats


async def test_a_repeat_with_own_ids_is_the_same_message(api: Api) -> None:
    await endpoint_of(api)
    first = await post(api, message(id="m1"))
    assert await post(api, message(id="m1")) == first
    problem = await post(api, message(id="m1", payload={"amount": 6}), status=409)
    assert (problem["code"], problem["pointer"]) == ("message_exists", "/id")
    many = {"messages": [message(id="m0"), message(id="m1", key="other")]}
    assert (await post(api, many, status=409))["pointer"] == "/messages/1/id"
    assert (await api("GET", "/v1/tenants/acme/messages"))["data"][0]["id"] == "m1"
    assert await lag(api) == 1


async def test_an_idempotency_key_makes_a_repeat_safe(api: Api) -> None:
    await endpoint_of(api)
    headers = {"Idempotency-Key": "k1"}
    first = await post(api, message(), headers=headers)
    assert await post(api, message(), headers=headers) == first
    problem = await post(api, message(payload=1), headers=headers, status=422)
    assert problem["code"] == "idempotency_key_reused"
    assert await post(api, message(), headers={"Idempotency-Key": "k2"}) != first
    assert await lag(api) == 2


async def test_two_requests_of_one_key_at_once_are_one(api: Api) -> None:
    await endpoint_of(api)
    headers = {"Idempotency-Key": "k1"}
    answers = await asyncio.gather(*(api.raw("POST", PATH, message(), headers=headers) for _ in range(20)))
    assert {answer.status_code for answer in answers} <= {202, 409}
    assert len({answer.text for answer in answers if answer.status_code == 202}) == 1
    assert all(a.json()["code"] == "request_in_progress" for a in answers if a.status_code == 409)
    assert await lag(api) == 1


async def test_requests_at_once_share_transactions(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await endpoint_of(api)
    runs = mock.Mock(wraps=api.service.parts.write)
    monkeypatch.setattr(api.service.parts, "write", runs)
    answers = await asyncio.gather(*(post(api, message(payload=n)) for n in range(60)))
    assert len({answer["id"] for answer in answers}) == 60
    assert runs.call_count < 20
    assert await lag(api) == 60


# ------------------------------------------------------------------------------------------------------------- failures


async def test_a_crash_after_the_commit_loses_nothing(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await endpoint_of(api)

    sending = asyncio.Event()

    async def never_ends(*_: object) -> None:
        sending.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(api.app, "send", never_ends)
        task = asyncio.create_task(post(api, message(id="m1")))
        await sending.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await lag(api) == 0
    assert await api.service.publishing.send_left() == 0, "the lease of the process that has crashed still runs"
    age_leases(api, monkeypatch)
    assert await api.service.publishing.send_left() == 1
    assert await api.service.publishing.send_left() == 0
    assert await lag(api) == 1


async def test_a_damaged_message_keeps_no_other_from_being_sent_later(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await endpoint_of(api)

    async def fail(outgoing: list[object]) -> list[object]:
        return [errors.StoreUnavailable("gone")] * len(outgoing)

    with monkeypatch.context() as patch:
        patch.setattr(api.app, "send", fail)
        for id_ in ("bad", "good"):
            await api.raw("POST", PATH, message(id=id_))
    damage = sa.update(tables.messages).where(tables.messages.c.message == "bad").values(body="{")
    await api.app.database.run(lambda c: c.execute(damage))
    age_leases(api, monkeypatch)
    assert await api.service.publishing.send_left() == 1
    assert await lag(api) == 1


async def test_what_was_sent_is_forgotten_by_the_next_transaction(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "FORGET_S", 3600.0)
    await endpoint_of(api)

    async def unsent() -> int | None:
        query = "SELECT count(*) FROM emq_push_unsent"
        return await api.app.database.run(lambda c: c.exec_driver_sql(query).scalar())

    for _ in range(3):
        await post(api, message())
        assert await unsent() == 1
    await api.service.close()
    assert await unsent() == 0


@pytest.mark.parametrize("breaks", [False, True])
async def test_a_store_that_fails_answers_503_and_a_repeat_sends(
    api: Api, monkeypatch: pytest.MonkeyPatch, breaks: bool
) -> None:
    await endpoint_of(api)

    async def fail(outgoing: list[object]) -> list[object]:
        if breaks:
            raise RuntimeError("nobody expects this")
        return [errors.StoreUnavailable("gone")] * len(outgoing)

    for headers, body in (({"Idempotency-Key": "k"}, message()), ({}, message(id="m1"))):
        before = await lag(api)
        with monkeypatch.context() as patch:
            patch.setattr(api.app, "send", fail)
            response = await api.raw("POST", PATH, body, headers=headers)
            assert (response.status_code, response.json()["code"]) == (503, "not_sent")
            assert response.headers["retry-after"] == "1"
        assert await lag(api) == before
        await post(api, body, headers=headers, status=202)
        await post(api, body, headers=headers, status=202)
        assert await lag(api) == before + 1


async def test_what_failed_in_one_request_fails_no_other(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await endpoint_of(api)
    send = api.app.send

    async def half(outgoing: list[Any]) -> list[Any]:
        good = [o for o in outgoing if o.id != "bad"]
        sent = iter(await send(good))
        return [next(sent) if o.id != "bad" else errors.StoreUnavailable("gone") for o in outgoing]

    monkeypatch.setattr(api.app, "send", half)
    answers = await asyncio.gather(*(api.raw("POST", PATH, message(id=id_)) for id_ in ("good", "bad", "fine")))
    assert [answer.status_code for answer in answers] == [202, 503, 202]
    monkeypatch.undo()
    await post(api, message(id="bad"), status=202)
    assert await lag(api) == 3


async def test_a_change_of_endpoints_is_seen_by_the_next_message_on_every_worker(api: Api) -> None:
    async with push_api.another(api) as other:
        await other("POST", "/v1/tenants/acme/messages", message(), status=202)
        made = await endpoint_of(api, event_types=["order.*"])
        path = f"/v1/tenants/acme/endpoints/{made['id']}"
        for change, count in (({}, 1), ({"event_types": ["user.*"]}, 0), ({"event_types": ["*"]}, 1)):
            if change:
                await api("PATCH", path, change)
            receipt = await other("POST", "/v1/tenants/acme/messages", message(), status=202)
            assert len(receipt["deliveries"]) == count
        await api("DELETE", path, status=204)
        receipt = await other("POST", "/v1/tenants/acme/messages", message(), status=202)
        assert receipt["deliveries"] == []


# -------------------------------------------------------------------------------------------------------------- privacy


async def test_erasing_a_key_deletes_payloads_and_takes_delayed_ones_back(api: Api) -> None:
    await endpoint_of(api)
    await post(api, message(id="m1", key="ann", delay_s=3600))
    await post(api, message(id="m2", key="bob", delay_s=3600))
    assert (await api("POST", f"{PATH}:erase", {"key": "ann"}))["payloads"] == 1
    gone, kept = [await api("GET", f"{PATH}/{id_}") for id_ in ("m1", "m2")]
    assert (gone["erased"], gone["payload"], kept["erased"]) == (True, None, False)
    assert await states(api) == {"m1": "cancelled", "m2": "pending"}
    assert [planned.id for planned in await api.app.planned("acme.*")] == ["m2"]


async def test_delivered_payloads_are_deleted_where_the_tenant_wants_it(api: Api, receiver: HttpReceiver) -> None:
    await api("PUT", "/v1/tenants/acme", {"qps": 100, "delete_on_success": True})
    upkeep = api.service.upkeep()
    async with hosting(api):
        await endpoint_of(api, receiver)
        await post(api, message(id="m1"))
        await post(api, message(id="m2", delay_s=3600))
        await receiver.got(1)
    await upkeep.tidy_once()
    assert [(await api("GET", f"{PATH}/{id_}"))["erased"] for id_ in ("m1", "m2")] == [True, False]


async def settle(api: Api, message: str) -> None:
    values = {"state": "delivered", "settled_us": api.service.parts.now_us()}
    change = sa.update(tables.deliveries).where(tables.deliveries.c.message == message).values(values)
    await api.app.database.run(lambda c: c.execute(change))


async def test_messages_and_keys_are_forgotten_and_what_still_waits_is_kept_a_day_longer(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api("PUT", "/v1/tenants/acme", {"qps": 100, "payload_retention_s": 3600, "log_retention_s": 7200})
    await endpoint_of(api)
    await post(api, message(id="waits"))
    await post(api, message(id="done"), headers={"Idempotency-Key": "k1"})
    await settle(api, "done")
    now_us, upkeep = api.service.parts.now_us(), api.service.upkeep()

    async def left_after(hours: float) -> list[str]:
        monkeypatch.setattr(api.service.parts, "now_us", lambda: now_us + round(hours * 3.6e9))
        await upkeep.tidy_once()
        return [each["id"] for each in (await api("GET", PATH))["data"]]

    async def keys() -> int | None:
        query = "SELECT count(*) FROM emq_push_idempotency"
        return await api.app.database.run(lambda c: c.exec_driver_sql(query).scalar())

    assert await left_after(1.9) == ["done", "waits"]
    assert await left_after(2.1) == ["waits"]
    assert await states(api) == {"waits": "pending"}
    assert await keys() == 1
    assert await left_after(24.1) == ["waits"]
    assert await keys() == 0
    assert await left_after(100) == ["waits"]
    assert list((await states(api)).values()) == ["pending"]
    await settle(api, "waits")
    assert await left_after(101) == ["waits"]
    assert await left_after(125) == []


def age_leases(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    now_us = api.service.parts.now_us
    monkeypatch.setattr(api.service.parts, "now_us", lambda: now_us() + 20_000_000)
