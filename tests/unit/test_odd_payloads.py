"""Payloads that fit no type or no format are rejected or refused in words, and none is lost on its way."""

from __future__ import annotations

import collections
import dataclasses
import math
import types
from typing import Any

import msgspec
import pydantic
import pytest

from emq.calls import content_types, decoding, encoding
from emq.runtime import errors
from emq.storage.message import Message

JSON, MSGPACK = content_types.JSON, content_types.MSGPACK


@dataclasses.dataclass
class Tagged:
    tags: frozenset[Any] = frozenset()


class Measured(pydantic.BaseModel):
    value: float = 0.0
    raw: bytes = b""
    extra: Any = None


class Unhashable(msgspec.Struct, frozen=True):
    name: str

    def __hash__(self) -> int:
        raise TypeError("a mistake in the class")


def decode(annotation: Any, payload: bytes, content_type: str = JSON) -> Any:
    message = Message("id", payload, headers={content_types.HEADER: content_type})
    return decoding.decoder(annotation, "Thing")(message)


@pytest.mark.parametrize(
    ("annotation", "payload", "content_type"),
    [
        (frozenset, b"[[]]", JSON),
        (set[Any], b"[{}]", JSON),
        (Tagged, b'{"tags":[[1]]}', JSON),
        (Tagged, b"\x81\xa4tags\x91\x80", MSGPACK),
        (set[Any], b"\x91\xd4\x05\x00", MSGPACK),
        (Measured, b"\xd4\x05\x00", MSGPACK),
    ],
)
def test_a_payload_that_the_decoder_cannot_build_is_rejected_at_once(
    annotation: Any, payload: bytes, content_type: str
) -> None:
    with pytest.raises(errors.Reject, match="the payload is no Thing: "):
        decode(annotation, payload, content_type)


def test_an_error_of_the_class_itself_is_no_misfit() -> None:
    with pytest.raises(TypeError, match="a mistake in the class"):
        decode(frozenset[Unhashable], b'[{"name":"a"}]')


def test_a_pydantic_model_gets_bytes_and_numbers_of_messagepack_unchanged() -> None:
    packed = msgspec.msgpack.encode({"value": math.inf, "raw": b"text", "extra": {"at": [1]}})
    assert decode(Measured, packed, MSGPACK) == Measured(value=math.inf, raw=b"text", extra={"at": [1]})
    assert decode(Measured, msgspec.msgpack.encode({"raw": b"\xff\x00"}), MSGPACK).raw == b"\xff\x00"
    assert math.isnan(decode(Measured, msgspec.msgpack.encode({"value": math.nan}), MSGPACK).value)


@pytest.mark.parametrize("content_type", [JSON, MSGPACK])
def test_any_mapping_is_a_payload(content_type: str) -> None:
    for mapping in (types.MappingProxyType({"a": 1}), collections.ChainMap({"a": 1}), collections.UserDict(a=1)):
        assert decode(dict, encoding.encode(mapping, content_type), content_type) == {"a": 1}
        assert decode(dict, encoding.encode({"in": mapping}, content_type), content_type) == {"in": {"a": 1}}
    with pytest.raises(errors.InvalidMessage, match="NaN or infinite"):
        encoding.encode(types.MappingProxyType({"a": math.nan}), JSON)


def test_a_content_type_that_is_no_text_is_refused() -> None:
    for wrong in (5, b"application/json"):
        with pytest.raises(errors.InvalidMessage, match="content type"):
            encoding.encoded({"a": 1}, None, wrong, JSON)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidMessage, match=r"'content-type' .* give text"):
            encoding.encoded({"a": 1}, {"Content-Type": wrong}, None, JSON)  # type: ignore[dict-item]
