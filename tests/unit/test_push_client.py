"""The client of the push service, against the API itself on a real socket."""

from __future__ import annotations

import asyncio
import datetime
import os
import re
import warnings
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from emq.runtime import errors
from emq_clients import ApiError, ApiUnavailable, AsyncPushClient, PushClient, transport
from emq_clients.push import answers, cluster, messages
from emq_web import models
from support import push_api
from support.served import served

URL = "https://hooks.example/in"
Service = tuple[str, str]
"""Address and admin key."""


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with push_api.listening(push_allow="*") as (address, api):
        yield address, api.admin


async def test_a_tenants_life(service: Service) -> None:
    async with AsyncPushClient(*service) as push:
        assert await push.put_tenant("acme", qps=50, name="Acme") == await push.tenant("acme")
        endpoint = await push.create_endpoint("acme", url="https://127.0.0.1:9/in", event_types=["order.*"], qps=5)
        assert (endpoint.secret or "").startswith("whsec_")
        changed = await push.change_endpoint("acme", endpoint.id, qps=None, description="orders")
        assert (changed.qps, changed.description, changed.secret) == (None, "orders", None)
        receipt = await push.publish("acme", "order.created", {"order": 17}, id="o-17", key="k", delay_s=60)
        assert receipt == answers.Receipt("o-17", [f"{endpoint.id}:o-17"])
        many = [messages.message("order.paid", {"n": n}) for n in range(3)]
        assert len((await push.publish_many("acme", many)).data) == 3
        listed = [d async for d in push.all(push.deliveries, "acme", limit=1)]
        assert {d.endpoint for d in listed} == {endpoint.id}
        assert len(listed) == 4
        past = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
        assert (await push.stored_messages("acme", created_lt=past)).data == []
        assert (await push.count_replay("acme", {"created_gte": past})).total >= 0
        found = await push.trace("o-17", topic=f"acme.{endpoint.id}")
        assert found.state == "waiting"
        assert (await push.trace_delivery("acme", receipt.deliveries[0])).place == found.place
        token = await push.create_token("acme", role="read")
        assert token.key is not None
        async with AsyncPushClient(service[0], token.key) as guest:
            with pytest.raises(ApiError, match="needs send") as caught:
                await guest.publish("acme", "order.created", {})
            assert (caught.value.status, caught.value.code) == (403, "forbidden")
        with pytest.raises(ApiError, match="qps") as caught:
            await push.put_tenant("acme", qps=-1)
        assert (caught.value.status, caught.value.pointer) == (422, "/qps")
        await push.delete_tenant("acme")


async def test_the_catalogue_of_event_types(service: Service) -> None:
    schema = {"type": "object", "required": ["order"]}
    async with AsyncPushClient(*service) as push:
        await push.put_tenant("acme", qps=5)
        made = await push.put_event_type("order.paid", description="Paid", schemas={"1": schema}, example={"order": 17})
        assert made == await push.event_type("order.paid")
        assert (made.versions, made.schemas, made.example) == (["1"], {"1": schema}, {"order": 17})
        changed = await push.change_event_type("order.paid", schemas={"1": None, "2": {}}, example=None, archived=True)
        assert (changed.versions, changed.example, changed.archived) == (["2"], None, True)
        assert [each.name async for each in push.all(push.event_types, limit=1)] == ["order.paid"]
        assert (await push.change_event_type_settings(check="strict")) == await push.event_type_settings()
        await push.publish("acme", "order.paid", {}, channels=["eu"], schema_version="2")
        with pytest.raises(ApiError) as caught:
            await push.publish("acme", "order.sent", {})
        refusal = caught.value.status, caught.value.code, caught.value.pointer
        assert refusal == (422, "unknown_event_type", "/event_type")
        await push.delete_event_type("order.paid")
        assert (await push.event_types()).data == []


async def test_code_without_an_event_loop(service: Service) -> None:
    def work() -> list[str]:
        with PushClient(*service) as push:
            push.put_tenant("acme", qps=5)
            push.create_endpoint("acme", url="https://127.0.0.1:9/in")
            push.publish("acme", "a.b", 1, id="m1")
            push.publish("acme", "a.b", 2, id="m2")
            push.close()  # the next call opens it again
            return [d.message for d in push.all(push.deliveries, "acme", limit=1)]

    assert sorted(await asyncio.to_thread(work)) == ["m1", "m2"]


class Flaky:
    """An HTTP server whose answers are given; for None, and after the last, it closes the connection without one."""

    def __init__(self, *heads: str | None) -> None:
        self.heads = list(heads)
        self.asked: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = re.search(rb"(?i)content-length: (\d+)", head)
        self.asked.append(head + await reader.readexactly(int(size[1]) if size else 0))
        if self.heads and (answer := self.heads.pop(0)) is not None:
            body = msgspec.json.encode({"id": "m", "deliveries": []})
            head_out = f"HTTP/1.1 {answer}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head_out.encode() + body)
            await writer.drain()


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "WAIT_S", 0.001)


