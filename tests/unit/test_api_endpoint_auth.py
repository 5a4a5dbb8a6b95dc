"""The authentication of an endpoint is changed by its members, though nothing shows them."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from emq_push.secrets import Secrets
from support import push_api
from support.http_receiver import HttpReceiver
from support.push_api import Api
from support.push_api_calls import delivered, endpoint_of, hosting

KEY = base64.b64encode(bytes(range(32))).decode()
OAUTH2 = {
    "type": "oauth2",
    "token_url": "https://93.184.216.34/token",
    "client_id": "me",
    "client_secret": "s3cret",
    "scope": "x",
}

api = push_api.fixture("acme", push_allow="127.0.0.1", secret_key=KEY)


def path_of(made: Any) -> str:
    return f"/v1/tenants/acme/endpoints/{made['id']}"


@pytest.mark.parametrize(
    ("auth", "change", "wanted"),
    [
        ({"type": "bearer", "token": "one"}, {"token": "two"}, ("authorization", "Bearer two")),
        ({"type": "bearer", "token": "one"}, {"type": "bearer"}, ("authorization", "Bearer one")),
        ({"type": "header", "name": "X-A", "value": "one"}, {"name": "X-B"}, ("x-b", "one")),
        ({"type": "header", "name": "Authorization", "value": "Bearer x"}, {"value": "y"}, ("authorization", "y")),
        (
            {"type": "basic", "username": "me", "password": "a:b"},
            {"username": "you"},
            ("authorization", f"Basic {base64.b64encode(b'you:a:b').decode()}"),
        ),
    ],
)
async def test_a_patch_of_authentication_changes_the_members_that_it_names(
    api: Api, receiver: HttpReceiver, auth: dict[str, str], change: dict[str, str], wanted: tuple[str, str]
) -> None:
    made = await endpoint_of(api, receiver, auth=auth)
    changed = await api("PATCH", path_of(made), {"auth": change})
    assert changed["auth"] == auth["type"]
    async with hosting(api):
        request = await delivered(api, receiver, "acme")
    assert request.headers[wanted[0]] == wanted[1]
    assert "x-a" not in request.headers


async def test_a_patch_of_oauth2_keeps_and_removes_members(api: Api) -> None:
    made = await endpoint_of(api, auth=OAUTH2)
    before = (await api.app.catalog.get(f"acme.{made['id']}")).options.attributes
    await api("PATCH", path_of(made), {"auth": {"client_id": "other", "scope": None}})
    after = (await api.app.catalog.get(f"acme.{made['id']}")).options.attributes
    secrets = Secrets.of_setting(api.app.settings)
    assert (
        secrets.decrypt(after["push.oauth2.secret"])
        == secrets.decrypt(before["push.oauth2.secret"])
        == OAUTH2["client_secret"]
    )
    assert (after["push.oauth2.client_id"], after.get("push.oauth2.scope")) == ("other", None)
    refused = await api("PATCH", path_of(made), {"auth": {"client_secret": None}}, status=422)
    assert refused["pointer"] == "/auth/client_secret"
    refused = await api("PATCH", path_of(made), {"auth": {"type": "bearer"}}, status=422)
    assert refused["pointer"] == "/auth/token", "another type keeps nothing"
    log = (await api("GET", "/v1/tenants/acme/audit-log"))["data"]
    assert [entry["changes"].get("auth") for entry in log if entry["target"] == made["id"]] == ["changed", "oauth2"]
