"""Batched delivery: messages share a request, a signature and an outcome."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time

import pytest
from aiohttp import web
from standardwebhooks.webhooks import Webhook

import emq
from emq.runtime import errors, settings
from emq_push.batches import MOST_BYTES
from emq_push.cli.pushing import with_push
from emq_push.pusher import Pusher
from emq_push.schedule import Schedule
from support.http_receiver import HttpReceiver, Request
from support.pushing import ANY, SECRET, deliver, endpoint, message


async def test_messages_share_a_request_and_a_signature(receiver: HttpReceiver) -> None:
    found = endpoint(receiver.url(), batch="3", secret=SECRET)
    assert await deliver(found, *[message(f"id,{i}", b'{"n":%d}' % i) for i in range(7)]) == [None] * 7
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


async def test_a_payload_a_line(receiver: HttpReceiver) -> None:
    found = endpoint(receiver.url(), batch="3", batch_format="lines")
    await deliver(found, message("a", b'{\n "n": 1}'), message("b", b"2"), message("c", b'"x"'))
    [request] = receiver.requests
    assert request.body == b'{"n":1}\n2\n"x"\n'
    assert request.headers["content-type"] == "application/x-ndjson"


async def test_a_message_does_not_wait_for_others_longer_than_it_may(receiver: HttpReceiver) -> None:
    async with asyncio.timeout(2):
        found = endpoint(receiver.url(), batch="100", batch_ms="30")
        assert await deliver(found, message("a", b"1"), message("b", b"2")) == [None] * 2
    assert receiver.bodies == [b"[1,2]"]


async def test_a_batch_has_one_outcome_and_each_message_its_own_error(receiver: HttpReceiver) -> None:
    receiver.answers = lambda _: web.Response(status=500, text="broken")
    failures = await deliver(endpoint(receiver.url(), batch="2"), message("a", b"1"), message("b", b"2"))
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
async def test_what_fits_no_batch_goes_alone(payload: bytes, receiver: HttpReceiver) -> None:
    found = endpoint(receiver.url(), batch="2", batch_ms="20")
    messages = [message("a", b"1"), message("b", payload), message("c", b"3")]
    assert await deliver(found, *messages) == [None] * 3
    assert sorted(receiver.bodies) == sorted([b"[1,3]", payload])
    alone = next(request for request in receiver.requests if request.body == payload)
    assert alone.headers["webhook-id"] == "b"


async def test_a_message_of_another_type_goes_alone(receiver: HttpReceiver) -> None:
    found = endpoint(receiver.url(), batch="2", batch_ms="20")
    await deliver(found, message("a", b"1", headers={"content-type": "text/plain"}))
    assert receiver.bodies == [b"1"]


async def test_a_cancelled_message_leaves_its_batch(receiver: HttpReceiver) -> None:
    found = endpoint(receiver.url(), batch="5", batch_ms="500")
    async with Pusher({"t": found}.get, addresses=ANY) as push:
        tasks = [asyncio.create_task(push(message(id_, id_.encode()))) for id_ in "123"]
        await asyncio.sleep(0.01)
        tasks[1].cancel()
        await asyncio.wait(tasks)
    assert receiver.bodies == [b"[1,3]"]


async def test_a_pusher_that_closes_leaves_nobody_waiting() -> None:
    """The request of the open batch is cancelled before it begins."""
    push = Pusher({"t": endpoint("http://127.0.0.1:9/", batch="5")}.get, addresses=ANY)
    waiting = asyncio.create_task(push(message()))
    await asyncio.sleep(0)
    await push.close()
    done, _ = await asyncio.wait([waiting], timeout=1)
    assert done
    assert waiting.cancelled()


async def test_batches_of_a_host_keep_the_order_of_keys(receiver: HttpReceiver) -> None:
    app = emq.App("memory:", options=settings.load(environ={}, push_allow="127.0.0.1"))
    async with with_push(app), app:
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


async def test_one_refused_payload_makes_no_dead_letters_of_its_companions(receiver: HttpReceiver) -> None:
    """Each attempt halves the batches; the last attempt of each message is a request of its own."""

    def answer(request: Request) -> int:
        return 400 if b"poison" in request.body else 204

    receiver.answers, found = answer, endpoint(receiver.url(), batch="16")
    waiting = {f"{i}": b'"poison"' if i == 5 else b"%d" % i for i in range(16)}
    sizes: list[list[int]] = []
    for attempt in range(1, 11):
        receiver.requests.clear()
        outcomes = await deliver(found, *[message(*each, attempt=attempt) for each in waiting.items()])
        sizes.append([len(json.loads(body)) for body in receiver.bodies if body.startswith(b"[")])
        waiting = {id_: waiting[id_] for id_, failed in zip(list(waiting), outcomes, strict=True) if failed}
        if len(waiting) == 1:
            break
    assert list(waiting) == ["5"]
    assert sizes[:4] == [[16], [8, 8], [4, 4], [2, 2]]


@pytest.mark.parametrize(
    ("attempt", "most_attempts", "ttl_s", "sizes"),
    [
        (2, 2, None, [1, 1, 1]),
        (1, 10, 4, [1, 1, 1]),
        (2, 10, 60, [1, 1, 1]),
        (1, 10, 60, [3]),
        (2, 10, 3_600, [3]),
    ],
)
async def test_a_message_at_its_last_attempt_is_alone_also_if_it_expires_before_the_next(
    attempt: int, most_attempts: int, ttl_s: float | None, sizes: list[int], receiver: HttpReceiver
) -> None:
    """By its schedule it waits 5 s after its first attempt, and 5 min after its second."""
    schedule = Schedule(max_attempts=most_attempts)
    found = dataclasses.replace(endpoint(receiver.url(), batch="16"), schedule=schedule)
    expires_us = 0 if ttl_s is None else int((time.time() + ttl_s) * 1e6)
    await deliver(found, *[message(f"{i}", b"1", attempt=attempt, expires_us=expires_us) for i in range(3)])
    assert [len(json.loads(body)) for body in receiver.bodies] == sizes
