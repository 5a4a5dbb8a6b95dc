"""The API: OAuth 2.0, batches and kinds of signatures of an endpoint, from the request to the delivery."""

from __future__ import annotations

import asyncio
import base64
import datetime
import sys
from collections.abc import Awaitable
from typing import Any

import pytest
from aiohttp import web
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from emq_clients.push import operations
from emq_push.secrets import Secrets
from support import push_api
from support.emq_shell import Shell
from support.http_receiver import HttpReceiver, Request
from support.push_api import Api
from support.push_api_calls import Names, endpoint_of, hosting, message, post
from support.waiting import until

KEY = base64.b64encode(b"k" * 32).decode()
SECRET = "s3:cret"


api = push_api.fixture("acme", push_allow="127.0.0.1", secret_key=KEY)


@pytest.fixture
def receiver(receiver: HttpReceiver) -> HttpReceiver:
    """An endpoint that takes everything, and the server of its tokens."""

    def answer(request: Request) -> web.Response | int:
        if request.path == "/token":
            return web.json_response({"access_token": "t0ken", "expires_in": 3600})
        return 204

    receiver.answers = answer
    return receiver


def path_of(made: Any) -> str:
    return f"/v1/tenants/acme/endpoints/{made['id']}"


async def attributes_of(api: Api, made: Any) -> dict[str, str]:
    return (await api.app.catalog.get(f"acme.{made['id']}")).options.attributes


def deliveries(receiver: HttpReceiver) -> list[Request]:
    return [request for request in receiver.requests if request.path == "/hook"]


async def brought(receiver: HttpReceiver, sending: Awaitable[Any]) -> Request:
    count = len(deliveries(receiver))
    await sending
    await until(lambda: len(deliveries(receiver)) > count)
    return deliveries(receiver)[-1]


async def delivered(api: Api, receiver: HttpReceiver) -> Request:
    """Publish a message; return the request that brings it."""
    return await brought(receiver, post(api, message()))


async def exampled(api: Api, receiver: HttpReceiver, made: Any) -> Request:
    """Send an example; return the request that brings it."""
    return await brought(receiver, api("POST", f"{path_of(made)}:send-example"))


# ------------------------------------------------------------------------------------------------------------- OAuth 2


def oauth2(receiver: HttpReceiver, **more: str) -> dict[str, str]:
    return {
        "type": "oauth2",
        "token_url": receiver.url("/token"),
        "client_id": "a b",
        "client_secret": SECRET,
        **more,
    }


async def test_a_host_delivers_with_a_token(api: Api, receiver: HttpReceiver) -> None:
    url = receiver.url("/hook")
    async with hosting(api):
        made = await endpoint_of(api, url=url, auth=oauth2(receiver, scope="x y"))
        request = await delivered(api, receiver)
        example = await exampled(api, receiver, made)
    assert made["auth"] == "oauth2"
    assert request.headers["authorization"] == example.headers["authorization"] == "Bearer t0ken"
    [asked, *_] = [each for each in receiver.requests if each.path == "/token"]
    account = base64.b64decode(asked.headers["authorization"].removeprefix("Basic ")).decode()
    assert account == "a+b:s3%3Acret"
    assert asked.body == b"grant_type=client_credentials&scope=x+y"


