"""Push: endpoints from topics, headers, verdicts, and the pusher against a scripted server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import email.utils
import hmac
import time
from collections.abc import AsyncIterator, Callable, Iterator
from unittest import mock

import pytest
import yarl
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from emq.host.throttles import Throttles
from emq.runtime import errors
from emq.runtime.clock import ManualClock
from emq.storage.message import Message
from emq.topics import model
from emq.trail.sink import NullTrail
from emq_push import headers, signature, verdict
from emq_push.addresses import AddressFilter
from emq_push.endpoint import Endpoint, Endpoints
from emq_push.pusher import Pusher, Reports
from emq_push.wire import BODY_BYTES
from support.served import served

NOW_S = 1_700_000_000.0
ANY = AddressFilter(("*",))
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"


def topic(**attributes: str) -> model.Topic:
    named = {name.replace("__", ".", 1): value for name, value in attributes.items()}
    return model.Topic("tenant-1", 10.0, options=model.TopicOptions(attributes=named))


def with_header(name: str, value: str) -> model.Topic:
    return topic(push__url="http://example.com/", **{f"push.headers.{name}": value})


# ------------------------------------------------------------------------------------------------------------ endpoint


def test_endpoint_reads_the_attributes_of_its_topic() -> None:
    attributes = {"push.headers.Authorization": "Bearer s3cret", "owner": "not ours"}
    endpoint = Endpoint.from_topic(
        topic(
            push__url="https://example.com/hook?a=%2F",
            push__timeout_s="2.5",
            push__content_type="text/csv",
            **attributes,
        )
    )
    assert endpoint is not None
    assert endpoint.topic == "tenant-1"
    assert str(endpoint.url) == "https://example.com/hook?a=%2F"
    assert (endpoint.timeout_s, endpoint.content_type) == (2.5, "text/csv")
    assert endpoint.headers == {"Authorization": "Bearer s3cret"}
    assert endpoint.priorities == ("high", "mid", "low")


def test_a_topic_without_push_attributes_has_no_endpoint() -> None:
    assert Endpoint.from_topic(topic(owner="somebody")) is None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://example.com/",
        "example.com",
        "http://",
        "http:///path",
        "http://example.com:0/",
        "http://example.com:70000/",
        "http://[::1/",
        "http://example.com/a b",
        "http://example.com/\r\nX: 1",
        "http://example.com/" + "x" * 5000,
    ],
)
def test_a_bad_url_is_refused_by_name(url: str) -> None:
    with pytest.raises(errors.InvalidTopic, match=r"topic 'tenant-1': push\.url"):
        Endpoint.from_topic(topic(push__url=url, push__timeout_s="1"))


@pytest.mark.parametrize("url", ["HTTP://Example.com", "https://[::1]:8443/x", "http://bücher.example/ä?q=ö"])
def test_an_unusual_but_valid_url_is_taken(url: str) -> None:
    assert Endpoint.from_topic(topic(push__url=url)) is not None


@pytest.mark.parametrize("timeout_s", ["", "ten", "nan", "inf", "0", "-1", "0.05", "301"])
def test_a_time_out_out_of_range_is_refused_by_value(timeout_s: str) -> None:
    with pytest.raises(errors.InvalidTopic, match=rf"push\.timeout_s '{timeout_s}' must be a number from 0\.1 to 300"):
        Endpoint.from_topic(topic(push__url="http://example.com/", push__timeout_s=timeout_s))


@pytest.mark.parametrize("name", ["Host", "content-length", "Webhook-Id", "EMQ-Topic", "bad name", "", "a\r\nb"])
def test_headers_that_frame_or_forge_a_request_cannot_be_set(name: str) -> None:
    with pytest.raises(errors.InvalidTopic, match=r"push\.headers"):
        Endpoint.from_topic(with_header(name, "x"))


def test_a_header_given_twice_in_different_case_is_refused() -> None:
    twice = {"push.headers.X-Key": "1", "push.headers.x-key": "2"}
    with pytest.raises(errors.InvalidTopic, match="given twice"):
        Endpoint.from_topic(topic(push__url="http://example.com/", **twice))


def test_an_unknown_push_attribute_is_refused_by_name() -> None:
    with pytest.raises(errors.InvalidTopic, match=r"push\.timeout is not known; known are push\.url"):
        Endpoint.from_topic(topic(push__url="http://example.com/", push__timeout="5"))


def test_secrets_appear_neither_in_errors_nor_in_the_repr() -> None:
    with pytest.raises(errors.InvalidTopic) as caught:
        Endpoint.from_topic(with_header("Authorization", "s3cret\n"))
    assert "s3cret" not in str(caught.value)
    with pytest.raises(errors.InvalidTopic) as caught:
        Endpoint.from_topic(topic(push__url="http://me:s3cret@example.com/"))
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in repr(Endpoint.from_topic(with_header("Authorization", "s3cret")))


def test_endpoints_follow_the_catalog() -> None:
    topics = {"tenant-1": topic(push__url="http://example.com/1")}
    endpoints = Endpoints(topics.get)
    first = endpoints("tenant-1")
    assert first is not None
    assert endpoints("tenant-1") is first
    topics["tenant-1"] = topic(push__url="http://example.com/2")
    second = endpoints("tenant-1")
    assert second is not None
    assert second.url.path == "/2"
    topics.clear()
    assert endpoints("tenant-1") is None


# ------------------------------------------------------------------------------------------------------------- headers


def test_headers_carry_the_identity_of_the_delivery() -> None:
    endpoint = Endpoint("t", yarl.URL("http://x/"), ("high", "low"), headers={"X-Key": "k"})
    message = Message("id1", b"{}", priority=1, attempt=3, headers={"trace": "abc"})
    assert headers.of_delivery(endpoint, message, 1_700_000_000) == {
        "Content-Type": "application/json",
        "webhook-id": "id1",
        "webhook-timestamp": "1700000000",
        "emq-topic": "t",
        "emq-attempt": "3",
        "emq-priority": "low",
        "X-Key": "k",
        "emq-header-trace": "abc",
    }


def test_the_content_type_of_the_message_goes_before_that_of_the_endpoint() -> None:
    endpoint = Endpoint("t", yarl.URL("http://x/"), content_type="text/plain")
    own = {"content-type": "application/msgpack", "Content-type": "application/vnd.shop+json; charset=utf-8"}
    for name, value in own.items():
        sent = headers.of_delivery(endpoint, Message("i", b"", headers={name: value}), 0)
        assert sent["Content-Type"] == value
    for odd in ("", "a\r\nX-Injected: b", "ü", " a", "a" * 5000):
        sent = headers.of_delivery(endpoint, Message("i", b"", headers={"content-type": odd}), 0)
        assert sent["Content-Type"] == "text/plain"


@pytest.mark.parametrize(
    ("text", "sent"),
    [("plain: text", "plain: text"), ("ü", "%C3%BC"), ("a\r\nb", "a%0D%0Ab"), ("50%", "50%25"), (" a ", "%20a%20")],
)
def test_what_http_cannot_carry_arrives_percent_encoded(text: str, sent: str) -> None:
    endpoint = Endpoint("t", yarl.URL("http://x/"))
    found = headers.of_delivery(endpoint, Message("i", b"", headers={"k: v\n": text}), 0)
    assert found["emq-header-k%3A%20v%0A"] == sent


# ----------------------------------------------------------------------------------------------------------- signature

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + base64.b64encode(bytes(range(32))).decode()


def test_the_signature_is_that_of_the_specifications_libraries() -> None:
    signed = signature.signature(
        signature.signers(SECRET), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
    )
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("payload", [b"{}", b"", "späße 🎉".encode(), b'{"n":1}' * 10_000])
@pytest.mark.parametrize("id_", ["id1", "schedule.17", "ü 50% id"])
def test_the_reference_library_accepts_what_is_sent(payload: bytes, id_: str) -> None:
    endpoint = signing(f"{SECRET} {OTHER}")
    sent = headers.of_delivery(endpoint, Message(id_, payload), int(time.time()))
    for secret in (SECRET, OTHER):
        Webhook(secret).verify(payload, sent, json_parse=False)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(payload + b" ", sent, json_parse=False)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(payload, sent | {"webhook-id": "another"}, json_parse=False)


def test_a_payload_that_is_no_text_is_signed_as_its_bytes() -> None:
    payload = bytes(range(256))
    sent = headers.of_delivery(signing(OTHER), Message("id1", payload), 1_700_000_000)
    mac = hmac.digest(bytes(range(32)), b"id1.1700000000." + payload, "sha256")
    assert sent["webhook-signature"] == "v1," + base64.b64encode(mac).decode()


def test_an_ed25519_signature_is_checked_with_the_public_key() -> None:
    key = Ed25519PrivateKey.generate()
    seed, public = key.private_bytes_raw(), key.public_key()
    for written in (seed, seed + public.public_bytes_raw()):
        sent = headers.of_delivery(signing("whsk_" + base64.b64encode(written).decode()), Message("i", b"body"), 17)
        version, _, signed = sent["webhook-signature"].partition(",")
        assert version == "v1a"
        public.verify(base64.b64decode(signed), b"i.17.body")


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        ("s3cret", "begins with neither whsec_ nor whsk_"),
        ("whsec_!s3cret!", "is not base64"),
        ("whsec_s3cretä", "push.secret has a secret that is not base64"),
        ("whsec_czNjcmV0", "a secret of 6 bytes; give whsec_ and base64 of 24 to 64"),
        ("whsk_czNjcmV0", "a key of 6 bytes"),
        (" ", "1 to 4 secrets"),
        (f"{SECRET} " * 5, "1 to 4 secrets"),
        (f"{SECRET} whsec_s3cret", "whsec_|base64|bytes"),
    ],
)
def test_a_secret_that_is_none_is_refused_and_not_shown(secret: str, text: str) -> None:
    with pytest.raises(errors.InvalidTopic, match=text) as caught:
        signing(secret)
    assert "s3cret" not in str(caught.value)
    assert "czNjcmV0" not in str(caught.value)


def test_a_secret_does_not_appear_in_the_repr() -> None:
    assert "MfKQ" not in repr(signing(SECRET))


def signing(secret: str) -> Endpoint:
    found = Endpoint.from_topic(topic(push__url="http://example.com/", push__secret=secret))
    assert found is not None
    return found


# ------------------------------------------------------------------------------------------------------------- verdict


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_2xx_is_delivered(status: int) -> None:
    assert verdict.of_response(status, "60", "error", NOW_S) is None


@pytest.mark.parametrize("status", [301, 307, 400, 401, 404, 408, 425, 429, 500, 503, 599])
def test_every_other_answer_is_retried_on_the_topics_schedule(status: int) -> None:
    decision = verdict.of_response(status, None, "", NOW_S)
    assert isinstance(decision, errors.Retry)
    assert (decision.reason, decision.after_s) == (f"HTTP {status}", None)


def test_410_gives_the_message_back() -> None:
    assert isinstance(verdict.of_response(410, "60", "", NOW_S), errors.GiveBack)


@pytest.mark.parametrize(
    ("value", "after_s"),
    [
        ("120", 120.0),
        (" 7 ", 7.0),
        ("0", verdict.MIN_RETRY_AFTER_S),
        ("9" * 5000, verdict.MAX_RETRY_AFTER_S),
        (email.utils.formatdate(NOW_S + 90, usegmt=True), 90.0),
        (email.utils.formatdate(NOW_S - 90, usegmt=True), verdict.MIN_RETRY_AFTER_S),
        ("Fri, 31 Dec 9999 23:59:59 GMT", verdict.MAX_RETRY_AFTER_S),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("", None),
    ],
)
def test_retry_after_is_honoured_within_bounds(value: str, after_s: float | None) -> None:
    assert verdict.retry_after_s(value, NOW_S) == after_s


@pytest.fixture
def far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("far_from_utc")
@pytest.mark.parametrize("form", ["%a, %d %b %Y %H:%M:%S -0000", "%a %b %d %H:%M:%S %Y", "%a, %d %b %Y %H:%M:%S"])
def test_a_date_without_a_zone_is_in_utc_wherever_the_host_is(form: str) -> None:
    assert verdict.retry_after_s(time.strftime(form, time.gmtime(NOW_S + 90)), NOW_S) == 90.0


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"over\n  quota", "HTTP 500: over quota"),
        (b"<html>oops</html>", "HTTP 500"),
        (b"\x1f\x8b\x08\x00", "HTTP 500"),
        ("ünlü".encode()[:-1], "HTTP 500: ünl"),
        (b"x" * 1024, "HTTP 500: " + "x" * 117 + "..."),
    ],
)
def test_the_reason_is_one_short_printable_line(body: bytes, reason: str) -> None:
    decision = verdict.of_response(500, None, verdict.text_of(body), NOW_S)
    assert isinstance(decision, errors.Retry)
    assert decision.reason == reason


# -------------------------------------------------------------------------------------------------------------- pusher


class Server:
    """Answers each request with the next of `answers` (the last repeats); None means no answer."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.connections = 0
        self.asked = asyncio.Event()
        self.hung_up = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                self.requests.append(head + await reader.readexactly(size))
                self.asked.set()
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if answer == b"":
                    break
                if answer:
                    writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.hung_up.set()

    @contextlib.asynccontextmanager
    async def pusher(self, timeout_s: float = 5.0) -> AsyncIterator[Pusher]:
        async with served(self.serve) as port:
            endpoint = Endpoint("t", yarl.URL(f"http://127.0.0.1:{port}/hook%2F"), ("high", "low"), timeout_s)
            async with Pusher({"t": endpoint}.get, clock=ManualClock(NOW_S), addresses=ANY) as pusher:
                yield pusher


