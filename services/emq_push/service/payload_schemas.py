"""JSON Schemas of payloads: which are taken, and what of a payload does not fit.

`jsonschema-rs` checks, and is imported only when a schema is used. It fetches nothing: a `$ref` leads to a place in the
same schema, or to one of the published drafts. Patterns are those of a linear engine, without look-around and back
references, so that no payload makes a check slow.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from emq.runtime import extras
from emq_push.service.refusals import Invalid

MAX_BYTES = 65_536
"""Most bytes of a schema, or of an example, as JSON."""
MAX_DEPTH = 32
"""Most objects and arrays within each other, in a schema or an example."""
MAX_PAYLOAD_DEPTH = 200
"""The same, in a payload that is checked: a schema that refers to itself follows it down."""
_LONGEST = 200


class Validator(Protocol):
    """A compiled schema."""

    def validate(self, instance: Any, /) -> None: ...


def bounded(value: Any, what: str, pointer: str) -> Any:
    """Return a value of JSON as it is stored. Raises `Invalid` if it is too large or too deep; `what` names it."""
    if not _is_within(value, MAX_DEPTH):
        raise Invalid("invalid_request", f"{what} has more than {MAX_DEPTH} levels", pointer)
    try:
        text = msgspec.json.encode(value)
    except (ValueError, OverflowError) as exc:
        raise Invalid("invalid_request", f"{what} cannot be stored as JSON: {exc}", pointer) from None
    if len(text) > MAX_BYTES:
        raise Invalid("invalid_request", f"{what} has {len(text):,} bytes; at most {MAX_BYTES:,}", pointer)
    return msgspec.json.decode(text)


def compiled(schema: Any, pointer: str = "") -> Validator:
    """Return what checks payloads.

    Raises:
        Invalid: the value is no JSON Schema, or refers to another place; `pointer` leads to the schema.
    """
    try:
        import jsonschema_rs
    except ImportError as exc:
        text = f"schemas need a library that is not here; install it: {extras.remedy('api')}"
        raise Invalid("schemas_unavailable", text) from exc
    refused: list[str] = []

    def refuse(uri: str) -> Any:
        refused.append(uri)
        raise ValueError

    linear = jsonschema_rs.RegexOptions()
    try:
        made: Validator = jsonschema_rs.validator_for(schema, retriever=refuse, pattern_options=linear)
    except ValueError as exc:
        text = f"only references within it are followed, not {refused[0][:_LONGEST]}" if refused else _text(exc)
        raise Invalid("invalid_schema", f"this is no JSON Schema: {text}", pointer + _pointer(exc)) from None
    return made


def check(validator: Validator, payload: Any, what: str, pointer: str) -> None:
    """Raise `Invalid` unless a decoded payload fits.

    Args:
        what: names the payload.
        pointer: to the payload; the error's leads to the wrong value within.
    """
    try:
        validator.validate(payload)
    except ValueError as exc:
        at = _pointer(exc)
        text = f"{what} does not fit its schema{f' at {at[:_LONGEST]}' if at else ''}: {_text(exc)}"
        raise Invalid("wrong_payload", text, (pointer + at)[:500]) from None


def check_json(validator: Validator, payload: bytes, pointer: str) -> None:
    """Raise `Invalid` unless a payload fits; see `check`."""
    try:
        decoded = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise Invalid("wrong_payload", f"the payload cannot be checked: {exc}", pointer) from None
    # A payload with few brackets is not deep; to walk through it would take longer than the check.
    if payload.count(b"[") + payload.count(b"{") > MAX_PAYLOAD_DEPTH and not _is_within(decoded, MAX_PAYLOAD_DEPTH):
        raise Invalid("wrong_payload", f"the payload has more than {MAX_PAYLOAD_DEPTH} levels", pointer)
    check(validator, decoded, "the payload", pointer)


def _text(error: ValueError) -> str:
    return str(getattr(error, "message", error))[:_LONGEST]


def _pointer(error: ValueError) -> str:
    """Return the JSON pointer to the value that an error is about; empty for the whole."""
    path = getattr(error, "instance_path", ())
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _is_within(value: Any, levels: int) -> bool:
    """Return whether a value of JSON has at most so many levels of objects and arrays."""
    level = [value]
    for _ in range(levels):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        if not (level := [each for each in inner if isinstance(each, dict | list)]):
            return True
    return False