async def test_the_client_secret_is_kept_encrypted_and_shown_nowhere(
    api: Api, receiver: HttpReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    made = await endpoint_of(api, auth=oauth2(receiver))
    changed = await api("PATCH", path_of(made), {"auth": oauth2(receiver)})
    kept = await attributes_of(api, made)
    assert kept["push.oauth2.secret"].startswith("enc:v1:")
    assert (kept["push.oauth2.client_id"], "push.oauth2.scope" in kept) == ("a b", False)
    log = (await api("GET", "/v1/tenants/acme/audit-log"))["data"]
    assert [entry["changes"].get("auth") for entry in log if entry["target"] == made["id"]] == ["oauth2", "oauth2"]
    listed = await api("GET", "/v1/tenants/acme/endpoints")
    for text in (made, changed, listed, log, kept, caplog.text):
        assert SECRET not in str(text)


async def test_another_type_of_authentication_leaves_nothing_of_the_one_before(
    api: Api, receiver: HttpReceiver
) -> None:
    made = await endpoint_of(api, headers={"X-One": "1"})
    path, plain = path_of(made), await attributes_of(api, made)
    basic = {"type": "basic", "username": "me", "password": "s3cret"}
    kinds = [oauth2(receiver, scope="x"), basic, oauth2(receiver), {"type": "bearer", "token": "t"}, {"type": "none"}]
    found = []
    for auth in kinds:
        assert (await api("PATCH", path, {"auth": auth}))["auth"] == auth["type"]
        found.append(sorted((await attributes_of(api, made)).keys() - plain.keys()))
    of_oauth2 = ["push.oauth2.client_id", "push.oauth2.secret", "push.oauth2.url"]
    of_header = ["push-auth", "push.headers.Authorization"]
    assert found == [sorted([*of_oauth2, "push.oauth2.scope"]), of_header, of_oauth2, of_header, []]


async def test_what_an_operator_set_by_hand_stays_until_a_request_gives_the_field(
    api: Api, receiver: HttpReceiver
) -> None:
    made = await endpoint_of(api)
    by_hand = {
        "push.oauth2.url": "https://93.184.216.34/token",
        "push.oauth2.client_id": "hand",
        "push.oauth2.secret": "s3cret",
        "push.batch": "50",
        "push.tls.ca": "",
    }
    await api.app.catalog.set_attributes(f"acme.{made['id']}", by_hand, {})
    by_hand.pop("push.tls.ca")
    changed = await api("PATCH", path_of(made), {"description": "new"})
    assert (await attributes_of(api, made)).items() >= by_hand.items()
    assert (changed["auth"], changed["batch"]) == ("oauth2", {"most": 50, "wait_s": 0.1, "format": "json"})
    assert (await api("GET", path_of(made)))["auth"] == "oauth2"
    changed = await api("PATCH", path_of(made), {"auth": {"type": "none"}, "batch": None})
    assert (changed["auth"], changed["batch"]) == ("none", None)
    assert not (await attributes_of(api, made)).keys() & by_hand.keys()
    await api.app.catalog.set_attributes(f"acme.{made['id']}", {"push.basic": "me:s3cret"}, {})
    assert (await api("GET", path_of(made)))["auth"] == "basic"
    await api("PATCH", path_of(made), {"auth": {"type": "bearer", "token": "t"}})
    assert "push.basic" not in await attributes_of(api, made)


async def test_credentials_in_a_url_are_refused_with_the_place_where_they_belong(api: Api) -> None:
    url = "https://me:s3cret@93.184.216.34/"
    auth = {"type": "oauth2", "token_url": url, "client_id": "me", "client_secret": SECRET}
    wrong = [{"url": url}, {"url": "https://93.184.216.34/", "auth": auth}]
    problems = [await api("POST", "/v1/tenants/acme/endpoints", body, status=422) for body in wrong]
    assert [problem["detail"] for problem in problems] == [
        "url must not contain a user or password; use auth",
        "token_url must not contain a user or password; use client_id and client_secret",
    ]


async def test_what_emq_has_encrypted_is_not_decrypted_for_another_endpoint(api: Api) -> None:
    found = Secrets.of_setting(api.app.settings).encrypt("of somebody else")
    assert found.startswith("enc:v1:")
    oauth2 = {"type": "oauth2", "token_url": "https://93.184.216.34/", "client_id": "me", "client_secret": found}
    for field, value, pointer in (
        ("headers", {"X-Key": found}, "/headers/X-Key"),
        ("auth", {"type": "header", "name": "X-Key", "value": found}, "/auth"),
        ("auth", oauth2, "/auth/client_secret"),
        ("secret", found, "/secret"),
    ):
        body = {"url": "https://93.184.216.34/", field: value}
        problem = await api("POST", "/v1/tenants/acme/endpoints", body, status=422)
        assert problem["pointer"] == pointer
    bearer = {"type": "bearer", "token": found}
    made = await endpoint_of(api, auth=bearer)
    assert "of somebody else" not in str(
        Secrets.of_setting(api.app.settings).decrypt((await attributes_of(api, made))["push.headers.Authorization"])
    )


async def test_a_token_server_that_is_inside_is_refused_at_a_change_too(
    api: Api, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.service._reach, "_resolver", Names(inside="10.0.0.1"))
    made = await endpoint_of(api)
    before = await attributes_of(api, made)
    body = {"auth": oauth2(receiver, token_url="https://inside.example/token")}
    problem = await api("PATCH", path_of(made), body, status=422)
    assert (problem["code"], problem["pointer"]) == ("forbidden_address", "/auth/token_url")
    assert problem["detail"].startswith("token_url: inside.example leads to the private address 10.0.0.1")
    assert await attributes_of(api, made) == before
    changed = await api("PATCH", path_of(made), {"auth": oauth2(receiver, token_url="https://nowhere.example/")})
    assert changed["warnings"] == ["nowhere.example has no address now; deliveries are retried until it has one"]


# ------------------------------------------------------------------------------------------------------------- batches


async def test_a_batch_is_shown_changed_and_ended(api: Api, receiver: HttpReceiver) -> None:
    made = await endpoint_of(api, url=receiver.url("/hook"))
    assert (made["batch"], "push.batch" in await attributes_of(api, made)) == (None, False)
    batch = {"most": 1000, "wait_s": 0.0125, "format": "lines"}
    assert (await api("PATCH", path_of(made), {"batch": batch}))["batch"] == batch
    kept = await attributes_of(api, made)
    assert [kept[f"push.batch{end}"] for end in ("", "_ms", "_format")] == ["1000", "12.5", "lines"]
    assert (await api("PATCH", path_of(made), {"qps": 50}))["batch"] == batch
    [shown] = (await api("GET", "/v1/tenants/acme/endpoints"))["data"]
    assert shown["batch"] == batch
    async with hosting(api):
        request = await delivered(api, receiver)
        assert request.headers["content-type"] == "application/x-ndjson"
        assert (await api("PATCH", path_of(made), {"batch": None}))["batch"] is None
        assert not [name for name in await attributes_of(api, made) if name.startswith("push.batch")]

        async def comes_alone() -> bool:  # hosts follow within a second
            return "emq-batch" not in (await delivered(api, receiver)).headers

        await until(comes_alone, step_s=0.1)
    log = (await api("GET", "/v1/tenants/acme/audit-log"))["data"]
    of_batches = [entry["changes"] for entry in log if entry["action"] == "endpoint.changed"]
    assert of_batches == [{"batch": None}, {"qps": 50}, {"batch": batch}]


# ---------------------------------------------------------------------------------------------------------- signatures


def verify_ed25519(public_key: str, request: Request) -> None:
    """Check a signature as the specification of Standard Webhooks says. Raises `InvalidSignature`."""
    assert public_key.startswith("whpk_")
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public_key.removeprefix("whpk_")))
    given = [each.split(",") for each in request.headers["webhook-signature"].split()]
    [signature] = [base64.b64decode(text) for version, text in given if version == "v1a"]
    head = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}."
    key.verify(signature, head.encode() + request.body)