def message(**fields: object) -> Message:
    return Message("id1", b'{"n":1}', topic="t", **fields)  # type: ignore[arg-type]


def response(status: str, body: bytes, *extra: str) -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *extra, "", ""])
    return head.encode() + body


async def test_a_delivery_posts_the_payload_and_says_whose_it_is() -> None:
    server = Server(NO_CONTENT)
    async with server.pusher() as push:
        await push(message(attempt=2))
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /hook%2F HTTP/1.1\r\n")
    assert body == b'{"n":1}'
    for line in (b"webhook-id: id1", b"webhook-timestamp: 1700000000", b"emq-attempt: 2", b"emq-priority: high"):
        assert line in head.split(b"\r\n")


async def test_a_delivery_carries_no_header_that_nobody_chose() -> None:
    server = Server(NO_CONTENT)
    async with server.pusher() as push:
        await push(message())
    head = server.requests[0].partition(b"\r\n\r\n")[0]
    names = {line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:]}
    own = {b"webhook-id", b"webhook-timestamp", b"emq-topic", b"emq-attempt", b"emq-priority"}
    assert names == own | {b"host", b"user-agent", b"content-type", b"content-length"}


async def test_an_answer_that_drips_ends_at_the_time_out() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            for byte in NO_CONTENT * 100:
                writer.write(bytes((byte,)))
                await asyncio.sleep(0.02)

    async with served(drip) as port:
        endpoint = Endpoint("t", yarl.URL(f"http://127.0.0.1:{port}/"), ("high", "low"), timeout_s=0.2)
        async with Pusher({"t": endpoint}.get, addresses=ANY) as push:
            with pytest.raises(errors.Retry, match=r"^timeout after 0.2 s$"):
                await push(message())


