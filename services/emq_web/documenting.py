"""Completes the OpenAPI document with what holds for all operations, so that no operation has to say it.

Headers of requests and answers, problems, the media types of changes, and the examples of `examples.json`. What many
operations have is written once, under a name, from which generators of clients make one type.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from emq_web import repeating
from emq_web.problems import JSON, MEDIA_TYPE, MERGE_PATCH

EXAMPLES = pathlib.Path(__file__).with_name("examples.json")
"""A story of requests, in order, with their answers: at least one for each operation. Tests run it."""

_HEADERS = {
    "RateLimit-Policy": "how many requests the caller may send: `q` within `w` seconds",
    "RateLimit": "how many requests are left (`r`), and in how many seconds all of them are there again (`t`)",
    "ETag": "the version, for `If-Match`; or of the content, for `If-None-Match`",
    "Retry-After": "seconds until a repeat may do",
    "Allow": "the methods of the path",
    "WWW-Authenticate": "the scheme of keys",
}
_WIDTHS = {"number": "double", "integer": "int64"}
_OF_ALL = ("RateLimit-Policy", "RateLimit")
_OF_STATUS = {"401": ("WWW-Authenticate",), "405": ("Allow",), "429": ("Retry-After",), "503": ("Retry-After",)}
_KEY = {
    "name": repeating.HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "string", "pattern": f"^{repeating.PATTERN}$", "maxLength": 255},
    "description": "a text of your own: for 24 hours, a repeat of the request with it gets the same answer, and "
    "changes nothing",
}


_KNOWN = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "maxLength": 1000},
    "description": "the ETag of an answer that you have: 304 without a body if it is still the same",
}


class Operation(NamedTuple):
    """An operation of the document."""

    method: str
    path: str
    content: dict[str, Any]

    @property
    def name(self) -> str:
        """Its name in `EXAMPLES`, such as `GET /v1/tenants`."""
        return f"{self.method} {self.path}"


def operations(document: Mapping[str, Any]) -> Iterator[Operation]:
    """Yield all operations of a document."""
    for path, methods in document["paths"].items():
        for method, content in methods.items():
            yield Operation(method.upper(), path, content)


def complete(document: dict[str, Any]) -> None:
    """Write into the document what holds for all operations."""
    parts = document["components"]
    parts["headers"] = {name: {"description": text, "schema": {"type": "string"}} for name, text in _HEADERS.items()}
    parts["responses"] = {}
    examples = json.loads(EXAMPLES.read_text())
    for operation in operations(document):
        _complete(operation, [each for each in examples if each["operation"] == operation.name])
        _share(operation.content, parts)
    _ease(parts["schemas"])
    for each in operations(document):
        _ease(each.content.get("parameters", []))


def _complete(operation: Operation, examples: list[dict[str, Any]]) -> None:
    content = operation.content
    has_version = any(each["name"] == "If-Match" for each in content.get("parameters", ()))
    if operation.method == "GET" and not has_version:
        has_version = True
        content["responses"]["304"] = {"description": "Not Modified"}
        content.setdefault("parameters", []).append(dict(_KNOWN))
    for status, answer in content["responses"].items():
        names = [*_OF_ALL, *_OF_STATUS.get(status, ())]
        if has_version and status in ("200", "201", "304"):
            names.append("ETag")
        answer["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
    # Methods of generated clients take the parts of the path in this order.
    content.get("parameters", []).sort(
        key=lambda each: operation.path.find(f"{{{each['name']}}}") % len(operation.path)
    )
    if operation.method in repeating.METHODS:
        content.setdefault("parameters", []).append(dict(_KEY))
    if operation.method == "PATCH":
        kinds = content["requestBody"]["content"]
        kinds[MERGE_PATCH] = dict(kinds[JSON])
    for number, example in enumerate(examples):
        _add_example(content, f"example{number + 1 if number else ''}", example)


def _add_example(content: dict[str, Any], name: str, example: Mapping[str, Any]) -> None:
    given = {**example.get("path", {}), **example.get("query", {})}
    for parameter in content.get("parameters", ()):
        if parameter.get("name") in given:
            value, shown = {"value": given[parameter["name"]]}, parameter.setdefault("examples", {})
            if value not in shown.values():
                shown[name] = value
    if "body" in example:
        for kind in content["requestBody"]["content"].values():
            kind.setdefault("examples", {})[name] = {"value": example["body"]}
    if "answer" in example:
        kinds = content["responses"][str(example["status"])]["content"]
        kinds[JSON].setdefault("examples", {})[name] = {"value": example["answer"]}


def _share(content: dict[str, Any], parts: dict[str, Any]) -> None:
    """Move what other operations may have, too, from one of them to the parts of the document."""
    for status, answer in content["responses"].items():
        if status[0] in "45":
            name = f"Problem{status}"
            problem = {**answer, "content": {MEDIA_TYPE: answer["content"][JSON]}}
            assert parts["responses"].setdefault(name, problem) == problem, f"{name} differs between operations"
            content["responses"][status] = {"$ref": f"#/components/responses/{name}"}
        for kind in answer.get("content", {}).values():
            kind["schema"].pop("title", None)  # FastAPI's for a union: the operation's name does
    for kind in content.get("requestBody", {}).get("content", {}).values():
        kind["schema"] = _shared(kind["schema"], parts["schemas"])


def _shared(schema: Any, schemas: dict[str, Any]) -> Any:
    """Return a schema with a reference in place of each struct within it, which `schemas` gets."""
    if isinstance(schema, list):
        return [_shared(each, schemas) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _shared(each, schemas) for key, each in schema.items()}
    if not {"title", "properties"} <= found.keys():
        return found
    name = found["title"]
    assert schemas.setdefault(name, found) == found, f"two structs are called {name}"
    return {"$ref": f"#/components/schemas/{name}"}


def _ease(schema: Any) -> None:
    """Write numbers and defaults so that generated code does what its users expect.

    Generators take 32 bits for numbers without a format. A `default` makes clients in Go send the field always, so that
    a PUT would overwrite what it should keep; in TypeScript, it makes the field required. So words tell the default.
    """
    if isinstance(schema, list):
        for each in schema:
            _ease(each)
    elif isinstance(schema, dict):
        if {} in (schema.get("anyOf") or ()):
            del schema["anyOf"]  # what may be anything may be null, too; clients in Go would miss a type
        kind = schema.get("type")
        if isinstance(kind, str) and kind in _WIDTHS:  # a struct may have a field of the name `type`
            schema.setdefault("format", _WIDTHS[kind])
        if {"properties", "type"} <= schema.keys():
            for field in schema["properties"].values():
                _tell_default(field)
        for each in schema.values():
            _ease(each)


def _tell_default(field: dict[str, Any]) -> None:
    default = field.pop("default", None)
    if default not in (None, "", [], {}) and "$ref" not in field:  # the fields of a struct have their own
        told = [*filter(None, [field.get("description")]), f"default {json.dumps(default)}"]
        field["description"] = "; ".join(told)
