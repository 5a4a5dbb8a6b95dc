"""The operations of a client of the API, held against what the API documents."""

from __future__ import annotations

import inspect
import re
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any, get_origin, get_type_hints

import msgspec

from emq_clients.requests import Page, Request
from emq_web import application

Operation = Callable[..., Request[Any]]


def of(module: ModuleType, besides: Collection[str]) -> dict[str, Operation]:
    """Return the public functions of a module by name, without some that make no request."""
    found = {name: each for name, each in vars(module).items() if inspect.isfunction(each) and name[0] != "_"}
    return {name: each for name, each in found.items() if each.__module__ == module.__name__ and name not in besides}


def documented() -> dict[str, Any]:
    """Return the OpenAPI document."""
    return application.document()


def answered(
    document: Mapping[str, Any], operation: Operation, samples: Mapping[str, Any]
) -> tuple[type[Any], list[str]]:
    """Return the type of an operation's answer, and the schemas by which the API documents its success.

    Fails unless the API documents exactly one path for the request that the operation makes with sample arguments,
    and there each parameter and each field of the body.
    """
    request = requested(operation, samples)
    query = request.path.partition("?")[2]
    [(method, path)] = places(document, request)
    documented = document["paths"][path][method]
    assert urllib.parse.parse_qs(query).keys() <= {each["name"] for each in documented.get("parameters", ())}
    if request.body is not None:
        content = documented["requestBody"]["content"]["application/json"]
        names = _properties(document, content["schema"])
        assert not names or msgspec.json.decode(request.body).keys() <= names
    text = msgspec.json.encode([each for status, each in documented["responses"].items() if status[0] == "2"]).decode()
    return request.answer, re.findall(r'"#/components/schemas/([^"]+)"', text)


def requested(operation: Operation, samples: Mapping[str, Any]) -> Request[Any]:
    """Return the request that an operation makes with sample arguments."""
    parameters = inspect.signature(operation).parameters.values()
    return operation(**{p.name: samples[p.name] for p in parameters if p.kind != p.VAR_KEYWORD})


def places(document: Mapping[str, Any], request: Request[Any]) -> list[tuple[str, str]]:
    """Return method and path, as the API documents them, of the operations that a request may mean."""
    path, method = request.path.partition("?")[0], request.method.lower()
    return [
        (method, known)
        for known, methods in document["paths"].items()
        if method in methods and re.fullmatch(re.sub(r"\{\w+\}", "[^/:]+", known), path)
    ]


def _properties(document: Mapping[str, Any], schema: Mapping[str, Any]) -> set[str]:
    """Return the names that an object of the schema may have; none if it may have any."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    forms = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return {*schema.get("properties", ())}.union(*(_properties(document, each) for each in forms))


def reads(document: Mapping[str, Any], kind: Any, name: str) -> bool:
    """Return whether a struct has all fields that it needs from a schema, and takes all that the schema has.

    A page may tell more than a client keeps, such as a sum.
    """
    schema, fields = document["components"]["schemas"][name], msgspec.structs.fields(kind)
    has_needed = {each.name for each in fields if each.required} <= set(schema["required"])
    return has_needed and (get_origin(kind) is Page or set(schema["properties"]) <= {each.name for each in fields})


def unknown_fields(document: Mapping[str, Any], shown: Mapping[type[msgspec.Struct], str]) -> dict[str, set[str]]:
    """Return the fields of structs that the schemas of these names do not have, by schema."""
    schemas = document["components"]["schemas"]
    found: dict[str, set[str]] = {}
    for struct, name in shown.items():
        found[name] = set(get_type_hints(struct)) - set(schemas[name]["properties"])
    return {name: fields for name, fields in found.items() if fields}