async def test_deliveries_verify_with_the_public_key_that_the_answer_gives(api: Api, receiver: HttpReceiver) -> None:
    async with hosting(api):
        made = await endpoint_of(api, url=receiver.url("/hook"), signature="ed25519")
        assert (made["signature"], made["secret"]) == ("ed25519", None)
        first = await delivered(api, receiver)
        verify_ed25519(made["public_key"], first)
        assert (await api("GET", path_of(made)))["public_key"] == made["public_key"]
    assert (await api("POST", f"{path_of(made)}:rotate-secret", {"overlap_s": 3600}))["old_secret_until"] is not None
    rotated = await api("POST", f"{path_of(made)}:rotate-secret", {"overlap_s": 0})
    assert (rotated["signature"], rotated["secret"]) == ("ed25519", None)
    assert rotated["public_key"] != made["public_key"]
    async with hosting(api):
        second = await exampled(api, receiver, made)
    verify_ed25519(rotated["public_key"], second)
    with pytest.raises(InvalidSignature):
        verify_ed25519(made["public_key"], second)
    assert (await attributes_of(api, made))["push.secret"].startswith("enc:v1:")
    log = str((await api("GET", "/v1/tenants/acme/audit-log"))["data"])
    assert "ed25519" in log
    assert "whsk_" not in log