async def test_a_publish_without_an_answer_is_repeated_under_the_same_key(hurry: None) -> None:
    flaky = Flaky(None, "503 Later\r\nRetry-After: 0", "202 Accepted")
    async with served(flaky.serve) as port, AsyncPushClient(f"http://127.0.0.1:{port}", "k") as push:
        assert (await push.publish("acme", "a", {})).id == "m"
    keys = {re.search(rb"(?i)idempotency-key: (\S+)", head)[1] for head in flaky.asked}  # type: ignore[index]
    assert len(flaky.asked) == 3
    assert len(keys) == 1


async def test_an_operation_that_a_repeat_would_double_is_repeated_under_the_same_key(hurry: None) -> None:
    flaky = Flaky(None, "409 Conflict\r\nRetry-After: 0", None)
    async with served(flaky.serve) as port, AsyncPushClient(f"http://127.0.0.1:{port}", "k", tries=3) as push:
        with pytest.raises(ApiUnavailable, match="resend"):
            await push.resend("acme", "ep:m")
    keys = {re.search(rb"(?i)idempotency-key: (\S+)", head)[1] for head in flaky.asked}  # type: ignore[index]
    assert (len(flaky.asked), len(keys)) == (3, 1)


async def test_a_refusal_that_asks_for_no_repeat_is_told_at_once(hurry: None) -> None:
    flaky = Flaky("409 Conflict")
    async with served(flaky.serve) as port, AsyncPushClient(f"http://127.0.0.1:{port}", "k") as push:
        with pytest.raises(ApiError):
            await push.resend("acme", "ep:m")
    assert len(flaky.asked) == 1


async def test_what_is_made_twice_over_a_bad_network_is_made_once(
    service: Service, hurry: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer of each request is lost."""
    exchange = transport.AsyncApi._exchange
    lost: set[int] = set()

    async def lossy(self: Any, request: Any) -> Any:
        found = await exchange(self, request)
        if id(request) not in lost:
            lost.add(id(request))
            raise TimeoutError
        return found

    async with AsyncPushClient(*service) as push:
        await push.put_tenant("acme", qps=5)
        monkeypatch.setattr(transport.AsyncApi, "_exchange", lossy)
        made = await push.create_endpoint("acme", url="https://127.0.0.1:9/in")
        rotated = await push.rotate_secret("acme", made.id)
        key = await push.create_key(role="admin")
        monkeypatch.setattr(transport.AsyncApi, "_exchange", exchange)
        assert made.secret
        assert rotated.secret not in ("", made.secret)
        assert [each.id for each in (await push.endpoints("acme")).data] == [made.id]
        assert [each.id for each in (await push.keys()).data][1:] == [key.id]
        actions = [entry.action for entry in (await push.audit_log()).data]
    assert actions == ["key.created", "endpoint.secret_rotated", "endpoint.created", "tenant.created", "key.created"]


async def test_too_many_requests_are_repeated_and_then_told(hurry: None) -> None:
    flaky = Flaky(*["429 Slow\r\nRetry-After: 0"] * 2)
    async with served(flaky.serve) as port, AsyncPushClient(f"http://127.0.0.1:{port}", "k", tries=2) as push:
        with pytest.raises(ApiError) as caught:
            await push.publish("acme", "a", {})
    assert caught.value.status == 429


def test_a_plan_is_read_with_its_hosts() -> None:
    plan = answers.Plan(
        3, None, "a", "b", 7, {"held": 7}, [answers.PlannedHost("a", 7, True, buckets=2)], 2, {"held": 2}
    )
    text = models.of(answers.Plan).model_validate(plan, from_attributes=True).model_dump_json()
    assert msgspec.json.decode(text, type=cluster.plan().answer) == plan


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "x", "http://x/?a=b", None])
def test_a_wrong_address_is_named(url: Any) -> None:
    with pytest.raises(errors.InvalidSettings, match="EMQ's API"):
        AsyncPushClient(url, "k")


def test_a_wrong_key_is_refused_without_being_shown() -> None:
    with pytest.raises(errors.InvalidSettings) as caught:
        PushClient("http://x", " s3cret")
    assert "s3cret" not in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where processes fork")
async def test_a_forked_child_has_a_thread_of_its_own(service: Service) -> None:
    def work() -> int:
        push = PushClient(*service)
        push.put_tenant("acme", qps=5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: the process has threads
            child = os.fork()
        if child == 0:
            try:
                os._exit(0 if push.tenant("acme").qps == 5 else 1)
            finally:
                os._exit(2)
        _, status = os.waitpid(child, 0)
        push.close()
        return os.waitstatus_to_exitcode(status)

    assert await asyncio.to_thread(work) == 0
