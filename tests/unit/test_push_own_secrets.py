"""Secrets and styles of one's own over the push API: at the start, in changes, and by rotation."""

from __future__ import annotations

import json

import pytest
import svix.webhooks
from standardwebhooks.webhooks import WebhookVerificationError

from emq_clients.push import operations
from emq_push import signature
from support import push_api
from support.http_receiver import HttpReceiver
from support.push_api import Api
from support.push_api_calls import delivered, hosting
from support.waiting import until

SECRET, OTHER = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
OWN = "Vuk5LM0uujddIsqO5v_eSuz88"

api = push_api.fixture("acme", push_allow="127.0.0.1")


async def test_an_endpoint_takes_the_secret_and_the_style_of_its_receiver(api: Api, receiver: HttpReceiver) -> None:
    path = "/v1/tenants/acme/endpoints"
    body = {"url": receiver.url("/hook"), "secret": SECRET, "signing": "svix"}
    made = await api("POST", path, body, status=201)
    assert (made["secret"], made["signing"], made["signature"]) == (None, "svix", "hmac")
    changed = await api("PATCH", f"{path}/{made['id']}", {"secret": OTHER})
    assert (changed["secret"], changed["old_secret_until"] is not None) == (None, True)
    async with hosting(api):
        request = await delivered(api, receiver, "acme")
        for secret in (SECRET, OTHER):
            svix.webhooks.Webhook(secret).verify(request.body, dict(request.headers))
        rotated = await api("POST", f"{path}/{made['id']}:rotate-secret", {"secret": SECRET, "overlap_s": 0})
        assert (rotated["secret"], rotated["old_secret_until"]) == (None, None)

        async def has_one() -> bool:
            return len((await delivered(api, receiver, "acme")).headers["svix-signature"].split()) == 1

        await until(has_one, step_s=0.1)
        request = receiver.requests[-1]
    svix.webhooks.Webhook(SECRET).verify(request.body, dict(request.headers))
    with pytest.raises(WebhookVerificationError):
        svix.webhooks.Webhook(OTHER).verify(request.body, dict(request.headers))
    log = json.dumps((await api("GET", "/v1/tenants/acme/audit-log"))["data"])
    assert '"secret": "given"' in log
    assert "whsec_" not in log


async def test_the_same_secret_again_changes_nothing_and_ends_no_overlap(api: Api) -> None:
    path = "/v1/tenants/acme/endpoints"
    made = await api("POST", path, {"url": "https://93.184.216.34/", "secret": SECRET}, status=201)
    first = await api("PATCH", f"{path}/{made['id']}", {"secret": OTHER})
    again = await api("PATCH", f"{path}/{made['id']}", {"secret": OTHER})
    assert again["old_secret_until"] == first["old_secret_until"]
    assert not operations.change_endpoint("acme", "ep", secret=OTHER).headers
    assert "Idempotency-Key" in operations.rotate_secret("acme", "ep", secret=OTHER).headers


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"secret": OWN}, "/secret"),
        ({"secret": f"{SECRET} {OTHER}"}, "/secret"),
        ({"secret": SECRET, "signature": "ed25519"}, "/secret"),
        ({"secret": "x" * 600, "signing": "stripe"}, "/secret"),
        ({"secret": "enc:v1:0123abcd:AAAA", "signing": "stripe"}, "/secret"),
        ({"secret": f"{OWN}\x00", "signing": "stripe"}, "/secret"),
        ({"signing": "paypal"}, "/signing"),
        ({"signing": "X-A: {hex} of {timestamp}"}, "/signing"),
    ],
)
async def test_a_wrong_secret_or_style_is_refused_where_it_stands(api: Api, body: dict[str, str], pointer: str) -> None:
    url = {"url": "https://93.184.216.34/"}
    problem = await api("POST", "/v1/tenants/acme/endpoints", {**url, **body}, status=422)
    assert problem["pointer"] == pointer
    assert OWN not in json.dumps(problem)
    made = await api("POST", "/v1/tenants/acme/endpoints", url, status=201)
    problem = await api("PATCH", f"/v1/tenants/acme/endpoints/{made['id']}", body, status=422)
    assert problem["pointer"] == pointer


async def test_a_rotation_to_the_same_secret_ends_the_old_one_if_asked_to(api: Api) -> None:
    path = "/v1/tenants/acme/endpoints"
    made = await api("POST", path, {"url": "https://93.184.216.34/", "secret": SECRET}, status=201)
    await api("PATCH", f"{path}/{made['id']}", {"secret": OTHER})
    again = await api("POST", f"{path}/{made['id']}:rotate-secret", {"secret": OTHER, "overlap_s": 3600})
    assert again["old_secret_until"] is not None
    ended = await api("POST", f"{path}/{made['id']}:rotate-secret", {"secret": OTHER, "overlap_s": 0})
    assert ended["old_secret_until"] is None
    topic = await api.app.catalog.get(f"acme.{made['id']}")
    assert topic.options.attributes["push.secret"] == OTHER


@pytest.mark.parametrize("space", ["\x1c", "\x1f", "\x85", "\u2003"])
async def test_a_rotation_takes_one_secret_alone(api: Api, space: str) -> None:
    path = "/v1/tenants/acme/endpoints"
    made = await api("POST", path, {"url": "https://93.184.216.34/"}, status=201)
    both = {"secret": f"{SECRET}{space}{OTHER}"}
    problem = await api("POST", f"{path}/{made['id']}:rotate-secret", both, status=422)
    assert problem["pointer"] == "/secret"
    assert SECRET not in json.dumps(problem)


async def test_a_private_key_is_no_secret_of_hmac(api: Api) -> None:
    path = "/v1/tenants/acme/endpoints"
    key = signature.new_secret("ed25519")
    made = await api("POST", path, {"url": "https://93.184.216.34/", "secret": key}, status=201)
    assert made["signature"] == "ed25519"
    problem = await api("PATCH", f"{path}/{made['id']}", {"secret": key, "signature": "hmac"}, status=422)
    assert (problem["pointer"], "private key; leave signature out" in problem["detail"]) == ("/secret", True)


async def test_an_older_secret_that_does_not_fit_the_style_is_named(api: Api) -> None:
    path = "/v1/tenants/acme/endpoints"
    made = await api("POST", path, {"url": "https://93.184.216.34/", "secret": OWN, "signing": "github"}, status=201)
    change = {"secret": SECRET, "signing": "standard"}
    problem = await api("PATCH", f"{path}/{made['id']}", change, status=422)
    assert "it is the older one of two: first give the endpoint one alone" in problem["detail"]
    await api("POST", f"{path}/{made['id']}:rotate-secret", {"secret": SECRET, "overlap_s": 0})
    assert (await api("PATCH", f"{path}/{made['id']}", change))["signing"] == "standard"


async def test_a_change_back_to_the_standard_needs_a_secret_of_its_form(api: Api) -> None:
    path = "/v1/tenants/acme/endpoints"
    made = await api("POST", path, {"url": "https://93.184.216.34/", "secret": OWN, "signing": "github"}, status=201)
    problem = await api("PATCH", f"{path}/{made['id']}", {"signing": "standard"}, status=422)
    assert problem["pointer"] == "/secret"
    changed = await api("POST", f"{path}/{made['id']}:rotate-secret", {"overlap_s": 0})
    assert changed["secret"].startswith("whsec_")
    assert (await api("PATCH", f"{path}/{made['id']}", {"signing": "standard"}))["signing"] == "standard"
