"""Push: endpoints from topics, headers, verdicts, and what a pusher sends."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import email.utils
import hmac
import time
from collections.abc import Callable, Iterator
from unittest import mock

import aiohttp
import pytest
import yarl
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from emq.host.throttles import Throttles
from emq.runtime import errors
from emq.storage.message import Message
from emq.topics import model
from emq.trail.sink import NullTrail
from emq_push import headers, signature, verdict
from emq_push.endpoint import Endpoint, Endpoints
from emq_push.pusher import Pusher, Reports
from emq_push.wire import NotHTTP
from support.http_receiver import HttpReceiver
from support.manual_clock import ManualClock
from support.pushing import ANY, SECRET, deliver, endpoint, message, topic
from support.served import served

NOW_S = 1_700_000_000.0
OTHER = "whsec_" + base64.b64encode(bytes(range(32))).decode()

# ------------------------------------------------------------------------------------------------------------ endpoint


def test_endpoint_reads_the_attributes_of_its_topic() -> None:
    given = {"timeout_s": "2.5", "content_type": "text/csv", "headers__Authorization": "Bearer s3cret"}
    found = endpoint("https://example.com/hook?a=%2F", **given)
    assert found.topic == "t"
    assert str(found.url) == "https://example.com/hook?a=%2F"
    assert (found.timeout_s, found.content_type) == (2.5, "text/csv")
    assert found.headers == {"Authorization": "Bearer s3cret"}
    assert found.priorities == ("high", "mid", "low")
    assert "s3cret" not in repr(found)
    not_ours = model.TopicOptions(attributes={"owner": "somebody"})
    assert Endpoint.from_topic(model.Topic("t", 10.0, options=not_ours)) is None


@pytest.mark.parametrize(
    "url",
    [
        *("HTTP://Example.com", "https://[::1]:8443/x", "http://bücher.example/ä?q=ö", "http://a/"),
        *("http://A_b.test./", "http://münchen.test/", "http://xn--mnchen-3ya.test/", "http://8.8.8.8/"),
        "http://[2606::1]/",
    ],
)
def test_an_unusual_but_valid_url_is_taken(url: str) -> None:
    assert endpoint(url).url.host


OAUTH2 = {"oauth2.url": "http://a/", "oauth2.client_id": "a", "oauth2.secret": "s3cret"}
WRONG: dict[str, list[dict[str, str]]] = {
    r"topic 't': push\.url": [
        *({"url": url, "timeout_s": "1"} for url in ("", "ftp://example.com/", "example.com", "http://")),
        *({"url": f"http://{rest}"} for rest in ("/path", "example.com:0/", "example.com:70000/", "[::1/")),
        *({"url": f"http://example.com/{path}"} for path in ("a b", "\r\nX: 1", "x" * 5000)),
        *({"url": f"{start}u:s3cret@a{end}"} for start, end in (("http://", ":99999/"), ("ftp://", "/"), ("", " b"))),
        *({"url": url} for url in ("http://u:s3cret@[::1", "http://me:s3cret@example.com/")),
    ],
    r"push\.url 'http://\S+/' is not a URL: its host is not a domain name": [
        *({"url": f"http://{host}/"} for host in ("xn--a", "loc%61lhost", "a..b", "-a.test")),
        *({"url": f"http://{host}/"} for host in ("a" * 64 + ".test", "ab." * 90 + "test")),
    ],
    r"push\.timeout_s '\S*' must be a number from 0\.1 to 300": [
        {"timeout_s": value} for value in ("", "ten", "nan", "inf", "0", "-1", "0.05", "301")
    ],
    r"push\.headers": [
        *({f"headers.{name}": "x"} for name in ("Host", "content-length", "Webhook-Id", "EMQ-Topic")),
        *({f"headers.{name}": "x"} for name in ("bad name", "", "a\r\nb")),
        {"headers.Authorization": "s3cret\n"},
    ],
    "given twice": [{"headers.X-Key": "1", "headers.x-key": "2"}],
    r"push\.timeout is not known; known are push\.url": [{"timeout": "5"}],
    "begins with neither whsec_ nor whsk_": [{"secret": "s3cret"}],
    r"push\.secret .*is not base64": [{"secret": "whsec_!s3cret!"}, {"secret": "whsec_s3cretä"}],
    "a secret of 6 bytes; give whsec_ and base64 of 24 to 64": [{"secret": "whsec_czNjcmV0"}],
    "a key of 6 bytes": [{"secret": "whsk_czNjcmV0"}],
    "1 to 4 secrets": [{"secret": " "}, {"secret": f"{SECRET} " * 5}],
    "whsec_|base64|bytes": [{"secret": f"{SECRET} whsec_s3cret"}],
    r"push\.basic must be user:password": [{"basic": text} for text in ("s3cret", ":s3cret", "a:s3cret\n")],
    r"push\.basic and push\.headers\.authorization give": [{"basic": "a:s3cret", "headers.authorization": "s3cret"}],
    "twice": [{"basic": "a:s3cret", **OAUTH2}],
    "go together; give all": [{"oauth2.url": "http://a/", "oauth2.secret": "s3cret"}],
    r"push\.oauth2\.url 'a' must start": [OAUTH2 | {"oauth2.url": "a"}],
    r"push\.tls\.cert and push\.tls\.key go together": [{"tls.cert": "s3cret"}],
    r"push\.tls\.cert and push\.tls\.key must be a certificate and its key in PEM": [
        {"tls.cert": "s3cret", "tls.key": "s3cret"}
    ],
    r"push\.tls\.ca is not a certificate": [{"tls.ca": "s3cret"}],
    r"push\.batch ": [{"batch": value} for value in ("0", "1.5", "1001")],
    r"push\.batch_ms": [{"batch_ms": "-1"}],
    r"push\.batch_format": [{"batch_format": "xml"}],
}


@pytest.mark.parametrize(("text", "wrong"), [(text, wrong) for text, several in WRONG.items() for wrong in several])
def test_an_attribute_out_of_range_is_refused_by_name_and_no_secret_is_shown(text: str, wrong: dict[str, str]) -> None:
    with pytest.raises(errors.InvalidTopic, match=text) as caught:
        endpoint(**wrong)
    assert "s3cret" not in str(caught.value)
    assert "czNjcmV0" not in str(caught.value)


def test_endpoints_follow_the_catalog() -> None:
    topics = {"t": topic(url="http://example.com/1")}
    endpoints = Endpoints(topics.get)
    first = endpoints("t")
    assert first is not None
    assert endpoints("t") is first
    topics["t"] = topic(url="http://example.com/2")
    second = endpoints("t")
    assert second is not None
    assert second.url.path == "/2"
    topics.clear()
    assert endpoints("t") is None


# ------------------------------------------------------------------------------------------------------------- headers


def test_headers_carry_the_identity_of_the_delivery() -> None:
    to = Endpoint("t", yarl.URL("http://x/"), ("high", "low"), headers={"X-Key": "k"})
    sent = headers.of_delivery(to, message(priority=1, attempt=3, headers={"trace": "abc"}), 1_700_000_000)
    assert sent == {
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
    to = Endpoint("t", yarl.URL("http://x/"), content_type="text/plain")
    own = {"content-type": "application/msgpack", "Content-type": "application/vnd.shop+json; charset=utf-8"}
    for name, value in own.items():
        sent = headers.of_delivery(to, Message("i", b"", headers={name: value}), 0)
        assert sent["Content-Type"] == value
    for odd in ("", "a\r\nX-Injected: b", "ü", " a", "a" * 5000):
        sent = headers.of_delivery(to, Message("i", b"", headers={"content-type": odd}), 0)
        assert sent["Content-Type"] == "text/plain"


@pytest.mark.parametrize(
    ("text", "sent"),
    [("plain: text", "plain: text"), ("ü", "%C3%BC"), ("a\r\nb", "a%0D%0Ab"), ("50%", "50%25"), (" a ", "%20a%20")],
)
def test_what_http_cannot_carry_arrives_percent_encoded(text: str, sent: str) -> None:
    found = headers.of_delivery(endpoint(), Message("i", b"", headers={"k: v\n": text}), 0)
    assert found["emq-header-k%3A%20v%0A"] == sent


# ----------------------------------------------------------------------------------------------------------- signature
def test_the_signature_is_that_of_the_specifications_libraries() -> None:
    signed = signature.signature(
        signature.signers(SECRET), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
    )
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("payload", [b"{}", b"", "späße 🎉".encode(), b'{"n":1}' * 10_000])
@pytest.mark.parametrize("id_", ["id1", "schedule.17", "ü 50% id"])
def test_the_reference_library_accepts_what_is_sent(payload: bytes, id_: str) -> None:
    to = endpoint(secret=f"{SECRET} {OTHER}")
    assert "MfKQ" not in repr(to)
    sent = headers.of_delivery(to, Message(id_, payload), int(time.time()))
    for secret in (SECRET, OTHER):
        Webhook(secret).verify(payload, sent, json_parse=False)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(payload + b" ", sent, json_parse=False)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(payload, sent | {"webhook-id": "another"}, json_parse=False)


def test_a_payload_that_is_no_text_is_signed_as_its_bytes() -> None:
    payload = bytes(range(256))
    sent = headers.of_delivery(endpoint(secret=OTHER), Message("id1", payload), 1_700_000_000)
    mac = hmac.digest(bytes(range(32)), b"id1.1700000000." + payload, "sha256")
    assert sent["webhook-signature"] == "v1," + base64.b64encode(mac).decode()


def test_an_ed25519_signature_is_checked_with_the_public_key() -> None:
    key = Ed25519PrivateKey.generate()
    seed, public = key.private_bytes_raw(), key.public_key()
    for written in (seed, seed + public.public_bytes_raw()):
        to = endpoint(secret="whsk_" + base64.b64encode(written).decode())
        sent = headers.of_delivery(to, Message("i", b"body"), 17)
        version, _, signed = sent["webhook-signature"].partition(",")
        assert version == "v1a"
        public.verify(base64.b64decode(signed), b"i.17.body")


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


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TimeoutError(), "timeout after 0.02 s"),
        (aiohttp.ServerDisconnectedError(), "connection closed before an answer"),
        (NotHTTP("SSH-2.0"), "the answer is not HTTP: SSH-2.0"),
    ],
)
def test_no_usable_answer_is_retried_with_a_plain_reason(error: Exception, reason: str) -> None:
    decision = verdict.of_error(error, 0.02)
    assert isinstance(decision, errors.Retry)
    assert decision.reason == reason


# -------------------------------------------------------------------------------------------------------------- pusher


async def test_a_delivery_posts_the_payload_and_no_header_that_nobody_chose(receiver: HttpReceiver) -> None:
    await deliver(endpoint(receiver.url("/hook%2F")), message(payload=b'{"n":1}', attempt=2), clock=ManualClock(NOW_S))
    [request] = receiver.requests
    assert (request.method, request.path, request.body) == ("POST", "/hook%2F", b'{"n":1}')
    own = {"webhook-id": "id1", "webhook-timestamp": "1700000000", "emq-attempt": "2", "emq-priority": "high"}
    assert request.headers.items() >= own.items()
    assert request.headers.keys() == {*own, "emq-topic", "host", "user-agent", "content-type", "content-length"}


async def test_a_redirect_is_retried_and_not_followed(receiver: HttpReceiver) -> None:
    receiver.answers = lambda _: web.Response(status=302, headers={"Location": "/elsewhere", "Retry-After": "30"})
    [failure] = await deliver(endpoint(receiver.url()))
    assert isinstance(failure, errors.Retry)
    assert (failure.reason, failure.after_s) == ("HTTP 302", 30.0)
    assert len(receiver.requests) == 1


async def test_a_refused_connection_is_retried(unused_tcp_port_factory: Callable[[], int]) -> None:
    [failure] = await deliver(endpoint(f"http://127.0.0.1:{unused_tcp_port_factory()}/"))
    assert isinstance(failure, errors.Retry)
    assert failure.reason == "connection refused"


async def test_tls_to_a_plain_server_is_retried() -> None:
    async def answer_in_plain_text(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with served(answer_in_plain_text) as port:
        [failure] = await deliver(endpoint(f"https://127.0.0.1:{port}/"))
    assert isinstance(failure, errors.Retry)
    assert failure.reason.startswith("TLS failed")


async def test_a_topic_without_endpoint_is_retried() -> None:
    async with Pusher(lambda name: None) as push:
        with pytest.raises(errors.Retry, match=r"topic 't' has no endpoint; set its attribute push\.url"):
            await push(message())


@pytest.mark.parametrize("change", ["none", "url", "off", "gone"])
async def test_an_answer_tells_nothing_about_the_endpoint_that_the_topic_has_by_now(
    change: str, receiver: HttpReceiver
) -> None:
    receiver.answers = lambda _: 500
    former = endpoint(receiver.url())
    later = {
        "none": dataclasses.replace(former),
        "url": dataclasses.replace(former, url=yarl.URL("http://127.0.0.1:1/")),
        "off": dataclasses.replace(former, throttles=False),
        "gone": None,
    }[change]
    found, now = iter([former, later]), ManualClock(NOW_S)
    throttles = Throttles({}, mock.Mock(), now, NullTrail())
    reports = Reports(lambda: throttles)
    async with Pusher(lambda _: next(found), clock=now, addresses=ANY, reports=reports) as pusher:
        with pytest.raises(errors.Retry):
            await pusher(message())
        assert len(pusher._healths) == (change == "none")
