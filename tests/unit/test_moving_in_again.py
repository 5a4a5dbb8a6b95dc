"""Imports that are interrupted, repeated or tried first, and exports with odd values."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from emq.runtime import errors
from emq_cli import exit_codes
from emq_push.moving.carrying import Carrying, Moved
from emq_push.service.endpoints import EndpointService
from support import push_api
from support.emq_shell import Shell
from support.former_senders import OTHER, OWN, SECRET, of_convoy, of_outpost, of_svix, plan_of
from support.push_api import Api

URL = "https://93.184.216.34/hook"
LATER = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=2)).isoformat()

api = push_api.fixture()


async def carried(api: Api, kind: str, export: dict[str, Any], *, is_trial: bool = False) -> list[Moved]:
    return await Carrying(api.service, "test", is_trial=is_trial).run(plan_of(kind, export).tenants)


def endpoints_of(export: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = export["applications"]["data"][0]["endpoints"]
    return found


async def test_an_import_that_was_killed_after_any_endpoint_is_completed_by_the_next(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = {"secret": OWN, "previous_secret": "former-secret", "previous_secret_invalid_at": LATER}
    export = of_outpost(URL, credentials=credentials, disabled_at="2026-01-02T03:04:05Z")
    create = EndpointService.create

    async def killed(*args: Any) -> None:
        await create(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(EndpointService, "create", killed)
        with pytest.raises(KeyboardInterrupt):
            await carried(api, "outpost", export)
    [there] = await carried(api, "outpost", export)
    assert not there.is_new
    shown = await api("GET", f"/v1/tenants/shop/endpoints/{there.id}")
    assert shown["disabled"] == "disabled at Outpost"
    assert shown["old_secret_until"] is not None
    attributes = (await api.app.catalog.get(f"shop.{there.id}")).options.attributes
    assert attributes["push.secret"] == f"{OWN} former-secret"
    [entry, _] = (await api("GET", "/v1/tenants/shop/audit-log"))["data"]
    assert (entry["action"], entry["changes"]["former_secret"]) == ("endpoint.created", "given")
    assert "former-secret" not in json.dumps(entry)


async def test_endpoints_with_one_url_and_secrets_of_their_own_are_all_made(api: Api) -> None:
    export = of_svix(URL)
    [first] = endpoints_of(export)
    endpoints_of(export).append({**first, "id": "ep_2", "secret": {"key": OTHER}})
    told = await carried(api, "svix", export, is_trial=True)
    made = await carried(api, "svix", export)
    again = await carried(api, "svix", export)
    assert [each.is_new for each in told] == [each.is_new for each in made] == [True, True]
    assert [(each.id, each.is_new) for each in again] == [(each.id, False) for each in made]


async def test_one_that_is_refused_each_time_is_not_taken_for_the_next_to_that_url(api: Api) -> None:
    export = of_svix(URL)
    [first] = endpoints_of(export)
    endpoints_of(export).insert(0, {**first, "id": "ep_0", "secret": {"key": "whsec_short"}})
    made = await carried(api, "svix", export)
    again = await carried(api, "svix", export)
    assert [bool(each.id) for each in made] == [bool(each.id) for each in again] == [False, True]
    assert again[1].id == made[1].id


def test_an_endpoint_that_is_twice_in_an_export_is_made_once() -> None:
    export = of_svix(URL)
    endpoints_of(export).append(dict(endpoints_of(export)[0]))
    plan = plan_of("svix", export)
    assert len(plan.tenants[0].endpoints) == 1
    assert "is there twice; made once" in [note.text for note in plan.notes]


def with_rate(rate: object) -> dict[str, Any]:
    export = of_svix(URL)
    export["applications"]["data"][0]["rateLimit"] = rate
    return export


def with_many() -> dict[str, Any]:
    export = of_svix(URL)
    endpoints_of(export)[:] = [{**endpoints_of(export)[0], "id": f"ep_{i}", "url": f"{URL}{i}"} for i in range(102)]
    return export


@pytest.mark.parametrize(
    ("kind", "export", "text"),
    [
        ("svix", with_rate(True), "qps"),
        ("svix", with_rate("many"), "qps"),
        ("svix", with_rate(10**400), "qps"),
        ("svix", with_many(), "has 100 endpoints, which is the most"),
        ("svix", of_svix(URL, secret="two words"), "regex"),
        ("outpost", of_outpost(URL, credentials={"secret": "enc:v1:0123abcd:AAAA"}), "the secret begins with enc:v1:"),
        (
            "outpost",
            of_outpost(
                URL,
                credentials={"secret": OWN, "previous_secret": "a b", "previous_secret_invalid_at": LATER},
            ),
            "the secret has white space",
        ),
    ],
)
async def test_a_trial_tells_what_the_import_tells(api: Api, kind: str, export: dict[str, Any], text: str) -> None:
    def troubles(moved: list[Moved]) -> list[tuple[str, bool, str]]:
        return [(each.source, each.is_new, each.trouble) for each in moved]

    told = troubles(await carried(api, kind, export, is_trial=True))
    assert (await api("GET", "/v1/tenants"))["data"] == []
    assert told == troubles(await carried(api, kind, export))
    whys = [why for _, _, why in told] + [*plan_of(kind, export).failed.values()]
    assert any(text in why for why in whys)
    assert not any(secret in why for why in whys for secret in ("two words", "a b ", "AAAA"))


async def test_endpoints_beyond_the_most_of_a_tenant_cost_no_topics(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    export, create, calls = with_many(), EndpointService.create, 0
    [first, *_] = endpoints_of(export)
    endpoints_of(export)[:] = [{**first, "url": f"{URL}{i}"} for i in range(20_000)]
    endpoints_of(export).extend({"url": ""} for _ in range(5_000))

    async def counted(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        return await create(*args)

    monkeypatch.setattr(EndpointService, "create", counted)
    plan = plan_of("svix", export)
    moved = await Carrying(api.service, "test", is_trial=False).run(plan.tenants)
    assert (len(moved), sum(each.is_new for each in moved), calls) == (20_000, 100, 100)
    assert len(plan.failed) == 5_000


async def test_a_trial_sees_a_topic_in_the_way_of_a_tenant(api: Api) -> None:
    await api.app.create_topic("shop-one", 5)
    [told] = await carried(api, "svix", of_svix(URL), is_trial=True)
    assert "exists and belongs to no tenant" in told.trouble


# ---------------------------------------------------------------------------------------------------------- odd values


def deep(name: str) -> dict[str, Any]:
    found: dict[str, Any] = {"x": 1}
    for _ in range(900):
        found = {name: found}
    return found


ODD = [True, -1, 0, 1e308, 10**400, "x", "\x00", "9" * 5_000, [], {}, {"a": 1}, ["$"], None]


def in_svix(odd: Any) -> list[dict[str, Any]]:
    names = ("description", "filterTypes", "rateLimit", "secret", "headers", "channels", "transformationParams", "uid")
    headers: list[Any] = [{"headers": odd}, {"sensitive": odd}, {"headers": {"a": odd}}]
    return [of_svix(URL, **{name: odd}) for name in names] + [of_svix(URL, headers=each) for each in headers]


def in_convoy(odd: Any) -> list[dict[str, Any]]:
    names = ("name", "owner_id", "uid", "status", "secrets", "rate_limit", "rate_limit_duration", "http_timeout")
    config = {"strategy": {"type": "linear", "duration": odd, "retry_count": odd}, "signature": {"versions": [odd]}}
    filtered = [{"event_types": odd}, {"filter": {"body": {"a": odd, "b": {"$in": odd}}}}, odd]
    return [
        *(of_convoy(URL, **{name: odd}) for name in names),
        *(of_convoy(URL, {"filter_config": each}) for each in filtered),
        of_convoy(URL, secrets=[{"value": odd, "expires_at": odd}]),
        {**of_convoy(URL), "project": {"config": config}},
    ]


def in_outpost(odd: Any) -> list[dict[str, Any]]:
    names = ("id", "type", "topics", "config", "credentials", "delivery_metadata", "filter")
    headers = {"config": {"url": URL, "custom_headers": odd}, "delivery_metadata": {"a": odd}}
    return [of_outpost(URL, **{name: odd}) for name in names] + [of_outpost(URL, **headers)]


@pytest.mark.parametrize(("kind", "exports"), [("svix", in_svix), ("convoy", in_convoy), ("outpost", in_outpost)])
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: repr(odd)[:12])
async def test_odd_values_are_taken_or_named(
    api: Api, kind: str, exports: Callable[[Any], list[dict[str, Any]]], odd: Any
) -> None:
    for export in exports(odd):
        plan = plan_of(kind, export)
        moved = await Carrying(api.service, "test", is_trial=True).run(plan.tenants)
        assert moved or plan.failed


@pytest.mark.parametrize("body", [deep("a"), deep(""), {"items.$.id": 5}, {"": 5}])
def test_a_filter_that_has_no_equal_is_named(body: dict[str, Any]) -> None:
    plan = plan_of("convoy", of_convoy(URL, {"filter_config": {"filter": {"body": body}}}))
    [why] = plan.failed.values()
    assert "make its endpoint by hand" in why


@pytest.mark.parametrize("text", ["[" * 5_000, "9" * 5_000, "[1]", '"x"', "{"], ids=lambda text: text[:3])
def test_headers_of_outpost_that_cannot_be_read_are_named(text: str) -> None:
    plan = plan_of("outpost", of_outpost(URL, config={"url": URL, "custom_headers": text}))
    assert [note.text for note in plan.notes] == ["has custom headers that cannot be read; set them"]


def test_secrets_of_convoy_beyond_two_are_named() -> None:
    newest: dict[str, Any] = {"value": OWN}
    former = {"value": "former-secret", "expires_at": LATER}
    for secrets, count in (
        ([former, newest], 0),
        ([{"value": "endless-one"}, newest], 1),
        ([former] * 2 + [newest], 0),
    ):
        plan = plan_of("convoy", of_convoy(URL, secrets=secrets))
        assert len([note for note in plan.notes if "more secrets in use" in note.text]) == count
        assert plan.tenants[0].endpoints[0].fields.secret == OWN


def test_an_empty_secret_of_convoy_is_none() -> None:
    given: list[list[Any]] = [[{"value": ""}], [{"value": 5}], [{}]]
    for secrets in given:
        [why] = plan_of("convoy", of_convoy(URL, secrets=secrets)).failed.values()
        assert why == "has no secret in the export"


def test_two_without_a_name_that_cannot_be_made_are_both_named() -> None:
    export = of_svix(URL)
    endpoints_of(export)[:] = [{"url": ""}, {"url": ""}]
    assert [*plan_of("svix", export).failed] == ["endpoint shop.one/", "endpoint shop.one/ (2)"]


def test_more_retries_than_there_are_here_are_named() -> None:
    export = of_convoy(URL)
    export["project"] = {"config": {"strategy": {"type": "linear", "duration": 1, "retry_count": 500}}}
    assert "retries 500 times; endpoints here at most 100 times" in [n.text for n in plan_of("convoy", export).notes]


# ----------------------------------------------------------------------------------------------------- from a terminal


def test_a_wrong_style_for_all_gets_one_line_and_makes_nothing(emq: Shell) -> None:
    Path("export.json").write_text(json.dumps(of_svix(URL)))
    assert "--signing: push.signing 'paypal' has no" in emq.refused("push import svix export.json --signing paypal")
    assert emq.json("push tenants") == []


def test_a_file_may_begin_with_a_byte_order_mark(emq: Shell) -> None:
    Path("export.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(of_svix(URL)).encode())
    assert emq("push import svix export.json") == "made 1 endpoint of 1 tenant\n"


def test_new_secrets_are_told_also_if_the_import_breaks_off(emq: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    export = of_svix(URL, secret=None)
    endpoints_of(export).append({"id": "ep_2", "url": f"{URL}2", "secret": SECRET})
    Path("export.json").write_text(json.dumps(export))
    create = EndpointService.create

    async def breaking(*args: Any) -> Any:
        if args[2].url == f"{URL}2":
            raise errors.DatabaseUnavailable("the database is away")
        return await create(*args)

    monkeypatch.setattr(EndpointService, "create", breaking)
    told = emq("push import svix export.json", code=exit_codes.UNREACHABLE)
    assert told.startswith("made 1 endpoint of 1 tenant\n")
    assert "shop.one/ep_1srOrx2ZWZBpBUvZwXKQmoEYga2: new secret whsec_" in told
    assert "the database is away" in emq.error
    endpoints_of(export)[0]["url"] = f"{URL}3"
    Path("export.json").write_text(json.dumps(export))
    found = emq.json("push import svix export.json", code=exit_codes.UNREACHABLE)
    assert found["endpoints"][0]["secret"].startswith("whsec_")
