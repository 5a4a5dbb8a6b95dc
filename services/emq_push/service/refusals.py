"""Refusals of the push service. Each has a stable code, for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from emq.runtime import errors

T = TypeVar("T", bound=msgspec.Struct)

IN_PROGRESS = "request_in_progress"
"""The code of a refusal while an earlier request of the same key or ids is under way; a repeat may do."""


class Refused(errors.EMQError):
    """The service refuses a call; nothing was changed.

    Args:
        code: stable, such as `unknown_tenant`.
        text: one line that names the value and the remedy.
        pointer: JSON pointer to the wrong value in the body, such as `/qps`; empty for none.
    """

    def __init__(self, code: str, text: str, pointer: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.pointer = pointer


class NotFound(Refused):
    """There is no such thing, or the caller must not know of it. Correct the id."""


def unknown_endpoint(endpoint: str) -> NotFound:
    return NotFound("unknown_endpoint", f"the tenant has no endpoint {endpoint[:80]!r}")


class Conflict(Refused):
    """The call does not fit the present state. Read the state again."""


class OtherVersion(Refused):
    """The caller wants to change an old version. Read it again."""

    def __init__(self, what: str) -> None:
        super().__init__("other_version", f"{what} was changed meanwhile, or is not there; read it again")


def check_version(what: str, expected: int | None, found: int) -> None:
    """Raise `OtherVersion` unless the version is the expected one; 0 stands for nothing, None for any."""
    if expected is not None and expected != found:
        raise OtherVersion(what)


class Invalid(Refused):
    """A value is wrong. Correct it."""


def converted(values: Mapping[str, Any], kind: type[T]) -> T:
    """Return settings as a struct. Raises `Invalid`, whose text shows no value, since it may be a secret."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as exc:
        raise Invalid("invalid_request", str(exc)) from None


class TryAgain(Refused):
    """The store or the database failed on the way. Repeat the call; a repeat does no harm."""