async def test_another_kind_of_signature_rotates_and_both_verify_for_a_day(api: Api, receiver: HttpReceiver) -> None:
    made = await endpoint_of(api, url=receiver.url("/hook"))
    assert (made["signature"], made["public_key"]) == ("hmac", None)
    changed = await api("PATCH", path_of(made), {"signature": "ed25519", "description": "new"})
    assert (changed["signature"], changed["secret"]) == ("ed25519", None)
    left = datetime.datetime.fromisoformat(changed["old_secret_until"]) - datetime.datetime.now(datetime.UTC)
    assert 86_000 < left.total_seconds() <= 86_400
    async with hosting(api):
        request = await exampled(api, receiver, made)
    verify_ed25519(changed["public_key"], request)
    Webhook(made["secret"]).verify(request.body, request.headers)

    same = await api("PATCH", path_of(made), {"signature": "ed25519"})
    assert (same["public_key"], same["old_secret_until"]) == (changed["public_key"], changed["old_secret_until"])

    back = await api("PATCH", path_of(made), {"signature": "hmac"})
    assert (back["signature"], back["public_key"]) == ("hmac", None)
    assert back["secret"] != made["secret"]
    async with hosting(api):
        request = await exampled(api, receiver, made)
    verify_ed25519(changed["public_key"], request)
    Webhook(back["secret"]).verify(request.body, request.headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(made["secret"]).verify(request.body, request.headers)
    assert "secret" not in await api("GET", path_of(made))


async def test_changes_at_once_make_one_pair(api: Api) -> None:
    made = await endpoint_of(api)
    change = {"signature": "ed25519"}
    answers = await asyncio.gather(*[api("PATCH", path_of(made), change) for _ in range(4)])
    assert len({answer["public_key"] for answer in answers}) == 1
    back = await asyncio.gather(*[api("PATCH", path_of(made), {"signature": "hmac"}) for _ in range(4)])
    assert sum(answer["secret"] is not None for answer in back) == 1, "only the secret that counts is given"
    kept = Secrets([b"k" * 32]).decrypt((await attributes_of(api, made))["push.secret"]).split()
    assert kept[0] in [answer["secret"] for answer in back]
    assert len(kept) == 2


async def test_a_pair_that_an_operator_set_by_hand_is_shown_and_stays(api: Api) -> None:
    made = await endpoint_of(api)
    seed = "whsk_" + base64.b64encode(bytes(range(32))).decode()
    await api.app.catalog.set_attributes(f"acme.{made['id']}", {"push.secret": seed}, {})
    public = Ed25519PrivateKey.from_private_bytes(bytes(range(32))).public_key().public_bytes_raw()
    shown = await api("PATCH", path_of(made), {"description": "new"})
    assert (shown["signature"], shown["public_key"]) == ("ed25519", "whpk_" + base64.b64encode(public).decode())
    assert shown["secret"] is None


async def test_a_service_without_the_key_of_a_secret_says_that_it_does_not_know(api: Api) -> None:
    made = await endpoint_of(api, signature="ed25519")
    api.service.parts.secrets = Secrets()
    shown = await api("GET", path_of(made))
    assert (shown["signature"], shown["public_key"]) == (None, None)


async def test_without_its_package_ed25519_is_refused_by_its_place(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await endpoint_of(api)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    for method, path in (("POST", "/v1/tenants/acme/endpoints"), ("PATCH", path_of(made))):
        body = {"url": "https://93.184.216.34/hook", "signature": "ed25519"}
        problem = await api(method, path, body, status=422)
        assert problem["pointer"] == "/signature"
        assert problem["detail"].startswith("this service lacks the package for ed25519; use hmac")


# ------------------------------------------------------------------------------------- from a terminal and from Python


def test_the_command_line_creates_such_endpoints(emq: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMQ_PUSH_ALLOW", "*")
    emq("push tenant acme --qps 5")
    made = emq.json("push endpoint acme http://127.0.0.1:9/ --batch 20 --signature ed25519")
    assert made["secret"] is None
    assert made["public_key"].startswith("whpk_")
    assert emq("push endpoint acme http://127.0.0.1:9/ --signature ed25519").split()[1].startswith("whpk_")
    assert emq("push endpoint acme http://127.0.0.1:9/").split()[1].startswith("whsec_")
    shown = emq.json(f"topic show acme.{made['id']}")
    assert shown["options"]["attributes"]["push.batch"] == "20"
    assert "--batch" in emq.refused("push endpoint acme http://127.0.0.1:9/ --batch 1001", code=2)


def test_a_change_that_makes_a_secret_is_made_once() -> None:
    assert not operations.change_endpoint("acme", "ep", qps=None).headers
    assert "Idempotency-Key" in operations.change_endpoint("acme", "ep", signature="hmac").headers


@pytest.mark.parametrize("name", ["\\ud800", "\\u00e9", "x" * 10_000], ids=["half a pair", "not ASCII", "long"])
async def test_a_header_that_cannot_be_one_is_not_removed_either(api: Api, name: str) -> None:
    made = await endpoint_of(api)
    path, headers = f"/v1/tenants/acme/endpoints/{made['id']}", {"Content-Type": "application/merge-patch+json"}
    answer = await api.raw("PATCH", path, content=f'{{"headers": {{"{name}": null}}}}'.encode(), headers=headers)
    assert (answer.status_code, answer.json()["pointer"]) == (422, "/headers")
