"""The body of a POST of messages: how it is read, and how the OpenAPI document describes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pydantic

from emq.api.problems import Problem
from emq.push.service.incoming import Incoming, Many

_one = msgspec.json.Decoder(Incoming).decode
_many = msgspec.json.Decoder(Many).decode


class _Listed(msgspec.Struct):
    messages: list[msgspec.Raw]


_listed = msgspec.json.Decoder(_Listed).decode
_AT = re.compile(r" - at (`key` in )?`\$(?P<path>[^`]*)`$")
_NAMES = re.compile(r"[^.\[\]]+")
_FIELD = re.compile(r"field `(?P<name>[^`]*)`")


def read(body: bytes) -> tuple[Sequence[Incoming], bool]:
    """Return the messages of a body, and whether it has a single one.

    Raises:
        Problem: the body is not JSON, or does not fit.
    """
    try:
        if not body.isascii():
            body.decode()  # payloads are not looked into otherwise
        if body.lstrip(b" \t\r\n").startswith(b'{"messages"'):
            return _many(body).messages, False
        try:
            return [_one(body)], True
        except msgspec.ValidationError:
            if not _has_messages(body):
                raise
        return _many(body).messages, False
    except msgspec.ValidationError as exc:
        raise _problem(exc) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Problem(400, "invalid_json", "the body is not valid JSON") from None


def _has_messages(body: bytes) -> bool:
    try:
        _listed(body)
    except msgspec.ValidationError:
        return False
    return True


def _problem(exc: msgspec.ValidationError) -> Problem:
    text = str(exc)
    found = _AT.search(text)
    path = "" if found is None else found["path"].partition("[...]")[0]
    text = _AT.sub("", text)
    if (field := _FIELD.search(text)) is not None:
        path += f".{field['name']}"
    pointer = "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in _NAMES.findall(path))
    detail = f"{pointer.lstrip('/') or 'the body'}: {text[:1].lower()}{text[1:]}"
    return Problem(422, "invalid_request", detail[:500], pointer=pointer[:500])


def _schema() -> dict[str, Any]:
    """Return the schema of the body, with patterns that end as those of JSON Schema do."""
    (one, many), parts = msgspec.json.schema_components([Incoming, Many], ref_template="#/components/schemas/{name}")
    text = msgspec.json.encode([one, many, parts]).decode().replace("\\\\Z", "$")
    one, many, parts = msgspec.json.decode(text)
    message, messages = parts["Incoming"], parts["Many"]
    message["properties"]["payload"] = {"description": "JSON, delivered byte by byte as it was given"}
    messages["properties"]["messages"]["items"] = message
    return {"oneOf": [message, messages]}


BODY: dict[str, Any] = {"requestBody": {"required": True, "content": {"application/json": {"schema": _schema()}}}}


class ReceiptShown(pydantic.BaseModel):
    """A message that was accepted."""

    id: str
    deliveries: list[str] = pydantic.Field(description="ids of its deliveries, one for each endpoint that gets it")


class ReceiptsShown(pydantic.BaseModel):
    """Messages that were accepted, in the order of the request."""

    data: list[ReceiptShown]


RESPONSES: dict[int | str, dict[str, Any]] = {
    202: {"model": ReceiptShown | ReceiptsShown, "description": "accepted, and in the queues of the endpoints"}
}
