"""Styles of signatures: which headers carry them, and what they cover.

A receiver that took deliveries from another sender goes on checking what that sender sent, so an endpoint may have that
sender's style. A style is a text: headers with semicolons between them, each `NAME: VALUE` or `NAME: VALUE of CONTENT`.
VALUE has places for `{id}`, `{timestamp}`, `{event}` and signatures, CONTENT for `{id}`, `{timestamp}` and `{payload}`.
A part of VALUE in brackets, `[PART|SEPARATOR]`, is there once for each secret, with the separator between.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from emq_push import endpoint_values, signature

STANDARD = "standard"
SIGNING = "push.signing"
STYLES = {
    STANDARD: "webhook-signature: {standard}",
    "svix": "svix-id: {id}; svix-timestamp: {timestamp}; svix-signature: {standard}",
    "stripe": "Stripe-Signature: t={timestamp},[v1={hex}|,] of {timestamp}.{payload}",
    "github": "X-Hub-Signature-256: sha256={hex} of {payload}; X-GitHub-Delivery: {id}; X-GitHub-Event: {event}",
}
"""The styles that have names: Standard Webhooks, and the headers that three senders document for their receivers."""

MAX_LENGTH = 1_000
"""Most characters of a style."""
MOST_HEADERS = 8
MOST_SIGNATURES = 4
"""Most places for signatures in a style. Each one reads the whole payload, for each secret, on a host's event loop."""
LEAST_CHARACTERS, MOST_CHARACTERS = 8, 256
"""Length of a secret whose text is the key."""

_DIGESTS: Mapping[str, tuple[str, Callable[[bytes], str]]] = {
    "hex": ("sha256", bytes.hex),
    "base64": ("sha256", lambda digest: base64.b64encode(digest).decode()),
    "sha512_hex": ("sha512", bytes.hex),
    "sha512_base64": ("sha512", lambda digest: base64.b64encode(digest).decode()),
    "sha1_hex": ("sha1", bytes.hex),
}
"""Places for signatures of CONTENT (HMAC), by the hash and by how the signature is written."""
_FACTS = ("id", "timestamp", "event")
_PLACE = re.compile(r"\{([a-z0-9_]+)\}")
_HEADER = re.compile(r"(?P<name>[^\s:]+): (?P<value>.+?)(?: of (?P<content>\S+))?")
_VALUE = re.compile(r"(?P<before>[^][]*)(?:\[(?P<each>[^][|]+)\|(?P<between>[^][|{}]*)\](?P<after>[^][]*))?")


class Signable(NamedTuple):
    """What there is to sign, and to name in headers.

    Attributes:
        id: the value of `webhook-id`.
        timestamp_s: the value of `webhook-timestamp`.
        event: the type of the event, as a header can carry it; empty if there is none.
    """

    id: str
    timestamp_s: int
    payload: bytes
    event: str = ""


Signed = Callable[[Signable], dict[str, str]]
"""Returns the headers by which a receiver checks a request."""
_Fill = Callable[[Signable, int], str]
"""Returns the text for one place of a value, by the secret of this number, if the text depends on a secret."""


def signed(style: str, secrets: str) -> Signed:
    """Return what signs requests.

    Args:
        style: the name of a style, or a style.
        secrets: with spaces between them, the newest first. Their text is the key, but that of the place `{standard}`
            has the form of Standard Webhooks; see `signature.signers`.

    Raises:
        ValueError: the style or a secret is not one; the text says why, and does not show the secret.
    """
    text = STYLES.get(style, style)
    headers = [_header(part, secrets) for part in _parts(text)]
    if style not in STYLES:
        seen = dict[str, str]()
        for name, _ in headers:
            seen[endpoint_values.header_name(SIGNING, name, seen)] = ""

    def sign(of: Signable) -> dict[str, str]:
        return {name: value for name, fill in headers if (value := fill(of))}  # there may be no event to name

    return sign


def header_names(style: str) -> list[str]:
    """Return the names of a style's headers."""
    return [part.partition(":")[0] for part in STYLES.get(style, style).split("; ")]


def _parts(text: str) -> Sequence[str]:
    if len(text) > MAX_LENGTH or not (text.isascii() and text.isprintable()):
        raise ValueError(f"{SIGNING} must be printable ASCII, at most {MAX_LENGTH} characters")
    parts = text.split("; ")
    if len(parts) > MOST_HEADERS:
        raise ValueError(f"{SIGNING} has {len(parts)} headers; at most {MOST_HEADERS}")
    values = [found["value"] if (found := _HEADER.fullmatch(part)) else part for part in parts]
    count = sum(place in _DIGESTS or place == STANDARD for value in values for place in _PLACE.findall(value))
    if count > MOST_SIGNATURES:
        raise ValueError(f"{SIGNING} has {count} places for signatures; at most {MOST_SIGNATURES}")
    if not count:
        raise ValueError(
            f"{SIGNING} {text!r} has no place for a signature; give {', '.join(STYLES)}, or a style of your own such "
            "as 'X-Signature: {hex} of {timestamp}.{payload}'"
        )
    return parts


