"""Encodes objects of publishers as payloads."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias

import msgspec

from emq.calls import content_types
from emq.runtime import errors, inputs, plurals
from emq.storage.message import Message

PLAIN = frozenset((bytes, str))
"""Types of payloads that are published as they are, without a content type."""

_UNTYPED = (bytes, str, bytearray, memoryview)


class DataclassObject(Protocol):
    """An object of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class PydanticModel(Protocol):
    """An object of a pydantic model."""

    def model_dump(self, *, mode: str, by_alias: bool) -> Any: ...

    def model_dump_json(self) -> str: ...


Payload: TypeAlias = (
    bytes
    | str
    | Mapping[Any, Any]
    | list[Any]
    | tuple[Any, ...]
    | set[Any]
    | frozenset[Any]
    | msgspec.Struct
    | DataclassObject
    | PydanticModel
)
"""The types of payloads: bytes and text stay as they are, all others are encoded as JSON or MessagePack."""


def encoded(
    payload: Payload, headers: Mapping[str, str] | None, content_type: str | None, default: str
) -> tuple[bytes | str, Mapping[str, str] | None]:
    """Return a payload as bytes or text, and the headers with its content type.

    Args:
        payload: bytes and text stay as they are, and get a content type only if `content_type` is given.
        headers: a content type among them goes before the other two.
        content_type: the content type that the caller asked for; None for `default`.

    Raises:
        InvalidMessage: the payload is of another type or cannot be encoded, or the content type is unknown.
    """
    own = _content_type(headers)
    if isinstance(payload, _UNTYPED):
        return payload, headers if own or content_type is None else _with(headers, content_type)
    chosen = own or content_type or default
    return encode(payload, chosen), headers if own else _with(headers, chosen)


def encoded_many(
    payloads: Iterable[Payload], headers: Mapping[str, str] | None, content_type: str | None, default: str
) -> tuple[Iterable[bytes | str], Mapping[str, str] | None]:
    """Do the same as `encoded` for the payloads of one call, which share their headers.

    Raises:
        InvalidMessage: as for `encoded`, or some payloads are bytes or text and others are not.
    """
    if is_single(payloads):
        return payloads, headers  # type: ignore[return-value]  # the producer refuses a single payload
    payloads = list(payloads)
    if content_type is None and set(map(type, payloads)) <= PLAIN:
        return payloads, headers  # type: ignore[return-value]
    untyped = sum(isinstance(payload, _UNTYPED) for payload in payloads)
    if untyped == len(payloads):
        own = _content_type(headers)
        return payloads, headers if own or content_type is None else _with(headers, content_type)  # type: ignore[return-value]
    if untyped:
        raise errors.InvalidMessage(
            f"{untyped} of {len(payloads)} payloads {plurals.are(untyped)} bytes or text and the rest are objects, but "
            "they share one content type; publish them in two calls"
        )
    own = _content_type(headers)
    chosen = own or content_type or default
    return [encode(payload, chosen) for payload in payloads], headers if own else _with(headers, chosen)


def encode(payload: object, content_type: str) -> bytes:
    """Return an object as JSON or MessagePack.

    Raises:
        InvalidMessage: EMQ does not write the content type, or the object cannot be encoded.
    """
    format_ = content_types.format_of(content_type) if isinstance(content_type, str) else None
    if format_ is None:
        raise errors.InvalidMessage(
            f"content type {content_type!r}: EMQ encodes {content_types.JSON} and {content_types.MSGPACK}; choose one, "
            "or encode the payload yourself and give bytes"
        )
    if isinstance(payload, Message):
        raise errors.InvalidMessage(f"payload {inputs.shown(payload)} is a message; give its payload")
    if not is_object(payload) and not isinstance(payload, Mapping | list | tuple | set | frozenset):
        raise errors.InvalidMessage(
            f"payload {inputs.shown(payload)} is of type {type(payload).__name__}; give bytes, text, a dict, a list, a "
            "dataclass, a msgspec.Struct or a pydantic model"
        )
    encoder = _to_json if format_ == "json" else _to_msgpack
    try:
        body = encoder.encode(_dumped(payload))
        if format_ == "json" and b"null" in body and _has_no_number(payload):
            raise ValueError("it holds a number that is NaN or infinite, which JSON cannot hold")
    except RecursionError:
        raise errors.InvalidMessage(f"{_name(payload)} cannot be encoded: it is nested too deeply") from None
    except Exception as exc:  # the caller's own classes take part
        text = " ".join(str(exc).split())
        raise errors.InvalidMessage(f"{_name(payload)} cannot be encoded as {content_type}: {text}") from exc
    return body


def is_single(payloads: object) -> bool:
    """Return True for an object that is one payload, or none, where a list of payloads is expected."""
    return isinstance(payloads, (*_UNTYPED, Mapping)) or is_object(payloads) or not isinstance(payloads, Iterable)


def is_object(payload: object) -> bool:
    """Return True for an object of a dataclass, a msgspec.Struct or a pydantic model, False for the class itself."""
    kind = type(payload)
    return (
        isinstance(payload, msgspec.Struct)
        or (dataclasses.is_dataclass(payload) and not isinstance(payload, type))
        or hasattr(kind, "__pydantic_serializer__")
        or hasattr(kind, "__attrs_attrs__")
    )


def _content_type(headers: Mapping[str, str] | None) -> str | None:
    """Return the content type among headers; the producer refuses other headers of a wrong type."""
    found = content_types.given(headers) if isinstance(headers, Mapping) else None
    if found is not None and not isinstance(found, str):
        raise errors.InvalidMessage(
            f"header {content_types.HEADER!r} {inputs.shown(found)} is of type {type(found).__name__}; give text"
        )
    return found


def _with(headers: Mapping[str, str] | None, content_type: str) -> Mapping[str, str] | None:
    if headers is not None and not isinstance(headers, Mapping):
        return headers
    return {**(headers or {}), content_types.HEADER: content_type}


def _dumped(payload: Any) -> Any:
    """Return a pydantic object as plain values; others as they are, since the encoder knows them."""
    serializer = getattr(type(payload), "__pydantic_serializer__", None)
    if serializer is None:
        return payload
    if hasattr(payload, "model_dump"):
        return payload.model_dump(mode="json", by_alias=True)
    return serializer.to_python(payload, mode="json", by_alias=True)


def _nested(value: Any) -> Any:
    """Encode a pydantic object or a mapping within others; the encoder asks for objects that it does not know."""
    if isinstance(value, Mapping):
        return dict(value)
    dumped = _dumped(value)
    if dumped is value:
        raise TypeError(
            f"it holds {inputs.shown(value)}, of a type that is not supported there ({type(value).__name__})"
        )
    return dumped


_to_json = msgspec.json.Encoder(enc_hook=_nested)
_to_msgpack = msgspec.msgpack.Encoder(enc_hook=_nested)


def _has_no_number(payload: object) -> bool:
    """Return True if a payload holds NaN or an infinity, which the encoder would write as null."""
    found: list[Any] = [msgspec.to_builtins(_dumped(payload), enc_hook=_nested)]
    while found:
        value = found.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return True
        if isinstance(value, dict):
            found.extend(value.values())
        elif isinstance(value, Sequence) and not isinstance(value, str):
            found.extend(value)
    return False


def _name(payload: object) -> str:
    return f"payload of type {type(payload).__name__}"
