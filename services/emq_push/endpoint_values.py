"""Reads the values of a topic's `push.*` attributes. Each function raises `ValueError` with a line that names one."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping

import yarl

MIN_TIMEOUT_S = 0.1
MAX_TIMEOUT_S = 300.0
MAX_URL_LENGTH = 4096
MAX_NAME_LENGTH = 253
MAX_HEADER_LENGTH = 4096
MAX_HEADERS_LENGTH = 16_384
"""Most characters of one extra header, and of all together; many servers refuse more than 8 to 16 KiB."""

HEADER_PREFIX = "push.headers."
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.IGNORECASE)
_SPACES_AND_CONTROLS = re.compile(r"[\s\x00-\x1f\x7f]")

_RESERVED = frozenset(
    (
        *("connection", "content-encoding", "content-length", "content-type", "expect", "host", "keep-alive"),
        *("proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "user-agent"),
    )
)
"""Headers that frame the request or that EMQ writes itself."""
_RESERVED_PREFIXES = ("emq-", "webhook-")


def url(attribute: str, text: str) -> yarl.URL:
    """Return a URL of HTTP."""
    found = address(attribute, text)
    if found.scheme not in ("http", "https"):
        raise ValueError(f"{_named(attribute, text)} must start with http:// or https://")
    if not found.host:
        raise ValueError(f"{_named(attribute, text)} names no host")
    return found


def address(attribute: str, text: str) -> yarl.URL:
    """Return a URL of any scheme, without credentials."""
    if not text:
        raise ValueError(f"{attribute} is missing; give an http or https URL")
    if len(text) > MAX_URL_LENGTH:
        raise ValueError(f"{attribute} has {len(text)} characters; at most {MAX_URL_LENGTH}")
    named = _named(attribute, text)
    if _SPACES_AND_CONTROLS.search(text):
        raise ValueError(f"{named} contains white space or control characters; percent-encode them")
    try:
        found = yarl.URL(text, encoded=text.isascii())
        host, port = found.host, found.port
    except ValueError as exc:
        why = "its host is not a domain name" if isinstance(exc, UnicodeError) else exc
        raise ValueError(f"{named} is not a URL: {why}") from None
    if found.raw_user is not None or found.raw_password is not None:
        raise ValueError(f"{attribute} must not contain a user or password; use push.basic")
    if host and not _is_host(found.raw_host or ""):
        raise ValueError(f"{named} is not a URL: its host is not a domain name")
    if port == 0:
        raise ValueError(f"{named} has port 0; give 1 to 65535")
    return found


def _named(attribute: str, text: str) -> str:
    """Return an attribute with its value. One with a password is not shown: it would get into logs."""
    return f"{attribute} with a user or password" if "@" in text else f"{attribute} {text!r}"


def _is_host(text: str) -> bool:
    """Return True for an address of IPv6, and for a name that DNS can have (RFC 1035), with underscores."""
    name = text.removesuffix(".")
    return ":" in text or (len(name) <= MAX_NAME_LENGTH and all(map(_LABEL.fullmatch, name.split("."))))


def number(attribute: str, text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise ValueError(f"{attribute} {text!r} must be a number from {least:g} to {most:g}")
    return value


def whole_number(attribute: str, text: str, least: int, most: int) -> int:
    value = number(attribute, text, least, most)
    if not value.is_integer():
        raise ValueError(f"{attribute} {text!r} must be a whole number from {least} to {most}")
    return int(value)


def switch(attribute: str, text: str) -> bool:
    return choice(attribute, text, ("on", "off")) == "on"


def choice(attribute: str, text: str, choices: tuple[str, ...]) -> str:
    if text not in choices:
        raise ValueError(f"{attribute} {text!r} must be {' or '.join(choices)}")
    return text


def headers(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return the extra headers in attributes that begin with `HEADER_PREFIX`."""
    found: dict[str, str] = {}
    for attribute, value in attributes.items():
        found[header_name(attribute, attribute.removeprefix(HEADER_PREFIX), found)] = value
        check_value(attribute, value)
    if sum(len(name) + len(value) for name, value in found.items()) > MAX_HEADERS_LENGTH:
        raise ValueError(f"{HEADER_PREFIX}* have over {MAX_HEADERS_LENGTH} characters together")
    return found


def basic(attribute: str, text: str) -> str:
    """Return the value of `Authorization` for `user:password` (RFC 7617)."""
    user, colon, _ = text.partition(":")
    if not colon or not user or not text.isprintable():
        raise ValueError(f"{attribute} must be user:password, of printable characters")
    return f"Basic {base64.b64encode(text.encode()).decode()}"


def check_value(attribute: str, value: str) -> None:
    if not (value.isascii() and value.isprintable() and value == value.strip()) or len(value) > MAX_HEADER_LENGTH:
        # The value is not shown: it may be a secret.
        raise ValueError(
            f"the value of {attribute} must be printable ASCII without spaces around it, "
            f"at most {MAX_HEADER_LENGTH} characters"
        )


def header_name(attribute: str, name: str, others: Mapping[str, str]) -> str:
    """Return the name of a header that an attribute gives beside `others`."""
    folded, shown = name.lower(), attribute if attribute.endswith(name) else f"{attribute} with the header {name}"
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"{shown!r} is not a header name; use letters, digits and hyphens")
    if folded in _RESERVED or folded.startswith(_RESERVED_PREFIXES):
        raise ValueError(f"{shown} cannot be set; it is reserved (for the type of the body: push.content_type)")
    if folded in (other.lower() for other in others):
        raise ValueError(f"{shown} is given twice, in different case; keep one")
    return name
