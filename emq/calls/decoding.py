"""Decodes payloads to the types that handlers' annotations name."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from emq.calls import content_types, signatures
from emq.runtime import errors
from emq.storage.message import Message

Decode = Callable[[Message], Any]
"""Returns the payload of a message as one type; raises `Reject` if the payload does not fit the type."""


def decoder(annotation: Any, name: str) -> Decode:
    """Return the function that decodes the payloads of messages to a type.

    Args:
        annotation: `bytes`, `str`, or any type that msgspec or pydantic can decode.
        name: the type, as errors name it.

    Raises:
        TypeError: neither msgspec nor pydantic can decode the type; the text says why.
    """
    bare = signatures.without_metadata(annotation)
    while hasattr(bare, "__supertype__"):
        bare = bare.__supertype__
    if bare in (bytes, str):
        plain = operator.attrgetter("payload") if bare is bytes else _text
        return plain if annotation is bare else _constrained(plain, annotation, name)
    if any(isinstance(kind, type) and issubclass(kind, Message) for kind in _classes(annotation)):
        raise TypeError("it holds Message, which is no payload")
    customs = {kind for kind in _unknown_to_msgspec(annotation) if not _is_pydantic(kind)}
    if customs:
        named = sorted(getattr(kind, "__qualname__", None) or str(kind) for kind in customs)
        raise TypeError(f"EMQ cannot decode {', '.join(named)}")
    made = _by_pydantic if any(map(_is_pydantic, _classes(annotation))) else _by_msgspec
    return _Structured(name, *made(annotation))


def _text(message: Message) -> str:
    try:
        return message.payload.decode()
    except UnicodeDecodeError as exc:
        raise errors.Reject(f"the payload is no UTF-8 text: {exc.reason} at byte {exc.start}") from None


def _constrained(plain: Decode, annotation: Any, name: str) -> Decode:
    """Return the function that also checks the constraints of text or bytes, such as a length."""

    def decode(message: Message) -> Any:
        try:
            return msgspec.convert(plain(message), annotation)
        except msgspec.ValidationError as exc:
            raise errors.Reject(f"the payload is no {name}: {exc}") from None

    return decode


class _Structured:
    """Decodes payloads to one type, as the content type of each message says; JSON without a content type."""

    def __init__(self, name: str, from_json: Callable[[bytes], Any], from_msgpack: Callable[[bytes], Any]) -> None:
        self._name = name
        self._from_json = from_json
        self._from_msgpack = from_msgpack

    def __call__(self, message: Message) -> Any:
        decode = self._from_json if message.headers is None else self._chosen(message.headers)
        try:
            return decode(message.payload)
        except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as exc:
            # The cause, if any, is the error of a check of the class; the decoder's own frames are of no use.
            raise errors.Reject(f"the payload is no {self._name}: {exc}") from exc.__cause__
        except RecursionError:
            raise errors.Reject(f"the payload is no {self._name}: nested too deeply") from None
        except ValueError as exc:
            if (reason := _of_pydantic(exc)) is None:
                raise
            raise errors.Reject(f"the payload is no {self._name}: {reason}") from None
        except TypeError as exc:
            if exc.__traceback__ is None or exc.__traceback__.tb_next is not None:
                raise  # a check of the class raised it
            raise errors.Reject(f"the payload is no {self._name}: {exc}") from None  # such as a list in a set

    def _chosen(self, headers: dict[str, str]) -> Callable[[bytes], Any]:
        content_type = content_types.given(headers)
        if content_type == content_types.JSON:
            return self._from_json
        format_ = "json" if content_type is None else content_types.format_of(content_type)
        if format_ is None:
            raise errors.Reject(
                f"the payload is no {self._name}: EMQ cannot decode its content type {str(content_type)[:100]!r}"
            )
        return self._from_json if format_ == "json" else self._from_msgpack


def _by_msgspec(annotation: Any) -> tuple[Callable[[bytes], Any], Callable[[bytes], Any]]:
    return msgspec.json.Decoder(annotation).decode, msgspec.msgpack.Decoder(annotation).decode


def _by_pydantic(annotation: Any) -> tuple[Callable[[bytes], Any], Callable[[bytes], Any]]:
    import pydantic
    import pydantic_core

    try:
        adapter: Any = pydantic.TypeAdapter(annotation)
    except Exception as exc:  # pydantic has many ways to say that it does not know a type
        raise TypeError(f"pydantic cannot decode it: {str(exc).splitlines()[0]}") from exc

    def from_msgpack(body: bytes) -> Any:
        plain = msgspec.msgpack.decode(body)
        try:
            # Through JSON: strict models take texts for times and numbers from JSON only.
            text = pydantic_core.to_json(plain, inf_nan_mode="constants")
        except (ValueError, TypeError):  # JSON cannot hold it, such as bytes that are no UTF-8
            return adapter.validate_python(plain)
        return adapter.validate_json(text)

    return adapter.validate_json, from_msgpack


def _of_pydantic(exc: ValueError) -> str | None:
    """Return the first complaints of a pydantic error, without the values; None for an error of another kind."""
    listed = getattr(exc, "errors", None)
    if type(exc).__module__ != "pydantic_core._pydantic_core" or listed is None:
        return None
    found = listed(include_url=False, include_context=False, include_input=False)
    told = [f"{one['msg']}{_place(one['loc'])}" for one in found[:3]]
    return "; ".join(told) + (f"; and {len(found) - 3} more" if len(found) > 3 else "")


def _place(steps: tuple[int | str, ...]) -> str:
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return f" - at `${path}`" if path else ""


def _is_pydantic(kind: object) -> bool:
    return isinstance(kind, type) and hasattr(kind, "__pydantic_validator__")


def _unknown_to_msgspec(annotation: Any) -> Iterator[Any]:
    return (node.cls for node in _nodes(annotation) if isinstance(node, msgspec.inspect.CustomType))


def _classes(annotation: Any) -> Iterator[Any]:
    return (getattr(node, "cls", None) for node in _nodes(annotation))


def _nodes(annotation: Any) -> Iterator[Any]:
    """Yield the description of a type, as msgspec sees the type, and of all types in it."""
    known: set[int] = set()
    open_: list[Any] = [msgspec.inspect.type_info(annotation)]
    while open_:
        node = open_.pop()
        if isinstance(node, tuple):
            open_.extend(node)
        elif isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field) and id(node) not in known:
            known.add(id(node))
            if isinstance(node, msgspec.inspect.Type):
                yield node
            open_.extend(getattr(node, name) for name in node.__struct_fields__ if name != "default")