async def test_deliveries_share_one_connection_whatever_the_status() -> None:
    server = Server(NO_CONTENT, response("200 OK", b"fine"), response("503 Busy", b"later"), NO_CONTENT)
    async with server.pusher() as push:
        await push(message())
        await push(message())
        with pytest.raises(errors.Retry, match=r"^HTTP 503: later$"):
            await push(message())
        await push(message())
    assert server.connections == 1


async def test_a_redirect_is_retried_and_not_followed() -> None:
    server = Server(response("302 Found", b"", "Location: /elsewhere", "Retry-After: 30"))
    async with server.pusher() as push:
        with pytest.raises(errors.Retry, match=r"^HTTP 302$") as caught:
            await push(message())
    assert caught.value.after_s == 30.0
    assert len(server.requests) == 1


async def test_the_message_to_an_endpoint_that_is_gone_waits() -> None:
    async with Server(response("410 Gone", b"")).pusher() as push:
        with pytest.raises(errors.GiveBack, match=r"^HTTP 410$"):
            await push(message())


async def test_a_large_answer_costs_its_connection_not_our_memory() -> None:
    server = Server(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * BODY_BYTES)
    async with server.pusher() as push:
        await push(message())
        await push(message())
    assert server.connections == 2


async def test_a_body_that_breaks_off_does_not_undo_a_success() -> None:
    async with Server(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9\r\n\r\nx", b"").pusher(2.0) as push:
        await push(message())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "^timeout after 0.02 s$"),
        (b"", "^connection closed before an answer$"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "^the answer is not HTTP"),
    ],
)
async def test_no_usable_answer_is_retried_with_a_plain_reason(answer: bytes | None, reason: str) -> None:
    async with Server(answer).pusher(0.02 if answer is None else 2.0) as push:
        with pytest.raises(errors.Retry, match=reason):
            await push(message())


