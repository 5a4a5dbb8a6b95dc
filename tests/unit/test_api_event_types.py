"""The catalogue of event types: who may change it, which schemas it takes, and which messages it refuses."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from emq_push.records import event_types as records
from emq_push.service import catalogue, payload_schemas
from support import push_api
from support.http_receiver import HttpReceiver
from support.push_api import Api
from support.push_api_calls import endpoint_of, lag, message, post

api = push_api.fixture("acme", "other")

PAID = "/v1/event-types/order.paid"
SETTINGS = "/v1/event-type-settings"
AMOUNT = {"type": "object", "properties": {"amount": {"type": "number", "minimum": 0}}, "required": ["amount"]}
ONLY_TEXT = {"type": "object", "properties": {"amount": {"type": "string"}}}


async def paid(api: Api, **more: Any) -> Any:
    return await api("PUT", PAID, {"schemas": {"1": AMOUNT}, **more})


async def refused(api: Api, body: Any, **more: Any) -> tuple[str, str]:
    """Send messages that are refused; return code and pointer."""
    found = await post(api, body, status=422, **more)
    return found["code"], found["pointer"]


# ------------------------------------------------------------------------------------------------------ the catalogue


async def test_an_event_type_is_made_changed_shown_and_deleted(api: Api) -> None:
    example = {"amount": 5}
    made = await api("PUT", PAID, {"description": "Paid", "schemas": {"2": AMOUNT, "10": {}}, "example": example})
    assert (made["name"], made["description"], made["versions"]) == ("order.paid", "Paid", ["2", "10"])
    changed = await api("PATCH", PAID, {"schemas": {"10": None, "3": ONLY_TEXT}, "example": None, "archived": True})
    assert (changed["versions"], changed["example"], changed["archived"]) == (["2", "3"], None, True)
    assert changed["description"] == "Paid", "what a PATCH leaves out stays"
    assert changed == await api("GET", PAID)
    assert changed["schemas"] == {"2": AMOUNT, "3": ONLY_TEXT}
    assert (await api("PUT", PAID, {"schemas": {"1": {}}}, status=200))["versions"] == ["1"], "a PUT has all versions"
    assert (await api("PATCH", PAID, {"schemas": {}}))["versions"] == ["1"]
    assert (await api("PATCH", PAID, {"schemas": None}))["versions"] == []
    await api("DELETE", PAID, status=204)
    for method in ("GET", "DELETE"):
        assert (await api(method, PAID, status=404))["code"] == "unknown_event_type"
    assert (await api("PATCH", PAID, {}, status=404))["code"] == "unknown_event_type"
    entries = await api.listed("/v1/audit-log", action="event_type.")
    assert [each["action"].partition(".")[2] for each in entries] == ["deleted", *["changed"] * 4, "created"]
    assert entries[-1]["changes"] == {"description": "Paid", "schemas": ["10", "2"], "example": True}


async def test_the_list_has_pages_by_name_and_no_schemas(api: Api) -> None:
    for name in ("c", "a.b", "b"):
        await api("PUT", f"/v1/event-types/{name}", {"schemas": {"1": AMOUNT}})
    found = await api.listed("/v1/event-types", limit=2)
    assert [each["name"] for each in found] == ["a.b", "b", "c"]
    assert not {"schemas", "example"} & found[0].keys()


async def test_a_change_of_an_old_version_is_refused(api: Api) -> None:
    first = (await api.raw("PUT", PAID, {}, headers={"If-None-Match": "*"})).headers["etag"]
    again = await api("PUT", PAID, {}, headers={"If-None-Match": "*"}, status=412)
    assert again["code"] == "other_version"
    second = (await api.raw("PATCH", PAID, {"description": "x"}, headers={"If-Match": first})).headers["etag"]
    for method, body in (("PATCH", {}), ("PUT", {}), ("DELETE", None)):
        await api(method, PAID, body, headers={"If-Match": first}, status=412)
    shown = await api.raw("GET", SETTINGS)
    assert shown.headers["etag"] == second, "that of the catalogue as a whole"
    await api("PATCH", SETTINGS, {"check": "known"}, headers={"If-Match": first}, status=412)
    await api("PATCH", SETTINGS, {"check": "known"}, headers={"If-Match": second})
    assert (await api("GET", SETTINGS)) == {"check": "known"}


async def test_a_repeat_with_the_same_key_changes_nothing(api: Api) -> None:
    header = {"Idempotency-Key": "k1"}
    first = await api.raw("PUT", PAID, {"description": "x"}, headers=header)
    second = await api.raw("PUT", PAID, {"description": "x"}, headers=header)
    assert (first.status_code, second.status_code, first.json()) == (201, 201, second.json())


async def test_tenants_read_the_catalogue_and_only_admins_change_it(api: Api) -> None:
    await paid(api)
    for role in ("read", "manage"):
        key = await api.key_of(role, "acme")
        assert (await api("GET", PAID, key=key))["name"] == "order.paid"
        assert [each["name"] for each in (await api("GET", "/v1/event-types", key=key))["data"]] == ["order.paid"]
        assert (await api("GET", SETTINGS, key=key))["check"] == "off"
        for method, path, body in (
            ("PUT", PAID, {}),
            ("PATCH", PAID, {}),
            ("DELETE", PAID, None),
            ("PATCH", SETTINGS, {"check": "off"}),
        ):
            await api(method, path, body, key=key, status=403)
    for key in (await api.key_of("send", "acme"), await api.key_of("submit")):
        await api("GET", PAID, key=key, status=403)
    await api("GET", PAID, key="", status=401)


async def test_the_catalogue_has_an_end(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MOST", 2)
    for name in ("a", "b"):
        await api("PUT", f"/v1/event-types/{name}", {})
    assert (await api("PUT", "/v1/event-types/c", {}, status=409))["code"] == "too_many_event_types"
    await api("PUT", "/v1/event-types/b", {"description": "x"}, status=200)


# ------------------------------------------------------------------------------------------------------------- schemas


def nested(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(levels - 1):
        found = {"not": found}
    return found


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "objekt"}, "/schemas/1/type"),
        ({"$ref": "https://schemas.example/order.json"}, "/schemas/1"),
        ({"$ref": "file:///etc/passwd"}, "/schemas/1"),
        ({"$schema": "https://schemas.example/draft"}, "/schemas/1"),
        ({"properties": {"a": {"pattern": "(?=a)b"}}}, "/schemas/1/properties/a/pattern"),
        ({"description": "x" * payload_schemas.MAX_BYTES}, "/schemas/1"),
        (nested(payload_schemas.MAX_DEPTH + 1), "/schemas/1"),
    ],
)
async def test_a_wrong_schema_is_refused_when_it_is_stored(api: Api, schema: Any, pointer: str) -> None:
    found = await api("PUT", PAID, {"schemas": {"1": schema}}, status=422)
    assert found["pointer"] == pointer
    await api("GET", PAID, status=404)


async def test_a_number_that_json_cannot_keep_is_refused(api: Api) -> None:
    headers = {"Authorization": f"Bearer {api.admin}", "Content-Type": "application/json"}
    body = '{"schemas": {"1": {"maximum": 1e999}}}'
    response = await api.http.put(PAID, content=body, headers=headers)
    assert response.status_code == 422
    assert response.json()["pointer"].startswith("/schemas/1")


async def test_nothing_is_fetched_for_a_schema(api: Api, receiver: HttpReceiver, tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text("{}")
    for place in (receiver.url("/order.json"), f"file://{tmp_path}/order.json"):
        found = await api("PUT", PAID, {"schemas": {"1": {"$ref": place}}}, status=422)
        assert "only references within it are followed" in found["detail"]
    assert receiver.requests == []
    await api("PUT", PAID, {"schemas": {"1": {"$ref": "#/$defs/a", "$defs": {"a": AMOUNT}}}}, status=201)


async def test_a_schema_may_be_as_large_and_deep_as_said(api: Api) -> None:
    large = {"description": ""}
    large["description"] = "x" * (payload_schemas.MAX_BYTES - len(msgspec.json.encode(large)))
    await api("PUT", PAID, {"schemas": {"1": large, "2": nested(payload_schemas.MAX_DEPTH)}}, status=201)


async def test_a_version_is_a_number(api: Api) -> None:
    for version in ("0", "v1", "1.0", "01", "1\n"):
        found = await api("PUT", PAID, {"schemas": {version: {}}}, status=422)
        assert found["code"] == "invalid_request"


async def test_the_example_fits_the_newest_schema(api: Api) -> None:
    body = {"schemas": {"1": ONLY_TEXT, "2": AMOUNT}, "example": {"amount": "5"}}
    found = await api("PUT", PAID, body, status=422)
    assert (found["code"], found["pointer"]) == ("wrong_payload", "/example/amount")
    await api("PUT", PAID, {**body, "example": {"amount": 5}})
    found = await api("PATCH", PAID, {"schemas": {"3": ONLY_TEXT}}, status=422)
    assert found["pointer"] == "/example/amount", "neither may the schema leave the example behind"


# ------------------------------------------------------------------------------------------------------------ messages


async def test_without_the_setting_no_message_is_checked(api: Api) -> None:
    await paid(api)
    await post(api, message(payload={"amount": -1}))
    await post(api, message(event_type="unknown"))


async def test_a_payload_that_does_not_fit_is_refused_with_its_place(api: Api) -> None:
    await endpoint_of(api)
    await paid(api)
    await api("PATCH", SETTINGS, {"check": "known"})
    wrong, right = message(payload={"amount": -1}), message()
    found = await post(api, wrong, status=422)
    assert (found["code"], found["pointer"], found["status"]) == ("wrong_payload", "/payload/amount", 422)
    assert "-1 is less than the minimum of 0" in found["detail"]
    assert await refused(api, message(payload={})) == ("wrong_payload", "/payload")
    assert await refused(api, {"messages": [right, wrong]}) == ("wrong_payload", "/messages/1/payload/amount")
    assert await refused(api, {"messages": [wrong]}) == ("wrong_payload", "/messages/0/payload/amount")
    assert await lag(api) == 0, "all messages of a request, or none"
    await post(api, {"messages": [right, message(event_type="unknown", payload=7)]})
    assert await lag(api) == 2


async def test_the_newest_schema_counts_unless_a_message_names_another(api: Api) -> None:
    await api("PUT", PAID, {"schemas": {"9": ONLY_TEXT, "10": AMOUNT}, "checked": True})
    text, number = message(payload={"amount": "5"}), message(payload={"amount": 5})
    await post(api, number)
    assert await refused(api, text) == ("wrong_payload", "/payload/amount")
    await post(api, {**text, "schema_version": "9"})
    assert await refused(api, {**number, "schema_version": "9"}) == ("wrong_payload", "/payload/amount")
    assert await refused(api, {**number, "schema_version": "8"}) == ("unknown_schema_version", "/schema_version")


async def test_strict_takes_known_types_only_of_messages_and_of_endpoints(api: Api) -> None:
    await paid(api, checked=False)
    await api("PATCH", SETTINGS, {"check": "strict"})
    await post(api, message(payload={"amount": -1}))
    unknown = message(event_type="order.sent")
    assert await refused(api, unknown) == ("unknown_event_type", "/event_type")
    assert await refused(api, {"messages": [message(), unknown]}) == ("unknown_event_type", "/messages/1/event_type")
    url = "https://93.184.216.34/hook"
    body = {"url": url, "event_types": ["order.paid", "order.*", "order.sent"]}
    found = await api("POST", "/v1/tenants/acme/endpoints", body, status=422)
    assert (found["code"], found["pointer"]) == ("unknown_event_type", "/event_types/2")
    made = await endpoint_of(api, event_types=["order.paid", "order.*", "*"])
    path = f"/v1/tenants/acme/endpoints/{made['id']}"
    await api("PATCH", path, {"event_types": ["order.sent"]}, status=422)
    await api("PATCH", path, {"event_types": None, "description": "All"})
    await api("POST", f"{path}:send-example", {"event_type": "whatever"}, status=202)


async def test_an_archived_type_is_delivered_and_checked_as_before(api: Api) -> None:
    await endpoint_of(api)
    await paid(api, archived=True)
    await api("PATCH", SETTINGS, {"check": "strict"})
    assert len((await post(api, message()))["deliveries"]) == 1
    assert await refused(api, message(payload={})) == ("wrong_payload", "/payload")


async def test_a_repeat_gets_its_answer_though_the_schema_has_changed_since(api: Api) -> None:
    await paid(api, checked=True)
    own, header = message(id="m1"), {"Idempotency-Key": "k"}
    first, keyed = await post(api, own), await post(api, message(), headers=header)
    await api("PUT", PAID, {"schemas": {"2": ONLY_TEXT}})
    assert await post(api, own) == first
    assert await post(api, message(), headers=header) == keyed
    assert await refused(api, message()) == ("wrong_payload", "/payload/amount")


async def test_a_payload_that_is_too_deep_to_be_followed_is_refused(api: Api) -> None:
    itself = {"type": "array", "items": {"$ref": "#"}}
    await api("PUT", PAID, {"schemas": {"1": itself}, "checked": True})
    for levels, status in ((payload_schemas.MAX_PAYLOAD_DEPTH, 202), (payload_schemas.MAX_PAYLOAD_DEPTH + 1, 422)):
        payload: list[Any] = []
        for _ in range(levels - 1):
            payload = [payload]
        await post(api, message(payload=payload), status=status)


async def test_another_process_follows_a_change_within_seconds(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async with push_api.another(api) as other:
        await post(other, message(payload={}))
        await paid(api, checked=True)
        monkeypatch.setattr(catalogue, "LOOK_US", 50_000)
        await asyncio.sleep(0.06)
        assert await refused(other, message(payload={})) == ("wrong_payload", "/payload")
        await api("DELETE", PAID)
        await asyncio.sleep(0.06)
        await post(other, message(payload={}))


async def test_compiled_schemas_are_bounded(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "MOST_COMPILED", 3 * len(msgspec.json.encode(AMOUNT)))
    for n in range(10):
        await api("PUT", f"/v1/event-types/t{n}", {"schemas": {"1": AMOUNT}, "checked": True})
        await post(api, message(event_type=f"t{n}"))
    assert len(api.service.parts.catalogue._compiled) <= 3
    assert await refused(api, message(event_type="t0", payload={})) == ("wrong_payload", "/payload")


async def test_without_the_library_a_message_to_check_is_refused_with_the_remedy(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await paid(api, checked=True)
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    found = await post(api, message(), status=422)
    assert found["code"] == "schemas_unavailable"
    assert "pip install" in found["detail"]
    await post(api, message(event_type="unknown"))


async def test_an_example_is_that_of_the_event_type(api: Api) -> None:
    made = await endpoint_of(api)
    await paid(api, example={"amount": 17})
    path = f"/v1/tenants/acme/endpoints/{made['id']}:send-example"
    assert (await api("POST", path, {"event_type": "order.paid"}))["payload"] == {"amount": 17}
    assert (await api("POST", path, {"event_type": "other"}))["payload"]["type"] == "other"
