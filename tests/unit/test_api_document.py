"""The API keeps to what its OpenAPI document says of all operations together."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from emq_web.limits import Limits, Rates
from emq_web.problems import MEDIA_TYPE, Problem
from support import api_operations, push_api
from support.push_api import Api

METHODS = ("GET", "HEAD", "PUT", "PATCH", "POST", "DELETE", "OPTIONS", "TRACE", "LOCK")
NAMES = {"tenant": "acme", "pool": "sms", "family": "orders.*", "message": "m1", "delivery": "ep_1:m1"}
"""Names of things by parameter; all others are called `a`."""

api = push_api.fixture("acme")


@functools.cache
def document() -> Mapping[str, Any]:
    return api_operations.documented()


def operations() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield method, path and description of each operation."""
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def methods_at(path: str) -> set[str]:
    """Return the methods of all operations that a path fits, as the document has them."""
    fitting = [each for each in operations() if re.fullmatch(_pattern(each[1]), path)]
    return {method for method, _, _ in fitting}


def _pattern(template: str) -> str:
    # Only ids of deliveries, and names of resources and tasks, may have a colon; a family ends with a star.
    any_ = re.sub(r"\\\{(delivery|task|name)\\\}", "[^/]+", re.escape(template))
    return re.sub(r"\\\{\w+\\\}", "[^/:]+", any_)


def filled(path: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: NAMES.get(found[1], "a"), path)


async def test_a_method_that_a_path_does_not_have_is_refused_with_those_that_it_has(api: Api) -> None:
    for path in {filled(template) for _, template, _ in operations()}:
        have = methods_at(path)
        for method in set(METHODS) - have:
            response = await api.raw(method, path)
            assert response.status_code == 405, (method, path)
            assert response.headers["allow"] == ", ".join(sorted(have)), (method, path)
            assert method == "HEAD" or response.json()["code"] == "method_not_allowed"


@pytest.mark.parametrize("path", ["/v1/openapi.json", "/livez", "/readyz"])
async def test_paths_without_a_key_are_only_read(api: Api, path: str) -> None:
    for method in set(METHODS) - {"GET", "HEAD"}:
        response = await api.raw(method, path)
        assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")
    assert (await api.raw("GET", path, key="")).status_code == 200


# ---------------------------------------------------------------------------------------------------- generated clients


def test_each_operation_has_one_name_and_one_group() -> None:
    """Generators make the name of a method from the one, and a class or file from the other."""
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(names) == len(set(names))
    assert [name for name in names if not re.fullmatch(r"[a-z]+(_[a-z]+)*", name)] == []
    assert [path for _, path, operation in operations() if len(operation["tags"]) != 1] == []


def test_the_parts_of_a_path_come_first_and_in_its_order() -> None:
    """In Go they are arguments of one type, in the order of the document."""
    for _, path, operation in operations():
        parameters = operation.get("parameters", [])
        parts = re.findall(r"\{(\w+)\}", path)
        assert [each["name"] for each in parameters[: len(parts)]] == parts, path
        assert "path" not in [each["in"] for each in parameters[len(parts) :]]


def test_no_operation_has_a_parameter_twice() -> None:
    for method, path, operation in operations():
        names = [(each["in"], each["name"]) for each in operation.get("parameters", ())]
        assert len(names) == len(set(names)), f"{method} {path}"


def test_every_refusal_is_the_one_form_of_errors() -> None:
    problems = document()["components"]["responses"]
    form = {"$ref": "#/components/schemas/ProblemDetails"}
    assert [problem["content"] for problem in problems.values()] == [{MEDIA_TYPE: {"schema": form}}] * len(problems)
    for _, path, operation in operations():
        refused = {status: answer for status, answer in operation["responses"].items() if status[0] in "45"}
        assert refused == {status: {"$ref": f"#/components/responses/Problem{status}"} for status in refused}, path
        assert {"400", "401", "404", "409", "422", "429", "503"} <= refused.keys()


def test_each_struct_is_written_once_under_a_name() -> None:
    for _, path, operation in operations():
        for kind in operation.get("requestBody", {}).get("content", {}).values():
            forms = kind["schema"].get("anyOf", [kind["schema"]])
            assert all(form.keys() == {"$ref"} or form == {"type": "null"} for form in forms), path
    names = document()["components"]["schemas"]
    assert [name for name in names if not re.fullmatch(r"[A-Z][A-Za-z]+", name)] == []
    assert [at for at, schema in schemas(names) if at.count("/") > 1 and "properties" in schema] == []


