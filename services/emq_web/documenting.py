"""Completes the OpenAPI document with what holds for all operations, so that no operation has to say it.

Headers of requests and answers, the media types of changes, and the examples of `examples.json`.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from emq_web import repeating
from emq_web.problems import JSON, MERGE_PATCH

EXAMPLES = pathlib.Path(__file__).with_name("examples.json")
"""A story of requests, in order, with their answers: at least one for each operation. Tests run it."""

_HEADERS = {
    "RateLimit-Policy": "how many requests the caller may send: `q` within `w` seconds",
    "RateLimit": "how many requests are left (`r`), and in how many seconds all of them are there again (`t`)",
    "ETag": "the version, for `If-Match`",
    "Retry-After": "seconds until a repeat may do",
    "Allow": "the methods of the path",
    "WWW-Authenticate": "the scheme of keys",
}
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
    examples = json.loads(EXAMPLES.read_text())
    for operation in operations(document):
        _complete(operation, [each for each in examples if each["operation"] == operation.name])


def _complete(operation: Operation, examples: list[dict[str, Any]]) -> None:
    content = operation.content
    has_version = any(each["name"] == "If-Match" for each in content.get("parameters", ()))
    for status, answer in content["responses"].items():
        names = [*_OF_ALL, *_OF_STATUS.get(status, ())]
        if has_version and status in ("200", "201"):
            names.append("ETag")
        answer["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
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
            parameter.setdefault("examples", {})[name] = {"value": given[parameter["name"]]}
    if "body" in example:
        for kind in content["requestBody"]["content"].values():
            kind.setdefault("examples", {})[name] = {"value": example["body"]}
    if "answer" in example:
        kinds = content["responses"][str(example["status"])]["content"]
        kinds[JSON].setdefault("examples", {})[name] = {"value": example["answer"]}
