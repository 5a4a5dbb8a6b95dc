"""Moving in from other senders: receivers check what comes with what they had, and nothing is left out unsaid."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
import svix.webhooks

from emq_push.moving.carrying import Carrying, Moved
from support import push_api
from support.emq_shell import Shell
from support.former_senders import OTHER, OWN, READERS, SECRET, of_convoy, of_outpost, of_svix, plan_of
from support.http_receiver import HttpReceiver
from support.push_api import Api
from support.push_api_calls import delivered, hosting

api = push_api.fixture("acme", push_allow="127.0.0.1")


async def moved(api: Api, kind: str, export: dict[str, Any]) -> list[Moved]:
    plan = plan_of(kind, export)
    assert plan.failed == {}
    return await Carrying(api.service, "test", is_trial=False).run(plan.tenants)


def digest(secret: str, content: bytes) -> str:
    return hmac.new(secret.encode(), content, hashlib.sha256).hexdigest()


# ------------------------------------------------------------------------------------------------- from each, as it is


async def test_a_receiver_of_svix_checks_what_comes_with_svixs_own_package(api: Api, receiver: HttpReceiver) -> None:
    [made] = await moved(api, "svix", of_svix(receiver.url("/hook")))
    assert (made.tenant, made.is_new, made.secret, made.trouble) == ("shop-one", True, "", "")
    shown = await api("GET", f"/v1/tenants/shop-one/endpoints/{made.id}")
    assert (shown["signing"], shown["qps"], shown["event_types"]) == ("svix", 20, ["order.paid"])
    assert (shown["description"], shown["header_names"]) == ("Orders", ["X-Shop"])
    assert (await api("GET", "/v1/tenants/shop-one"))["name"] == "Shop One"
    async with hosting(api):
        request = await delivered(api, receiver, "shop-one")
    svix.webhooks.Webhook(SECRET).verify(request.body, dict(request.headers))
    assert request.headers["svix-id"] == request.headers["webhook-id"]
    assert request.headers["x-shop"] == "17"
    assert "webhook-signature" not in request.headers


@pytest.mark.parametrize("advanced", [True, False])
async def test_a_receiver_of_convoy_finds_its_signature(api: Api, receiver: HttpReceiver, advanced: bool) -> None:
    [made] = await moved(api, "convoy", of_convoy(receiver.url("/hook"), advanced_signatures=advanced))
    shown = await api("GET", f"/v1/tenants/shop/endpoints/{made.id}")
    assert (shown["qps"], shown["timeout_s"]) == (2, 20)
    async with hosting(api):
        request = await delivered(api, receiver, "shop")
    header = request.headers["x-convoy-signature"]
    if not advanced:
        assert header == digest(OWN, request.body)
        return
    time, signature = (part.partition("=")[2] for part in header.split(","))
    assert signature == digest(OWN, f"{time},".encode() + request.body)


async def test_a_receiver_of_outpost_finds_both_secrets_until_the_former_one_ends(
    api: Api, receiver: HttpReceiver
) -> None:
    until_ = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=2)).isoformat()
    credentials = {"secret": OWN, "previous_secret": "former-secret", "previous_secret_invalid_at": until_}
    [made] = await moved(api, "outpost", of_outpost(receiver.url("/hook"), credentials=credentials))
    shown = await api("GET", f"/v1/tenants/shop/endpoints/{made.id}")
    left = datetime.datetime.fromisoformat(shown["old_secret_until"]) - datetime.datetime.now(datetime.UTC)
    assert 7_100 < left.total_seconds() <= 7_200
    async with hosting(api):
        request = await delivered(api, receiver, "shop")
    assert request.headers["x-outpost-signature"] == (
        f"v0={digest(OWN, request.body)},{digest('former-secret', request.body)}"
    )
    assert request.headers["x-outpost-topic"] == "order.paid"


async def test_what_was_disabled_there_gets_nothing_here(api: Api) -> None:
    url = "https://93.184.216.34/hook"
    exports = {
        "svix": of_svix(url, disabled=True),
        "convoy": of_convoy(url, status="paused"),
        "outpost": of_outpost(url, disabled_at="2026-01-02T03:04:05Z"),
    }
    for kind, export in exports.items():
        [made] = await moved(api, kind, export)
        shown = await api("GET", f"/v1/tenants/{made.tenant}/endpoints/{made.id}")
        assert shown["disabled"].lower().endswith(f"at {kind}")
        await api("DELETE", f"/v1/tenants/{made.tenant}")


async def test_a_second_import_makes_only_what_is_not_there(api: Api) -> None:
    export = of_svix("https://93.184.216.34/hook")
    [first] = await moved(api, "svix", export)
    export["applications"]["data"][0]["endpoints"].append(
        {"id": "ep_2", "url": "https://93.184.216.34/other", "filterTypes": None, "secret": OTHER}
    )
    again, second = await moved(api, "svix", export)
    assert (again.id, again.is_new) == (first.id, False)
    assert second.is_new
    await api("PATCH", "/v1/tenants/shop-one", {"qps": 7})
    assert [each.is_new for each in await moved(api, "svix", export)] == [False, False]
    assert (await api("GET", "/v1/tenants/shop-one"))["qps"] == 7, "a tenant that is there keeps its settings"


# ------------------------------------------------------------------------------------------------ what has no equal


def test_what_has_no_equal_is_named() -> None:
    url = "https://shop.example/"
    headers = {"headers": {}, "sensitive": ["X-Key"]}
    plan = plan_of("svix", of_svix(url, metadata={"a": "b"}, headers=headers, secret=None))
    texts = " | ".join(note.text for note in plan.notes)
    for word in ("metadata", "values Svix does not tell; set them: X-Key", "gets a new one", "shop-one"):
        assert word in texts
    subscription = {
        "filter_config": {"event_types": ["a"], "filter": {"headers": {"x": "y"}, "body": {}}},
        "function": "function transform() {}",
    }
    export = of_convoy(url, subscription, support_email="a@b.example", authentication={"type": "oauth2"})
    export["project"] = {"data": {"config": {"strategy": {"type": "exponential", "duration": 10, "retry_count": 3}}}}
    texts = " | ".join(note.text for note in plan_of("convoy", export).notes)
    for word in ("filter on headers", "function", "Slack or an address", "authenticates by oauth2", "'exponential'"):
        assert word in texts


def test_filters_of_convoy_on_payloads_become_filters_here() -> None:
    body = {"data": {"amount": {"$gte": 100}, "kind": "card"}, "test": {"$exist": False}}
    subscription = {"filter_config": {"event_types": ["order.paid"], "filter": {"body": body}}}
    [tenant] = plan_of("convoy", of_convoy("https://shop.example/", subscription)).tenants
    found = [(each.field, each.op, each.value) for each in tenant.endpoints[0].settings.filters]
    assert found == [("data.amount", "gte", 100), ("data.kind", "eq", "card"), ("test", "exists", False)]
    subscription = {"filter_config": {"filter": {"body": {"$or": [{"a": 1}]}}}}
    plan = plan_of("convoy", of_convoy("https://shop.example/", subscription))
    assert "a filter with $or" in plan.failed["endpoint 01H3FRSZYKNYWGPVV46RN98PM5"]


def test_subscriptions_of_one_endpoint_join_unless_one_has_a_filter() -> None:
    export = of_convoy("https://shop.example/", {"filter_config": {"event_types": ["a"]}})
    [first] = export["subscriptions"]["data"]["content"]
    others: list[dict[str, Any]] = [
        {**first, "filter_config": {"event_types": ["b", "a"]}},
        {**first, "filter_config": {"event_types": ["c"], "filter": {"body": {"n": 1}}}},
    ]
    export["subscriptions"]["data"]["content"] += others
    [tenant] = plan_of("convoy", export).tenants
    assert [each.settings.event_types for each in tenant.endpoints] == [("a", "b"), ("c",)]


def test_convoys_settings_of_signatures_and_retries_count() -> None:
    export = of_convoy("https://shop.example/", advanced_signatures=False)
    versions = [{"hash": "SHA256", "encoding": "hex"}, {"hash": "SHA512", "encoding": "base64"}]
    strategy = {"type": "linear", "duration": "1m", "retry_count": 3}
    export["project"] = {"config": {"signature": {"header": "X-Pay", "versions": versions}, "strategy": strategy}}
    [tenant] = plan_of("convoy", export).tenants
    assert tenant.endpoints[0].fields.signing == "X-Pay: {sha512_base64} of {payload}"
    assert tenant.endpoints[0].settings.retry_schedule_s == (60.0, 60.0, 60.0)


@pytest.mark.parametrize(
    ("kind", "export", "text"),
    [
        ("svix", of_svix("https://x.example/", filterTypes=["order paid"]), "event_types"),
        ("svix", of_svix(""), "url"),
        ("svix", of_svix("https://x.example/", rateLimit="many"), "qps"),
        ("convoy", {**of_convoy("https://x.example/"), "subscriptions": []}, "has no subscription"),
        ("convoy", of_convoy("https://x.example/", secrets=[]), "has no secret"),
        ("outpost", of_outpost("https://x.example/", type="aws_sqs"), "is of type 'aws_sqs'"),
        ("outpost", of_outpost("https://x.example/", filter={"data": {}}), "a filter of Outpost's own syntax"),
    ],
)
def test_what_cannot_be_made_is_named_with_its_reason(kind: str, export: dict[str, Any], text: str) -> None:
    [why] = plan_of(kind, export).failed.values()
    assert text in why


def test_two_names_that_would_be_one_id_are_refused() -> None:
    export = of_svix("https://x.example/")
    export["applications"]["data"].append({"id": "app_2", "uid": "shop:one", "name": "Other", "endpoints": []})
    plan = plan_of("svix", export)
    assert plan.failed == {
        "application shop:one": "its id would be shop-one, as that of shop.one; rename one of the two"
    }


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("content", [None, 5, "text", [], {}, [5, None, "x"], [{}], {"data": [{"id": 5}]}, [[{}]]])
def test_an_export_of_another_form_breaks_nothing(kind: str, content: object) -> None:
    plan = plan_of(kind, {READERS[kind].NEEDED: content, "subscriptions": content, "project": content})
    assert not any(tenant.endpoints for tenant in plan.tenants)


# ----------------------------------------------------------------------------------------------------- from a terminal


def test_the_command_tells_first_and_then_makes(emq: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMQ_PUSH_ALLOW", "*")
    export = of_svix("http://127.0.0.1:9/", metadata={"a": "b"})
    export["applications"]["data"][0]["endpoints"].append({"id": "ep_2", "url": "ftp://x", "secret": OTHER})
    Path("export.json").write_text(json.dumps(export))
    told = emq("push import svix export.json --dry-run", code=1)
    assert told == "would make 1 endpoint of 1 tenant\n"
    assert "shop.one/ep_1srOrx2ZWZBpBUvZwXKQmoEYga2: has metadata" in emq.error
    assert "endpoint shop.one/ep_2: url 'ftp://x' must start with http:// or https://" in emq.error
    assert emq.error.endswith("emq: 1 entry of the export cannot be made; see above\n")
    assert "has no tenants" in emq("push tenants") or emq.json("push tenants") == []
    found = emq.json("push import svix export.json", code=1)
    assert [each["tenant"] for each in found["endpoints"]] == ["shop-one"]
    assert [*found["failed"]] == ["endpoint shop.one/ep_2"]
    assert SECRET not in json.dumps(found)
    assert emq.json("push import svix export.json", code=1)["there_already"] == 1


def test_what_is_no_export_gets_one_clear_line(emq: Shell) -> None:
    Path("list.json").write_text("[]")
    Path("half.json").write_text('{"applications": [')
    Path("raw.json").write_bytes(b"\xff")
    assert "'list.json' has no 'tenants', so it is no export of outpost" in emq.refused("push import outpost list.json")
    assert "half.json is not valid JSON" in emq.refused("push import svix half.json")
    assert "'raw.json' cannot be read: it is not text" in emq.refused("push import svix raw.json")
    assert "cannot be read: No such file" in emq.refused("push import svix nothing.json")
    Path("some.json").write_text('{"tenants": []}')
    assert "--qps 0 must be above 0" in emq.refused("push import outpost some.json --qps 0")


def test_the_command_line_takes_a_secret_of_ones_own(emq: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMQ_PUSH_ALLOW", "*")
    emq("push tenant acme --qps 5")
    Path("secret").write_text(f"{OWN}\n")
    made = emq.json("push endpoint acme http://127.0.0.1:9/ --secret-file secret --signing stripe")
    assert made["secret"] is None
    assert emq.json(f"topic show acme.{made['id']}")["options"]["attributes"]["push.signing"] == "stripe"
    Path("two").write_text("a b")
    assert "has 2 words" in emq.refused("push endpoint acme http://127.0.0.1:9/ --secret-file two")
    assert "begins with neither" in emq.refused("push endpoint acme http://127.0.0.1:9/ --secret-file secret")