def test_generated_types_hold_what_the_api_takes() -> None:
    for at, schema in schemas(document()["components"]["schemas"]):
        if schema.get("type") in ("number", "integer"):
            assert schema["format"] in ("double", "int64"), f"{at} would have 32 bits"
        if "enum" in schema:
            assert "type" in schema, f"{at} would be any value"
        # Generated code in Go would send it always, and in TypeScript demand the field.
        assert "default" not in schema, at


def schemas(named: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield all schemas within named ones, each with its place, such as `Pool/zone`."""
    for name, schema in named.items():
        yield name, schema
        inner = {**schema.get("properties", {})}
        inner |= {
            f"{key}": schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)
        }
        inner |= {str(number): each for number, each in enumerate(schema.get("anyOf", ()))}
        yield from ((f"{name}/{at}", each) for at, each in schemas(inner))


# --------------------------------------------------------------------------------------------------------- rate limits


async def test_each_answer_tells_how_many_more_requests_may_come(api: Api) -> None:
    async with push_api.another(api, Limits(strangers_per_s=1e6, unknown_per_s=1e6)) as patient:
        for method, template, _ in operations():
            body = {} if method in ("PUT", "POST", "PATCH") else None
            response = await patient.raw(method, filled(template), body)
            assert response.headers["ratelimit-policy"] == '"requests";q=1000;w=1', (method, template)
            found = re.fullmatch(r'"requests";r=(\d+);t=1', response.headers["ratelimit"])
            assert found is not None
            assert 0 <= int(found[1]) < 1000
            strange = await patient.raw(method, filled(template), key="emqk_wrong")
            assert strange.status_code == 401
            assert strange.headers["ratelimit-policy"] == '"without-key";q=1000000;w=1'


async def test_a_message_is_answered_with_the_rate_limit_also_on_the_short_way(api: Api) -> None:
    response = await api.raw("POST", "/v1/tenants/acme/messages", {"event_type": "a", "payload": 1})
    assert response.status_code == 202
    assert response.headers["ratelimit"].startswith('"requests";r=')
    assert len(response.headers.get_list("ratelimit")) == 1


async def test_who_has_no_request_left_is_told_when_to_come_back(api: Api) -> None:
    async with push_api.another(api, Limits(requests_per_s=0.25)) as slow:
        first, second = [await slow.raw("GET", "/v1/tenants") for _ in range(2)]
    assert (first.status_code, first.headers["ratelimit"]) == (200, '"requests";r=0;t=4')
    assert first.headers["ratelimit-policy"] == '"requests";q=1;w=4'
    assert (second.status_code, second.headers["ratelimit"]) == (429, '"requests";r=0;t=4')
    assert second.headers["retry-after"] == "4"
    assert len(second.headers.get_list("ratelimit")) == 1


def test_the_rest_of_a_quota_comes_back_with_time() -> None:
    now_s = 0.0
    rates = Rates(2.0, lambda: now_s, at_once=10.0)
    lefts = [rates.take("a")["RateLimit"] for _ in range(10)]
    assert (lefts[0], lefts[-1]) == ('"requests";r=9;t=1', '"requests";r=0;t=5')
    with pytest.raises(Problem) as refused:
        rates.take("a")
    assert refused.value.headers == {
        "Retry-After": "1",
        "RateLimit-Policy": '"requests";q=10;w=5',
        "RateLimit": '"requests";r=0;t=5',
    }
    now_s = 3.0
    assert rates.take("a")["RateLimit"] == '"requests";r=5;t=3'
    assert rates.take("b")["RateLimit"] == '"requests";r=9;t=1'


def test_what_the_page_calls_missing_has_no_path() -> None:
    page = (Path(__file__).parents[2] / "docs/other-languages.md").read_text()
    missing = page.partition("## What is not in the API")[2]
    for word in ("weight", "drain", "import", "verify", "notices"):
        assert f"`emq {word}" in missing or f" {word}" in missing
        assert not [path for _, path, _ in operations() if re.search(rf"/{word}", path)]
    assert "one by one" in missing
    assert not [path for _, path, _ in operations() if path.startswith("/v1/topics")]
