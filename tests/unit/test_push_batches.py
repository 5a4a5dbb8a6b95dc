"""Batched delivery: messages share a request, a signature and an outcome."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Mapping

import pytest
from aiohttp import web
from standardwebhooks.webhooks import Webhook

import emq
from emq.runtime import errors, settings
from emq.storage.message import Message
from emq.topics import model
from emq_push.addresses import AddressFilter
from emq_push.batches import MOST_BYTES
from emq_push.cli.pushing import with_push
from emq_push.endpoint import Endpoint
from emq_push.pusher import Pusher
from emq_push.schedule import Schedule
from support.http_receiver import HttpReceiver, Request

ANY = AddressFilter(("*",))
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def endpoint(url: str, **attributes: str) -> Endpoint:
    named = {"push.url": url, **{f"push.{name}": value for name, value in attributes.items()}}
    found = Endpoint.from_topic(model.Topic("t", 10.0, options=model.TopicOptions(attributes=named)))
    assert found is not None
    return found


async def deliver(found: Endpoint, payloads: Mapping[str, bytes], **fields: object) -> list[BaseException | None]:
    async with Pusher({"t": found}.get, addresses=ANY) as push:
        messages = [Message(id_, payload, topic="t", **fields) for id_, payload in payloads.items()]  # type: ignore[arg-type]
        return await asyncio.gather(*map(push, messages), return_exceptions=True)


async def test_messages_share_a_request_and_a_signature() -> None:
    receiver = HttpReceiver(lambda request: 204)
    async with receiver.running():
        found = endpoint(receiver.url(), batch="3", secret=SECRET)
        assert await deliver(found, {f"id,{i}": b'{"n":%d}' % i for i in range(7)}) == [None] * 7
    assert [json.loads(body) for body in receiver.bodies] == [
        [{"n": 0}, {"n": 1}, {"n": 2}],
        [{"n": 3}, {"n": 4}, {"n": 5}],
        [{"n": 6}],
    ]
    first = receiver.requests[0]
    assert first.headers["emq-ids"] == "id%2C0,id%2C1,id%2C2"
    assert first.headers["emq-batch"] == "3"
    for request in receiver.requests:
        Webhook(SECRET).verify(request.body, request.headers)
    assert len({request.headers["webhook-id"] for request in receiver.requests}) == 3


async def test_a_payload_a_line() -> None:
    receiver = HttpReceiver(lambda request: 204)
    async with receiver.running():
        found = endpoint(receiver.url(), batch="3", batch_format="lines")
        await deliver(found, {"a": b'{\n "n": 1}', "b": b"2", "c": b'"x"'})
    [request] = receiver.requests
    assert request.body == b'{"n":1}\n2\n"x"\n'
    assert request.headers["content-type"] == "application/x-ndjson"


async def test_a_message_does_not_wait_for_others_longer_than_it_may() -> None:
    receiver = HttpReceiver(lambda request: 204)
    async with receiver.running():
        async with asyncio.timeout(2):
            assert (
                await deliver(endpoint(receiver.url(), batch="100", batch_ms="30"), {"a": b"1", "b": b"2"})
                == [None] * 2
            )
    assert receiver.bodies == [b"[1,2]"]


async def test_a_batch_has_one_outcome_and_each_message_its_own_error() -> None:
    receiver = HttpReceiver(lambda request: web.Response(status=500, text="broken"))
    async with receiver.running():
        failures = await deliver(endpoint(receiver.url(), batch="2"), {"a": b"1", "b": b"2"})
    assert [str(failure) for failure in failures] == ["HTTP 500: broken"] * 2
    assert all(isinstance(failure, errors.Retry) for failure in failures)
    assert failures[0] is not failures[1]


@pytest.mark.parametrize(
    "payload",
    [
        *(b"not json", b'"\xff"', b""),
        pytest.param(b'"' + b"x" * MOST_BYTES + b'"', id="large"),
        pytest.param(b"[" * 50_000 + b"]" * 50_000, id="deep"),
    ],
)
async def test_what_fits_no_batch_goes_alone(payload: bytes) -> None:
    receiver = HttpReceiver(lambda request: 204)
    async with receiver.running():
        found = endpoint(receiver.url(), batch="2", batch_ms="20")
        assert await deliver(found, {"a": b"1", "b": payload, "c": b"3"}) == [None] * 3
    assert sorted(receiver.bodies) == sorted([b"[1,3]", payload])
    alone = next(request for request in receiver.requests if request.body == payload)
    assert alone.headers["webhook-id"] == "b"


async def test_a_message_of_another_type_goes_alone() -> None:
    receiver = HttpReceiver(lambda request: 204)
    async with receiver.running():
        found = endpoint(receiver.url(), batch="2", batch_ms="20")
        await deliver(found, {"a": b"1"}, headers={"content-type": "text/plain"})
    assert receiver.bodies == [b"1"]


async def test_a_cancelled_message_leaves_its_batch() -> None:
    receiver = HttpReceiver(lambda request: 204)
    async with receiver.running():
        found = endpoint(receiver.url(), batch="5", batch_ms="50")
        async with Pusher({"t": found}.get, addresses=ANY) as push:
            tasks = [asyncio.create_task(push(Message(id_, id_.encode(), topic="t"))) for id_ in "123"]
            await asyncio.sleep(0.01)
            tasks[1].cancel()
            await asyncio.wait(tasks)
    assert receiver.bodies == [b"[1,3]"]


async def test_a_pusher_that_closes_leaves_nobody_waiting() -> None:
    """The request of the open batch is cancelled before it begins."""
    found = endpoint("http://127.0.0.1:9/", batch="5")
    push = Pusher({"t": found}.get, addresses=ANY)
    waiting = asyncio.create_task(push(Message("1", b"1", topic="t")))
    await asyncio.sleep(0)
    await push.close()
    done, _ = await asyncio.wait([waiting], timeout=1)
    assert done
    assert waiting.cancelled()


async def test_batches_of_a_host_keep_the_order_of_keys() -> None:
    receiver = HttpReceiver(lambda request: 204)
    app = emq.App("memory:", options=settings.load(environ={}, push_allow="127.0.0.1"))
    async with receiver.running(), with_push(app), app:
        attributes = {"push.url": receiver.url(), "push.batch": "10", "push.batch_ms": "20"}
        await app.create_topic("t", qps=100, group_qps=100, attributes=attributes)
        keys = [f"k{i % 5}" for i in range(60)]
        await app.publish_many("t", [b'{"k":"%s","n":%d}' % (k.encode(), i) for i, k in enumerate(keys)], keys=keys)
        async with app.running(), asyncio.timeout(20):
            while sum(len(json.loads(body)) for body in receiver.bodies) < 60:
                await asyncio.sleep(0.02)
    batches = [json.loads(body) for body in receiver.bodies]
    assert len(batches) < 60, "some shared a request"
    for batch in batches:
        assert len({item["k"] for item in batch}) == len(batch), "one message of a key at a time"
    for key in set(keys):
        order = [item["n"] for batch in batches for item in batch if item["k"] == key]
        assert order == sorted(order)


@pytest.mark.parametrize(
    "attributes", [{"batch": "0"}, {"batch": "1.5"}, {"batch_ms": "-1"}, {"batch_format": "xml"}, {"batch": "1001"}]
)
def test_batches_out_of_range_are_refused(attributes: dict[str, str]) -> None:
    with pytest.raises(errors.InvalidTopic, match=rf"push\.{next(iter(attributes))}"):
        endpoint("http://shop.example/", **attributes)


async def test_one_refused_payload_makes_no_dead_letters_of_its_companions() -> None:
    """Each attempt halves the batches; the last attempt of each message is a request of its own."""

    def answer(request: Request) -> int:
        return 400 if b"poison" in request.body else 204

    waiting = {f"{i}": b'"poison"' if i == 5 else b"%d" % i for i in range(16)}
    sizes: list[list[int]] = []
    for attempt in range(1, 11):
        receiver = HttpReceiver(answer)
        async with receiver.running():
            found = endpoint(receiver.url(), batch="16")
            outcomes = await deliver(found, waiting, attempt=attempt)
        sizes.append([len(json.loads(body)) for body in receiver.bodies if body.startswith(b"[")])
        waiting = {id_: waiting[id_] for id_, failed in zip(list(waiting), outcomes, strict=True) if failed}
        if len(waiting) == 1:
            break
    assert list(waiting) == ["5"]
    assert sizes[:4] == [[16], [8, 8], [4, 4], [2, 2]]


async def test_the_last_attempt_is_alone() -> None:
    receiver = HttpReceiver(lambda request: 204)
    async with receiver.running():
        found = dataclasses.replace(endpoint(receiver.url(), batch="16"), schedule=Schedule(max_attempts=2))
        await deliver(found, {f"{i}": b"1" for i in range(3)}, attempt=2)
    assert [json.loads(body) for body in receiver.bodies] == [[1]] * 3


@pytest.mark.parametrize(
    ("attempt", "ttl_s", "sizes"), [(1, 4, [1, 1, 1]), (2, 60, [1, 1, 1]), (1, 60, [3]), (2, 3_600, [3])]
)
async def test_a_message_that_expires_before_its_next_attempt_is_alone(
    attempt: int, ttl_s: float, sizes: list[int]
) -> None:
    """By its schedule it waits 5 s after its first attempt, and 5 min after its second."""
    receiver = HttpReceiver(lambda request: 204)
    async with receiver.running():
        found, expires_us = endpoint(receiver.url(), batch="16"), int((time.time() + ttl_s) * 1e6)
        found = dataclasses.replace(found, schedule=Schedule())
        await deliver(found, {f"{i}": b"1" for i in range(3)}, attempt=attempt, expires_us=expires_us)
    assert [len(json.loads(body)) for body in receiver.bodies] == sizes
