"""Polling endpoints: messages wait in the endpoint's log until the tenant's consumer has acknowledged them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from emq_push import polling
from emq_push.records.poll_log import PollLog
from emq_push.service.reconciling import Sweep
from support import push_api
from support.push_api import Api
from support.push_api_calls import PATH, endpoint_of, hosting, message, post
from support.waiting import until

api = push_api.fixture("acme", "other")
ENDPOINTS = "/v1/tenants/acme/endpoints"


@pytest.fixture
async def polled(api: Api) -> AsyncIterator[str]:
    """The path of a polling endpoint, while a host runs."""
    async with hosting(api):
        yield f"{ENDPOINTS}/{(await endpoint_of(api, url='poll:', event_types=['order.*']))['id']}"


async def fetched(api: Api, path: str, n: int, **params: Any) -> list[dict[str, Any]]:
    """Poll until there are `n` messages."""
    found: list[dict[str, Any]] = []

    async def are_there() -> bool:
        found[:] = (await api("GET", f"{path}/poll", params=params))["data"]
        return len(found) >= n

    await until(are_there)
    return found


async def state(api: Api, delivery: str) -> str:
    return str((await api("GET", f"/v1/tenants/acme/deliveries/{delivery}"))["state"])


async def test_a_consumer_fetches_messages_in_order_and_acknowledges_them_by_cursor(api: Api, polled: str) -> None:
    for n in range(5):
        await post(api, message(id=f"m{n}", key="k", payload={"n": n}, headers={"trace": "t"}))
    await post(api, message(event_type="refund.paid"))
    found = await fetched(api, polled, 5)
    assert [each["payload"] for each in found] == [{"n": n} for n in range(5)]
    assert found[0]["id"] == "m0"
    assert found[0]["key"] == "k"
    assert found[0]["headers"] == {"trace": "t"}
    assert await state(api, found[0]["delivery"]) == "waiting"

    page = await api("GET", f"{polled}/poll", params={"after": found[1]["cursor"], "limit": 2})
    assert [each["id"] for each in page["data"]] == ["m2", "m3"]
    assert page["next"] == found[3]["cursor"]
    assert len(await fetched(api, polled, 5)) == 5, "a poll changes nothing"

    body = {"cursor": found[2]["cursor"]}
    assert await api("POST", f"{polled}:acknowledge", body) == {"messages": 3}
    assert await api("POST", f"{polled}:acknowledge", body) == {"messages": 0}
    assert [each["id"] for each in await fetched(api, polled, 2)] == ["m3", "m4"]
    states = [await state(api, each["delivery"]) for each in found]
    assert states == ["delivered"] * 3 + ["waiting"] * 2
    assert await api("GET", f"{polled}/poll", params={"after": found[4]["cursor"]}) == {"data": [], "next": None}


async def test_a_poll_waits_for_a_message(api: Api, polled: str) -> None:
    async def send() -> None:
        await asyncio.sleep(0.3)
        await post(api, message(id="late"))

    sending = asyncio.create_task(send())
    page = await api("GET", f"{polled}/poll", params={"wait_s": 20})
    await sending
    assert [each["id"] for each in page["data"]] == ["late"]
    await api("POST", f"{polled}:acknowledge", {"cursor": page["next"]})
    assert (await api("GET", f"{polled}/poll", params={"wait_s": 0.1}))["data"] == []


async def test_polls_that_wait_hold_no_turn(api: Api, polled: str) -> None:
    polls = [asyncio.create_task(api("GET", f"{polled}/poll", params={"wait_s": 20})) for _ in range(100)]
    await asyncio.sleep(0.2)
    await post(api, message(id="m"))
    assert all([each["id"] for each in page["data"]] == ["m"] for page in await asyncio.gather(*polls))


async def test_a_key_may_poll_and_do_nothing_else(api: Api, polled: str) -> None:
    made = await api("POST", "/v1/tenants/acme/tokens", {"role": "poll"})
    await post(api, message())
    await fetched(api, polled, 1)
    page = await api("GET", f"{polled}/poll", key=made["key"])
    assert await api("POST", f"{polled}:acknowledge", {"cursor": page["next"]}, key=made["key"]) == {"messages": 1}
    for method, path in (("GET", polled), ("DELETE", polled), ("GET", PATH)):
        await api(method, path, key=made["key"], status=403)
    for role in ("read", "send"):
        await api("GET", f"{polled}/poll", key=await api.key_of(role, "acme"), status=403)
        await api("POST", f"{polled}:acknowledge", {"cursor": "x"}, key=await api.key_of(role, "acme"), status=403)
    await api("GET", f"{polled}/poll", key=await api.key_of("poll", "other"), status=404)


async def test_an_acknowledged_message_can_be_sent_again(api: Api, polled: str) -> None:
    await post(api, message(id="m"))
    [first] = await fetched(api, polled, 1)
    await api("POST", f"{polled}:acknowledge", {"cursor": first["cursor"]})
    await api("POST", f"/v1/tenants/acme/deliveries/{first['delivery']}:resend")
    [again] = await fetched(api, polled, 1)
    assert again["id"] == "m"
    assert again["cursor"] != first["cursor"]


async def test_a_message_that_a_host_places_again_after_it_was_acknowledged_is_not_told_again(
    api: Api, polled: str
) -> None:
    await post(api, message(id="m"))
    [first] = await fetched(api, polled, 1)
    await api("POST", f"{polled}:acknowledge", {"cursor": first["cursor"]})
    log, topic = PollLog(api.service.parts.environment), f"acme.{polled.rpartition('/')[2]}"
    await api.service.parts.write(lambda c: log.place(c, topic, ["m", "n"], 1))
    assert await api.service.parts.read(lambda c: log.waiting(c, topic, ["m", "n"])) == {"n"}


async def test_a_full_log_fails_as_an_endpoint_out_of_order_does(
    api: Api, polled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "MOST", 3)
    for n in range(3):
        await post(api, message(id=f"m{n}"))
    found = await fetched(api, polled, 3)
    receipt = await post(api, message(id="over"))
    [delivery] = receipt["deliveries"]

    async def has_failed() -> bool:
        tried = await api("GET", f"/v1/tenants/acme/deliveries/{delivery}")
        return tried["status"] == 503 and "3 messages wait" in tried["reason"]

    await until(has_failed)
    await api("POST", f"{polled}:acknowledge", {"cursor": found[-1]["cursor"]})


async def test_an_endpoint_that_nobody_polls_is_disabled(api: Api, polled: str) -> None:
    topic = f"acme.{polled.rpartition('/')[2]}"
    attributes = (await api.app.catalog.get(topic)).options.attributes
    await api.app.update_topic(topic, attributes={**attributes, "push.disable_after_s": "60"})
    log, old_us = PollLog(api.service.parts.environment), api.service.parts.now_us() - 61_000_000
    await api.service.parts.write(lambda c: log.place(c, topic, ["old"], old_us))
    await post(api, message())

    async def is_disabled() -> bool:
        return "nobody has fetched" in ((await api("GET", polled))["disabled"] or "")

    await until(is_disabled)


async def test_what_waits_in_a_log_is_not_taken_for_lost(
    api: Api, polled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await post(api, message(id="m"))
    [found] = await fetched(api, polled, 1)
    topic = await api.app.catalog.get(f"acme.{polled.rpartition('/')[2]}")

    async def is_saved() -> bool:
        return all(at.watermark == tail for at, _, tail in await api.app.admin.offsets(topic))

    await until(is_saved)
    later_us = api.service.parts.now_us() + 3_600_000_000
    monkeypatch.setattr(api.service.parts, "now_us", lambda: later_us)
    sweep = Sweep(api.service.parts)
    await sweep.look()
    monkeypatch.setattr(api.service.parts, "now_us", lambda: later_us + 120_000_000)
    await sweep.look()
    assert sweep.settled == 0
    assert await state(api, found["delivery"]) == "waiting"


async def test_an_erased_message_leaves_the_log(api: Api, polled: str) -> None:
    await post(api, message(id="m", key="person"))
    [found] = await fetched(api, polled, 1)
    await api("POST", f"{PATH}:erase", {"key": "person"})
    assert (await api("GET", f"{polled}/poll"))["data"] == []
    assert await state(api, found["delivery"]) == "cancelled"


async def test_a_deleted_endpoint_leaves_no_log(api: Api, polled: str) -> None:
    await post(api, message(id="m"))
    await fetched(api, polled, 1)
    await api("DELETE", polled)
    await api("GET", f"{polled}/poll", status=404)
    log, topic = PollLog(api.service.parts.environment), f"acme.{polled.rpartition('/')[2]}"
    assert await api.service.parts.read(lambda c: log.waiting(c, topic, ["m"])) == set()


async def test_large_payloads_come_in_several_answers(api: Api, polled: str) -> None:
    for n in range(6):
        await post(api, message(id=f"m{n}", payload={"text": "x" * 1_000_000}))
    await until(lambda: _waiting(api, polled, 6))
    page = await api("GET", f"{polled}/poll")
    assert len(page["data"]) == 4
    rest = await api("GET", f"{polled}/poll", params={"after": page["next"]})
    assert len(rest["data"]) == 2


async def _waiting(api: Api, polled: str, n: int) -> bool:
    state = await api.service.polling.state("acme", polled.rpartition("/")[2])
    return state is not None and state.waiting == n


@pytest.mark.parametrize("url", ["poll:x", "poll://host", "POLL:/x", "POLL:"])
async def test_the_url_of_a_polling_endpoint_is_the_word_alone(api: Api, url: str) -> None:
    refused = await api("POST", ENDPOINTS, {"url": url}, status=422)
    assert "'poll:'" in refused["detail"]
    assert refused["pointer"] == "/url"


async def test_what_only_requests_have_is_refused(api: Api) -> None:
    refused = await api("POST", ENDPOINTS, {"url": "poll:", "batch": {"most": 10}}, status=422)
    assert "batch is for http and https" in refused["detail"]


async def test_a_template_is_refused_since_payloads_come_as_they_were_sent(api: Api) -> None:
    template = {"text.$": "$.n"}
    refused = await api("POST", ENDPOINTS, {"url": "poll:", "template": template}, status=422)
    assert "template is not for poll:" in refused["detail"]
    other = (await endpoint_of(api, template=template))["id"]
    await api("PATCH", f"{ENDPOINTS}/{other}", {"url": "poll:"}, status=422)
    await api("PATCH", f"{ENDPOINTS}/{other}", {"url": "poll:", "template": None})


async def test_other_endpoints_are_not_polled(api: Api) -> None:
    path = f"{ENDPOINTS}/{(await endpoint_of(api))['id']}"
    assert (await api("GET", f"{path}/poll", status=409))["code"] == "not_polled"
    assert (await api("POST", f"{path}:acknowledge", {"cursor": "x"}, status=422))["code"] == "invalid_cursor"
    await api("GET", f"{ENDPOINTS}/ep_none/poll", status=404)


async def test_the_payload_comes_as_it_was_sent(api: Api, polled: str) -> None:
    body = b'{"event_type": "order.paid", "payload": {"n": 1.10, "big": 12345678901234567890123}}'
    headers = {"content-type": "application/json"}
    assert (await api.raw("POST", PATH, headers=headers, content=body)).status_code == 202
    await fetched(api, polled, 1)
    answer = await api.raw("GET", f"{polled}/poll")
    assert b'"payload":{"n": 1.10, "big": 12345678901234567890123}' in answer.content
    assert msgspec.json.decode(answer.content)["data"]
