"""Endpoints that are queues of SQS, with a server of moto as SQS."""

from __future__ import annotations

import asyncio
import base64
import json
import warnings
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from emq.runtime import errors
from emq.storage.message import Message
from emq.topics.model import Topic, TopicOptions
from emq_push import destinations, sqs, verdict
from emq_push.addresses import AddressFilter
from emq_push.destinations import Around, Parcel
from emq_push.endpoint import Endpoint
from support import push_api
from support.http_receiver import HttpReceiver
from support.push_api import Api
from support.push_api_calls import endpoint_of, hosting, message, post
from support.waiting import until

moto_server = pytest.importorskip("moto.server", reason="the oldest versions are tried without a server of SQS")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

api = push_api.fixture("acme", push_allow="127.0.0.1")
AUTH = {"type": "basic", "username": "AKIDEXAMPLE", "password": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"}
ACCOUNT = "123456789012"


class Sqs:
    """A server of SQS, which does not check signatures."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __call__(self, action: str, **fields: Any) -> dict[str, Any]:
        import httpx

        by = "AWS4-HMAC-SHA256 Credential=x/20261130/us-east-1/sqs/aws4_request, SignedHeaders=host, Signature=x"
        headers = {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}
        headers["Authorization"] = by
        async with httpx.AsyncClient() as http:
            answer = await http.post(f"http://127.0.0.1:{self.port}/", content=json.dumps(fields), headers=headers)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def queue(self, name: str, **attributes: str) -> str:
        """Make a queue; return the URL of an endpoint that is the queue."""
        await self("CreateQueue", QueueName=name, Attributes=attributes)
        return f"sqs+http://127.0.0.1:{self.port}/{ACCOUNT}/{name}"

    async def received(self, name: str) -> list[dict[str, Any]]:
        queue = f"http://127.0.0.1:{self.port}/{ACCOUNT}/{name}"
        names = {"MessageAttributeNames": ["All"], "AttributeNames": ["All"]}
        found = await self("ReceiveMessage", QueueUrl=queue, MaxNumberOfMessages=10, **names)
        return list(found.get("Messages", ()))


@pytest.fixture(scope="module")
def server() -> Iterator[Sqs]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        running = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
        running.start()
        yield Sqs(running.get_host_and_port()[1])
        running.stop()


@pytest.fixture
async def hosted(api: Api) -> AsyncIterator[Api]:
    async with hosting(api):
        yield api


async def _settled(api: Api, delivery: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def is_tried() -> bool:
        found.update(await api("GET", f"/v1/tenants/acme/deliveries/{delivery}"))
        return bool(found["attempts"])

    await until(is_tried)
    return found


async def test_messages_arrive_in_a_queue_with_their_signature_and_type(hosted: Api, server: Sqs) -> None:
    made = await endpoint_of(hosted, url=await server.queue("orders"), auth=AUTH)
    receipt = await post(hosted, message(id="m1", payload={"n": 1}))
    assert (await _settled(hosted, receipt["deliveries"][0]))["state"] == "delivered"
    [got] = await server.received("orders")
    assert json.loads(got["Body"]) == {"n": 1}
    attributes = {name: each["StringValue"] for name, each in got["MessageAttributes"].items()}
    assert attributes["webhook-id"] == "m1"
    assert attributes["emq-header-event-type"] == "order.paid"
    assert "uthorization" not in str(got)

    from standardwebhooks.webhooks import Webhook

    Webhook(made["secret"]).verify(got["Body"], attributes)


async def test_a_fifo_queue_gets_the_key_as_group_and_the_id_against_doubles(hosted: Api, server: Sqs) -> None:
    await endpoint_of(hosted, url=await server.queue("orders.fifo", FifoQueue="true"), auth=AUTH)
    for id_, key in (("m1", "customer 5"), ("m2", "customer-6"), ("m3", None)):
        receipt = await post(hosted, message(id=id_, key=key))
        assert (await _settled(hosted, receipt["deliveries"][0]))["state"] == "delivered"
    got = {each["Attributes"]["MessageDeduplicationId"]: each for each in await server.received("orders.fifo")}
    assert set(got) == {"m1", "m2", "m3"}
    assert len(got["m1"]["Attributes"]["MessageGroupId"]) == 64
    assert got["m2"]["Attributes"]["MessageGroupId"] == "customer-6"


async def test_a_queue_that_is_not_there_fails_as_an_endpoint_does(hosted: Api, server: Sqs) -> None:
    url = f"sqs+http://127.0.0.1:{server.port}/{ACCOUNT}/none"
    await endpoint_of(hosted, url=url, auth=AUTH, retry_schedule_s=[])
    receipt = await post(hosted, message())
    found = await _settled(hosted, receipt["deliveries"][0])
    assert (found["state"], found["status"]) == ("dead", 400)
    assert "QueueDoesNotExist" in found["reason"] or "NonExistentQueue" in found["reason"]


@pytest.mark.parametrize(
    ("answer", "shown"),
    [((400, '{"__type":"com.amazonaws.sqs#RequestThrottled"}'), 429), ((403, '{"__type":"AccessDenied"}'), 403)],
)
async def test_what_sqs_answers_is_told_in_statuses(hosted: Api, answer: tuple[int, str], shown: int) -> None:
    from aiohttp import web

    receiver = HttpReceiver(lambda _: web.Response(status=answer[0], text=answer[1]))
    async with receiver.running():
        url = f"sqs+http://127.0.0.1:{receiver.port}/{ACCOUNT}/q?region=eu-west-1"
        await endpoint_of(hosted, url=url, auth=AUTH)
        receipt = await post(hosted, message())
        assert (await _settled(hosted, receipt["deliveries"][0]))["status"] == shown
    [asked] = receiver.requests[:1]
    assert "/eu-west-1/sqs/aws4_request" in asked.headers["authorization"]
    assert AUTH["password"] not in str(asked.headers)


async def test_no_credentials_of_this_machine_are_used(hosted: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OPERATOR")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the operator")
    receiver = HttpReceiver(lambda _: 200)
    async with receiver.running():
        await endpoint_of(hosted, url=f"sqs+http://127.0.0.1:{receiver.port}/{ACCOUNT}/q", retry_schedule_s=[])
        receipt = await post(hosted, message())
        found = await _settled(hosted, receipt["deliveries"][0])
    assert (found["status"], found["state"]) == (401, "dead")
    assert receiver.requests == []


@pytest.mark.parametrize("url", ["sqs://10.0.0.1/1/q", "sqs+http://169.254.169.254/1/q", "sqs://localhost/1/q"])
async def test_forbidden_addresses_are_refused_when_they_are_set_and_when_they_are_used(url: str) -> None:
    async with push_api.opened("acme") as api:
        refused = await api("POST", "/v1/tenants/acme/endpoints", {"url": url, "auth": AUTH}, status=422)
        assert refused["code"] == "forbidden_address"
        endpoint = Endpoint.from_topic(Topic("t", 1.0, options=TopicOptions(attributes={"push.url": url})))
        assert endpoint is not None
        found = destinations.kind(endpoint.url.scheme)
        assert found is not None
        queues = found.open(Around(api.app, AddressFilter()))
        basic = base64.b64encode(b"AKID:secret").decode()
        parcel = Parcel("t", endpoint.url, 2.0, 60.0, [Message("m", b"{}")], b"{}", {"Authorization": f"Basic {basic}"})
        with pytest.raises(OSError, match=r"Cannot connect|not allowed") as failed:
            await queues.deliver(parcel)
        assert "is not allowed" in verdict.of_error(failed.value, 2.0).reason  # type: ignore[operator,arg-type]
        await queues.close()


async def test_a_queue_without_tls_is_refused_where_push_needs_tls() -> None:
    async with push_api.opened("acme", push_allow="127.0.0.1", push_https_only=True) as api:
        url = f"sqs+http://127.0.0.1:1/{ACCOUNT}/q"
        refused = await api("POST", "/v1/tenants/acme/endpoints", {"url": url, "auth": AUTH}, status=422)
        assert "push_https_only" in refused["detail"]
        queues = sqs.PLAIN.open(Around(api.app, AddressFilter(["*"], https_only=True)))
        basic = {"Authorization": f"Basic {base64.b64encode(b'AKID:secret').decode()}"}
        with pytest.raises(OSError, match="push_https_only"):
            await queues.deliver(Parcel("t", destinations.url(url), 2.0, 60.0, [Message("m", b"{}")], b"{}", basic))
        await queues.close()


@pytest.mark.parametrize(
    "url",
    [
        "sqs://sqs.eu-west-1.amazonaws.com/q",
        "sqs:queue",
        "sqs://h/1/q?token=x",
        "sqs://user:pw@h/1/q",
        "sqs://h/1/q?region=a/b",
    ],
)
async def test_a_url_that_is_no_queue_is_refused(api: Api, url: str) -> None:
    refused = await api("POST", "/v1/tenants/acme/endpoints", {"url": url, "auth": AUTH}, status=422)
    assert refused["pointer"] == "/url"
    assert "pw" not in refused["detail"]
    assert "token" not in refused["detail"]


def test_the_region_is_that_of_the_host_or_of_the_query() -> None:
    regions = {
        "sqs://sqs.eu-central-1.amazonaws.com/1/q": "eu-central-1",
        "sqs://sqs.us-gov-west-1.amazonaws.com/1/q": "us-gov-west-1",
        "sqs://queue.example/1/q?region=ru-central1": "ru-central1",
        "sqs://queue.example/1/q": "us-east-1",
    }
    for text, region in regions.items():
        assert sqs.region_of(destinations.url(text)) == region


async def test_a_host_without_the_library_gives_back(monkeypatch: pytest.MonkeyPatch, api: Api) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "botocore.auth", None)
    url = destinations.url("sqs://h/1/q")
    of_host = destinations.Destinations(Around(api.app, AddressFilter()))
    with pytest.raises(errors.GiveBack, match="queues of SQS need botocore"):
        await of_host.deliver(Parcel("t", url, 1.0, 60.0, [], b"", {}))
    await asyncio.sleep(0)
