"""Structs as bodies that FastAPI does not read: their schemas for the OpenAPI document, and reading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import fastapi
import msgspec

from emq.runtime import documents, errors
from emq_web import models
from emq_web.problems import JSON, MERGE_PATCH, Problem, check_json

T = TypeVar("T", bound=msgspec.Struct)

_REF = "#/parts/{name}"
_TITLES = {
    "Incoming": "Message",
    "Many": "Messages",
    "Pool": "PoolBody",
    "Tasks": "TaskBodies",
    "Tenant": "PoolTenant",
}
"""What the document calls structs whose own names are taken there, or say too little."""
_decode = msgspec.json.Decoder().decode


def of(kind: type[msgspec.Struct], *, without: tuple[str, ...] = (), partial: bool = False) -> dict[str, Any]:
    """Return the JSON schema of a struct, with its references written out. Structs are those that have a title.

    Args:
        without: fields that the body does not have.
        partial: the body is a JSON Merge Patch: it has any of the fields, and null where they have a default.
    """
    [_], parts = msgspec.json.schema_components([kind], ref_template=_REF)
    # Python ends a text at `\\Z`, JSON Schema at `$`.
    parts = _decode(msgspec.json.encode(parts).replace(rb"\\Z", b"$"))
    parts = {name: _described(each) for name, each in parts.items()}
    found: dict[str, Any] = _written_out(parts[kind.__name__], parts)
    for name in without:
        del found["properties"][name]
    found["required"] = [name for name in found["required"] if name not in without]
    return _patch(found) if partial else found


def _described(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a struct with the meaning of each field beside the field, instead of in one text."""
    if "properties" not in schema:  # an enumeration
        return schema
    summary, texts = models.told(schema.get("description", ""))
    fields = {
        name: {"description": texts[name], **each} if name in texts else each
        for name, each in schema["properties"].items()
    }
    title = _TITLES.get(schema["title"], schema["title"])
    return {**schema, "title": title, "description": summary, "properties": fields}


def _patch(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a JSON Merge Patch of what fits a schema.

    Each member may be left out; one that has a default, and one of many names, may be null.
    """
    found = {name: value for name, value in schema.items() if name not in ("required", "default")}
    if "properties" in found:
        found["title"] += "Changes"
        found["properties"] = {
            name: _patch(each) if name in schema["required"] else _or_null(_patch(each))
            for name, each in found["properties"].items()
        }
    if isinstance(found.get("additionalProperties"), dict):
        found["additionalProperties"] = _or_null(_patch(found["additionalProperties"]))
    if "anyOf" in found:
        found["anyOf"] = [_patch(each) for each in found["anyOf"]]
    return found


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    null = {"type": "null"}
    text = {"description": schema["description"]} if "description" in schema and "title" not in schema else {}
    if "anyOf" in schema:
        return schema if null in schema["anyOf"] else {**schema, "anyOf": [*schema["anyOf"], null]}
    return {**text, "anyOf": [{name: value for name, value in schema.items() if name not in text}, null]}


def _written_out(value: Any, parts: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        if "$ref" in value:
            return _written_out(parts[value["$ref"].rpartition("/")[2]], parts)
        if "enum" in value:
            return {"type": "string", **value}
        return {key: _written_out(each, parts) for key, each in value.items()}
    if isinstance(value, list):
        return [_written_out(each, parts) for each in value]
    return value


def body(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return an operation's part of the OpenAPI document for its body."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def read(request: fastapi.Request) -> Any:
    """Return the values of a body.

    Raises:
        Problem: it is not JSON.
    """
    kinds = (JSON, MERGE_PATCH) if request.method == "PATCH" else (JSON,)
    check_json(request.headers.get("content-type", ""), "the body", kinds)
    try:
        return _decode(await request.body())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        raise Problem(400, "invalid_json", "the body is not valid JSON") from None


def converted(values: object, kind: type[T], source: str) -> T:
    """Return the values of a body as a struct.

    Raises:
        InvalidPool: they do not fit; the text names the place.
    """
    return documents.converted(values, kind, source, errors.InvalidPool)
