"""The structs of `emq_scheduling.model` in bodies and answers: schemas for the OpenAPI document, and reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import fastapi
import msgspec

from emq.runtime import documents, errors
from emq_web.problems import JSON, MERGE_PATCH, Problem, check_json

T = TypeVar("T", bound=msgspec.Struct)

_REF = "#/parts/{name}"
_decode = msgspec.json.Decoder().decode


def of(kind: type[msgspec.Struct], *, without: tuple[str, ...] = (), partial: bool = False) -> dict[str, Any]:
    """Return the JSON schema of a struct, with its references written out.

    Args:
        without: fields that the body does not have.
        partial: the body is a JSON Merge Patch: it has any of the fields, and null where they have a default.
    """
    [_], parts = msgspec.json.schema_components([kind], ref_template=_REF)
    found: dict[str, Any] = _written_out(parts[kind.__name__], parts)
    found["properties"] = {name: each for name, each in found["properties"].items() if name not in without}
    required = [name for name in found.pop("required", []) if name not in without]
    if partial:
        return _patch(found, required)
    if required:
        found["required"] = required
    return found


def _patch(schema: dict[str, Any], required: Sequence[str]) -> dict[str, Any]:
    """Return the schema of a JSON Merge Patch of what fits a schema: each member may be left out, or null.

    Args:
        required: names without a default.
    """
    found = {name: value for name, value in schema.items() if name not in ("required", "default")}
    if "properties" in found:
        found["properties"] = {
            name: _patch(each, ()) if name in required else {"anyOf": [_patch(each, ()), {"type": "null"}]}
            for name, each in found["properties"].items()
        }
    if isinstance(found.get("additionalProperties"), dict):
        found["additionalProperties"] = {"anyOf": [_patch(found["additionalProperties"], ()), {"type": "null"}]}
    if "anyOf" in found:
        found["anyOf"] = [_patch(each, ()) for each in found["anyOf"]]
    return found


def _written_out(value: Any, parts: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        if "$ref" in value:
            return _written_out(parts[value["$ref"].rpartition("/")[2]], parts)
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
