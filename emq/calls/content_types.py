"""The content types in which EMQ encodes and decodes payloads, and the header that names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

HEADER = "content-type"
"""Header of a message with the content type of its payload. EMQ writes the header for typed payloads only."""

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"

_JSON = frozenset((JSON, "text/json"))
_MSGPACK = frozenset((MSGPACK, "application/x-msgpack", "application/vnd.msgpack"))

Format = Literal["json", "msgpack"]


def format_of(content_type: str) -> Format | None:
    """Return the format that a content type names; None for a format that EMQ neither writes nor reads.

    Parameters such as `charset=utf-8` do not matter. `application/vnd.acme+json` is JSON.
    """
    if content_type == JSON:
        return "json"
    name = content_type.partition(";")[0].strip().lower()
    if name in _JSON or name.endswith("+json"):
        return "json"
    return "msgpack" if name in _MSGPACK or name.endswith("+msgpack") else None


def given(headers: Mapping[str, str] | None) -> str | None:
    """Return the content type that headers name, in upper or lower case; None if they name no content type."""
    if not headers:
        return None
    if (found := headers.get(HEADER)) is not None:
        return found
    return next((v for name, v in headers.items() if isinstance(name, str) and name.lower() == HEADER), None)
