"""JSON Schemas of payloads: which are taken, and what of a payload does not fit.

`jsonschema-rs` checks, and is imported only when a schema is used. It fetches nothing: a `$ref` leads to a place in the
same schema, or to one of the published drafts. Patterns are those of a linear engine, without look-around and back
references, so that no payload makes a check slow.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import msgspec

from emq.runtime import extras
from emq_push.service import schema_costs
from emq_push.service.incoming import decoded
from emq_push.service.refusals import Invalid

MAX_BYTES = 65_536
"""Most bytes of a schema, or of an example, as JSON."""
MAX_DEPTH = 32
"""Most objects and arrays within each other, in a schema or an example."""
MAX_PAYLOAD_DEPTH = 200
"""The same, in a payload that is checked: a schema that refers to itself follows it down."""
_MAX_PATTERN = 1 << 20
_LONGEST = 200


class _Library(Protocol):
    def is_valid(self, instance: Any, /) -> bool: ...

    def validate(self, instance: Any, /) -> None: ...


class Validator(NamedTuple):
    """A compiled schema.

    Attributes:
        cost: what tells how long a check may take.
    """

    library: _Library
    cost: schema_costs.Cost


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
    return decoded(text)


def compiled(schema: Any, pointer: str = "") -> Validator:
    """Return what checks payloads.

    Raises:
        Invalid: the value is no JSON Schema, refers to another place, or costs too much; `pointer` leads to the schema.
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

    cost, outside = _cost(schema, pointer)
    linear = jsonschema_rs.RegexOptions(size_limit=_MAX_PATTERN)
    try:
        made: _Library = jsonschema_rs.validator_for(schema, retriever=refuse, pattern_options=linear)
    except ValueError as exc:
        text = f"only references within it are followed, not {refused[0][:_LONGEST]}" if refused else _text(exc)
        raise Invalid("invalid_schema", f"this is no JSON Schema: {text}", pointer + _pointer(exc)) from None
    if cost is None:
        text = f"only references within it are followed, not {outside}"
        raise Invalid("invalid_schema", f"this is no JSON Schema: {text}", pointer)
    return Validator(made, cost)


def _cost(schema: Any, pointer: str) -> tuple[schema_costs.Cost | None, str]:
    """Return what a schema costs; None, and the reference, if one leads out of it."""
    try:
        return schema_costs.of(schema), ""
    except LookupError as exc:
        return None, str(exc.args[0])[:_LONGEST]
    except ValueError as exc:
        raise Invalid("invalid_schema", f"checks by this schema would take too long: {exc}", pointer) from None


def check_json(validator: Validator, payload: bytes, pointer: str, what: str = "the payload") -> None:
    """Raise `Invalid` unless a payload fits.

    Args:
        what: names the payload.
        pointer: to the payload; the error's leads to the wrong value within.
    """
    try:
        found = decoded(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise Invalid("wrong_payload", f"{what} cannot be checked: {exc}", pointer) from None
    # A payload with few brackets is not deep; to walk through it would take longer than the check.
    if payload.count(b"[") + payload.count(b"{") > MAX_PAYLOAD_DEPTH and not _is_within(found, MAX_PAYLOAD_DEPTH):
        raise Invalid("wrong_payload", f"{what} has more than {MAX_PAYLOAD_DEPTH} levels", pointer)
    cost = validator.cost
    steps = cost.steps(payload, lambda: next(n for n in range(MAX_PAYLOAD_DEPTH + 1) if _is_within(found, n)))
    if steps > schema_costs.MOST_STEPS:
        text = f"{what} is too large or too deep to be checked by its schema, which has {cost.parts:,} parts"
        raise Invalid("payload_too_large", text, pointer)
    _check(validator, found, steps, what, pointer)


def _check(validator: Validator, payload: Any, steps: int, what: str, pointer: str) -> None:
    if validator.library.is_valid(payload):
        return
    if validator.cost.has_choice and steps > schema_costs.MOST_TO_EXPLAIN:
        raise Invalid("wrong_payload", f"{what} does not fit its schema", pointer[:500])
    try:
        validator.library.validate(payload)
    except ValueError as exc:
        at = _pointer(exc)
        text = f"{what} does not fit its schema{f' at {at[:_LONGEST]}' if at else ''}: {_text(exc)}"
        raise Invalid("wrong_payload", text, (pointer + at)[:500]) from None


def _text(error: ValueError) -> str:
    return str(getattr(error, "message", error))[:_LONGEST]


def _pointer(error: ValueError) -> str:
    """Return the JSON pointer to the value that an error is about; empty for the whole."""
    path = getattr(error, "instance_path", ())
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _is_within(value: Any, levels: int) -> bool:
    """Return whether a value of JSON has at most so many levels of objects and arrays."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        if not (level := [each for each in inner if isinstance(each, dict | list)]):
            return True
    return not level