def _header(part: str, secrets: str) -> tuple[str, Callable[[Signable], str]]:
    """Return the name of a header, and what writes its value."""
    found = _HEADER.fullmatch(part)
    value = found and _VALUE.fullmatch(found["value"])
    if not (found and value):
        raise ValueError(f"{SIGNING} has the part {part!r}; write NAME: VALUE, or NAME: VALUE of CONTENT")
    content = found["content"] or ""
    if content and (times := _PLACE.findall(content).count("payload")) != 1:
        wrong = f"{times} times {{payload}}; write it once" if times else "no {payload}; add it"
        raise ValueError(f"{SIGNING} signs {content!r}, which has {wrong}, or anybody could send anything")
    if content and not _DIGESTS.keys() & {*_PLACE.findall(found["value"])}:
        raise ValueError(f"{SIGNING} has the part {part!r}, whose value has no place for a signature of {content!r}")
    pieces = [_pieces(text, content, secrets) for text in (value["before"], value["each"] or "", value["after"] or "")]
    before, each, after = pieces

    count, between = len(secrets.split()) if each else 0, value["between"] or ""

    def fill(of: Signable) -> str:
        repeated = between.join([_joined(each, of, i) for i in range(count)])
        whole = _joined(before, of, 0) + repeated + _joined(after, of, 0)
        return whole.strip()  # spaces around a value do not arrive, and there may be no event between them

    if len(before) == 1 and not isinstance(alone := before[0], str) and not (each or after):
        return found["name"], lambda of: alone(of, 0)
    return found["name"], fill


def _joined(pieces: Sequence[str | _Fill], of: Signable, i: int) -> str:
    """Return a text with the `i`-th secret's signatures in their places."""
    return "".join([piece if isinstance(piece, str) else piece(of, i) for piece in pieces])


def _pieces(text: str, content: str, secrets: str) -> Sequence[str | _Fill]:
    """Return the pieces of a text: plain ones, and what fills the places between them."""
    found = list[str | _Fill]()
    for i, piece in enumerate(_PLACE.split(text)):
        if i % 2:
            found.append(_fill(piece, content, secrets))
        elif piece:
            found.append(_plain(piece))
    return found


def _plain(text: str) -> str:
    if "{" in text or "}" in text:
        places = ", ".join(f"{{{name}}}" for name in (*_FACTS, *_DIGESTS))
        raise ValueError(f"{SIGNING} has a brace that belongs to no place; places of a value are {places}")
    return text


def _fill(place: str, content: str, secrets: str) -> _Fill:
    match place:
        case "id":
            return lambda of, _: of.id
        case "timestamp":
            return lambda of, _: str(of.timestamp_s)
        case "event":
            return lambda of, _: of.event
        case "standard":
            signers = signature.signers(secrets)
            return lambda of, _: signature.signature(signers, of.id, of.timestamp_s, of.payload)
    if place not in _DIGESTS:
        known = ", ".join((*_FACTS, *_DIGESTS))
        raise ValueError(f"{SIGNING} has the place {{{place}}}, which a value cannot have; known are {known}")
    if not content:
        raise ValueError(
            f"{SIGNING} does not say what {{{place}}} signs; write for instance: of {{timestamp}}.{{payload}}"
        )
    name, written = _DIGESTS[place]
    keyed = [hmac.new(_key(secret), digestmod=name) for secret in _texts(secrets)]
    covered = _covered(content)

    def sign(of: Signable, i: int) -> str:
        digest = keyed[i].copy()
        digest.update(covered(of))
        return written(digest.digest())

    return sign


def _texts(secrets: str) -> Sequence[str]:
    texts = secrets.split()
    if not 1 <= len(texts) <= signature.MOST_SECRETS:
        raise ValueError(f"push.secret must have 1 to {signature.MOST_SECRETS} secrets, separated by spaces")
    return texts


def _key(secret: str) -> bytes:
    if signature.kind_of(secret) == "ed25519":
        raise ValueError(f"push.secret has a private key; {SIGNING} must be {STANDARD} or svix for ed25519")
    if not (secret.isascii() and secret.isprintable() and LEAST_CHARACTERS <= len(secret) <= MOST_CHARACTERS):
        raise ValueError(
            f"push.secret has a secret of {len(secret)} characters; give {LEAST_CHARACTERS} to {MOST_CHARACTERS} "
            "printable ASCII characters without spaces"
        )
    return secret.encode()


def _covered(content: str) -> Callable[[Signable], bytes]:
    """Return what writes the bytes that a signature covers."""
    pieces = _PLACE.split(content)
    for i, piece in enumerate(pieces):
        if i % 2 and piece not in ("id", "timestamp", "payload"):
            raise ValueError(f"{SIGNING} signs {{{piece}}}, which is not known; known are id, timestamp, payload")
        if not i % 2:
            _plain(piece)

    def cover(of: Signable) -> bytes:
        values = {"id": of.id.encode(), "timestamp": b"%d" % of.timestamp_s, "payload": of.payload}
        return b"".join([values[piece] if i % 2 else piece.encode() for i, piece in enumerate(pieces)])

    return cover