async def test_a_refused_connection_is_retried(unused_tcp_port_factory: Callable[[], int]) -> None:
    endpoint = Endpoint("t", yarl.URL(f"http://127.0.0.1:{unused_tcp_port_factory()}/"))
    async with Pusher({"t": endpoint}.get, addresses=ANY) as push:
        with pytest.raises(errors.Retry, match=r"^connection refused$"):
            await push(message())


async def test_tls_to_a_plain_server_is_retried() -> None:
    async def answer_in_plain_text(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with served(answer_in_plain_text) as port:
        endpoint = Endpoint("t", yarl.URL(f"https://127.0.0.1:{port}/"))
        async with Pusher({"t": endpoint}.get, addresses=ANY) as push:
            with pytest.raises(errors.Retry, match=r"^TLS failed"):
                await push(message())


async def test_a_topic_without_endpoint_is_retried() -> None:
    async with Pusher(lambda name: None) as push:
        with pytest.raises(errors.Retry, match=r"topic 't' has no endpoint; set its attribute push\.url"):
            await push(message())


async def test_cancelling_a_delivery_closes_its_connection() -> None:
    server = Server(None)
    async with server.pusher() as push:
        task = asyncio.create_task(push(message()))
        async with asyncio.timeout(1):
            await server.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(1):
            await server.hung_up.wait()


async def test_a_closed_pusher_says_so() -> None:
    async with Server(NO_CONTENT).pusher() as push:
        await push(message())
        await push.close()
        await push.close()
        with pytest.raises(RuntimeError, match="the pusher is closed"):
            await push(message())


@pytest.mark.parametrize("change", ["none", "url", "off", "gone"])
async def test_an_answer_tells_nothing_about_the_endpoint_that_the_topic_has_by_now(change: str) -> None:
    server, now = Server(response("500 Broken", b"")), ManualClock(NOW_S)
    async with server.pusher() as push:
        endpoint = push._endpoint_of("t")
        assert endpoint is not None
        later = {
            "none": dataclasses.replace(endpoint),
            "url": dataclasses.replace(endpoint, url=yarl.URL("http://127.0.0.1:1/")),
            "off": dataclasses.replace(endpoint, throttles=False),
            "gone": None,
        }[change]
        found = iter([endpoint, later])
        throttles = Throttles({}, mock.Mock(), now, NullTrail())
        async with Pusher(
            lambda _: next(found), clock=now, addresses=ANY, reports=Reports(lambda: throttles)
        ) as pusher:
            with pytest.raises(errors.Retry):
                await pusher(message())
            assert len(pusher._healths) == (change == "none")
