"""Reads bodies with one thing or a list of things, and describes them for the OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from emq_web.problems import Problem
from emq_web.scheduling import schemas

T = TypeVar("T", bound=msgspec.Struct)

_AT = re.compile(r" - at (`key` in )?`\$(?P<path>[^`]*)`$")
_NAMES = re.compile(r"[^.\[\]]+")
_PATTERN = re.compile(r"Expected `str` matching regex '(?P<regex>.*)'")
_FIELD = re.compile(r"field `(?P<name>[^`]*)`")


class OneOrMany(Generic[T]):
    """Reads bodies.

    Args:
        one: the struct of one thing.
        many: a struct whose only field is the list of the things.
        name: of that field.
    """

    def __init__(self, one: type[T], many: type[msgspec.Struct], name: str) -> None:
        self._types = one, many
        self._name = name
        self._one = msgspec.json.Decoder(one).decode
        self._many = msgspec.json.Decoder(many).decode
        listed = msgspec.defstruct("Listed", [(name, list[msgspec.Raw])])
        self._listed = msgspec.json.Decoder(listed).decode
        self._begin = f'{{"{name}"'.encode()

    def read(self, body: bytes) -> tuple[Sequence[T], bool]:
        """Return the things of a body, and whether it has a single one.

        Raises:
            Problem: the body is not JSON, or does not fit.
        """
        try:
            if not body.isascii():
                body.decode()  # payloads are not looked into otherwise
            if body.lstrip(b" \t\r\n").startswith(self._begin):
                return getattr(self._many(body), self._name), False
            try:
                return [self._one(body)], True
            except msgspec.ValidationError:
                if not self._has_list(body):
                    raise
            return getattr(self._many(body), self._name), False
        except msgspec.ValidationError as exc:
            raise problem_of(exc) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Problem(400, "invalid_json", "the body is not valid JSON") from None

    def _has_list(self, body: bytes) -> bool:
        try:
            self._listed(body)
        except msgspec.ValidationError:
            return False
        return True

    def schema(self) -> dict[str, Any]:
        """Return the schema of the body."""
        # Generators of clients make simpler code for `anyOf` than for `oneOf`, and no body fits both.
        return {"anyOf": [schemas.of(each) for each in self._types]}


def problem_of(exc: msgspec.ValidationError) -> Problem:
    """Return the problem for a body that does not fit, with the pointer to the wrong value."""
    text = str(exc)
    found = _AT.search(text)
    path = "" if found is None else found["path"].partition("[...]")[0]
    text = _AT.sub("", text)
    if (field := _FIELD.search(text)) is not None:
        path += f".{field['name']}"
    pointer = "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in _NAMES.findall(path))
    detail = f"{pointer.lstrip('/') or 'the body'}: {_in_words(text)}"
    return Problem(422, "invalid_request", detail[:500], pointer=pointer[:500])


def _in_words(text: str) -> str:
    """Return msgspec's error in the words of JSON."""
    if text.startswith("Object missing required field"):
        return "is missing; give it a value"
    if text.startswith("Object contains unknown field"):
        return "there is no such field; /v1/openapi.json has those that there are"
    if (pattern := _PATTERN.fullmatch(text)) is not None:
        return "must match " + pattern["regex"].replace("\\\\", "\\").replace("\\Z", "$")
    return f"{text[:1].lower()}{text[1:]}"
