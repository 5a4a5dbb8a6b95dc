"""No schema, and no payload, makes a check hold the service: what schemas cost, and which checks are refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from emq_push.service import catalogue, incoming, payload_schemas, schema_costs
from emq_push.service.refusals import Invalid
from support import push_api
from support.push_api import Api
from support.push_api_calls import lag, message, post

api = push_api.fixture("acme")

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
TEXTS = {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]}


def doubling(levels: int) -> dict[str, Any]:
    parts: dict[str, Any] = {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**parts, f"a{levels}": {"type": "string"}}, "$ref": "#/$defs/a0"}


def chain(links: int) -> dict[str, Any]:
    parts: dict[str, Any] = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(links)}
    return {"$defs": {**parts, f"a{links}": {}}, "$ref": "#/$defs/a0"}


def unevaluated(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {"properties": {"a": True}}
    for _ in range(levels):
        found = {"if": found, "unevaluatedProperties": False}
    return found


def twice(word: str, reference: str, **more: Any) -> dict[str, Any]:
    """Return a schema that checks each item of a list by itself, twice."""
    return {**more, "items": {"allOf": [{word: reference}, {word: reference}]}}


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def check(schema: Any, payload: bytes) -> None:
    payload_schemas.check_json(payload_schemas.compiled(schema), payload, "/payload")


@pytest.mark.parametrize(
    "schema",
    [
        doubling(18),
        chain(1_500),
        unevaluated(24),
        {"pattern": "(a{0,300}){0,300}b"},
        {"allOf": [{"pattern": rf"\p{{L}}{{0,{n}}}"} for n in range(200, 230)]},
        {"patternProperties": {f"^.*{n}$": {} for n in range(2_600)}},
    ],
    ids=["doubling", "chain", "unevaluated", "repeats", "classes", "names"],
)
async def test_a_schema_that_costs_too_much_is_refused_when_it_is_stored(api: Api, schema: Any) -> None:
    found = await api("PUT", "/v1/event-types/order.paid", {"schemas": {"1": schema}}, status=422)
    assert (found["code"], found["pointer"]) == ("invalid_schema", "/schemas/1")
    assert "too long" in found["detail"]


@pytest.mark.parametrize(
    "schema",
    [
        twice("$ref", "#"),
        twice("$ref", "#x", **{"$anchor": "x"}),
        twice("$ref", "urn:x", **{"$id": "urn:x"}),
        twice("$ref", "y#", **{"$schema": "http://json-schema.org/draft-04/schema#", "id": "http://x/y"}),
        twice("$dynamicRef", "#x", **{"$dynamicAnchor": "x"}),
        twice("$recursiveRef", "#", **{"$schema": DRAFT_2019, "$recursiveAnchor": True}),
        {"$schema": DRAFT_7, "$ref": "#x", "definitions": {"a": twice("$ref", "#x", **{"$id": "#x"})}},
        {"$defs": {"a b/~": twice("$ref", "#/$defs/a%20b~1~0")}, "$ref": "#/$defs/a%20b~1~0"},
        {
            "$defs": {"a": {"prefixItems": [{"$ref": "#"}, {}]}},
            "allOf": [{"$ref": "#/$defs/a"}, {"items": {"$ref": "#"}}],
        },
    ],
)
def test_a_schema_that_refers_to_itself_twice_takes_no_deep_payload(schema: Any) -> None:
    check(schema, nested(4))
    with pytest.raises(Invalid, match="too deep") as caught:
        check(schema, nested(40))
    assert caught.value.code == "payload_too_large"


@pytest.mark.parametrize(
    ("schema", "parts"),
    [
        ({"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}, 3),
        ({"anyOf": [{"items": {"$ref": "#"}}, {"additionalProperties": {"$ref": "#"}}, {"type": "string"}]}, 8),
        ({"type": "array", "prefixItems": [{"const": "and"}, {"$ref": "#"}, {"$ref": "#"}]}, 3),
        ({"properties": {f"p{n}": {"type": "string"} for n in range(1_000)}, "required": ["p1"]}, 3),
        ({"enum": [{"a": [1]}, 2], "const": {"a": {}}, "$defs": {"a": {}}, "x": {"$ref": "y"}}, 1),
        ({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"pattern": "^[A-Z]{2}$"}}}, 8),
    ],
)
def test_an_ordinary_schema_costs_little(schema: Any, parts: int) -> None:
    cost = schema_costs.of(schema)
    assert cost.parts <= parts
    assert cost.again <= 1


@pytest.mark.parametrize(
    ("pattern", "states"),
    [
        ("^[A-Z]{2}[0-9]{6}$", 10),
        ("(ab{0,3}){5}", 25),
        (r"\{3}[]}]{4}\p{L}{2}", 110),
        ("a{,3}b{x}((((", 9),
        ("a{2,}" * 3, 6),
    ],
)
def test_the_repeats_of_a_pattern_count(pattern: str, states: int) -> None:
    assert states / 1.5 <= schema_costs.states(pattern) <= states * 1.5


def test_a_large_payload_needs_a_simple_schema() -> None:
    names = {"pattern": "^(a|b)*a(a|b){90}$"}
    check({"type": "string"}, b'"' + b"a" * 1_000_000 + b'"')
    check(names, b'"' + b"a" * 1_000 + b'"')
    with pytest.raises(Invalid, match="too large"):
        check(names, b'"' + b"a" * 1_000_000 + b'"')


def test_a_wrong_payload_is_refused_at_once_though_the_schema_has_choices() -> None:
    """The library writes an error for each item and choice: some seconds for a megabyte."""
    for size, explains in ((3, True), (200_000, False)):
        with pytest.raises(Invalid, match="does not fit its schema") as caught:
            check(TEXTS, msgspec.json.encode([1] * size))
        assert (caught.value.code, caught.value.pointer) == ("wrong_payload", "/payload")
        assert ("schema: [1," in str(caught.value)) == explains


@pytest.mark.parametrize("decode", [incoming.decoded, lambda text: check({}, text)])
def test_large_numbers_are_read_fast(decode: Callable[[bytes], Any]) -> None:
    begun = time.thread_time()
    decode(b"[" + b"1e300," * 150_000 + b"1]")
    assert time.thread_time() - begun < 1
    with pytest.raises((msgspec.DecodeError, Invalid), match="out of range"):
        decode(b"[1e999]")


async def test_the_checks_of_one_request_have_an_end(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await api("PUT", "/v1/event-types/order.paid", {"schemas": {"1": {}}, "checked": True})
    monkeypatch.setattr(catalogue, "MOST_S", 0.0)
    found = await post(api, {"messages": [message(payload=list(range(1_000)))] * 50}, status=422)
    assert found["code"] == "payload_too_large"
    assert "fewer" in found["detail"]
    assert await lag(api) == 0
