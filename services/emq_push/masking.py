"""Masks secrets in the answers of endpoints, which may repeat a request."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Sequence

MASK = "***"
LEAST_CHARACTERS = 4
"""A shorter secret is not masked: it may be part of any word."""

_COMMON = re.compile(r"\b(whsec_|whsk_|(?:Bearer|Basic)\s+)[A-Za-z0-9+/=_.~-]+", re.IGNORECASE)
_SCHEMES = ("bearer", "basic", "token")


def secrets_of(value: str) -> Sequence[str]:
    """Return the secrets in a header's value: all of it, what follows the scheme, and the password of `Basic`."""
    scheme, _, rest = value.partition(" ")
    if scheme.lower() not in _SCHEMES:
        return [value]
    found = [value, rest.strip()]
    if scheme.lower() == "basic":
        try:
            pair = base64.b64decode(rest, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return found
        found.append(pair.partition(":")[2])
    return found


class Masking:
    """Masks an endpoint's own secrets, and texts that look like secrets.

    Args:
        secrets: the endpoint's.
    """

    __slots__ = ("_all", "_own")

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        longest_first = sorted({s for s in secrets if len(s) >= LEAST_CHARACTERS}, key=len, reverse=True)
        self._all = longest_first
        self._own = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def __call__(self, text: str) -> str:
        """Return the text with its secrets masked. The text may be cut off within a secret."""
        if self._own is not None:
            text = self._own.sub(MASK, text)
        begin = min((_begun(text, secret) for secret in self._all), default=len(text))
        text = text if begin == len(text) else text[:begin] + MASK
        return _COMMON.sub(rf"\1{MASK}", text)


def _begun(text: str, secret: str) -> int:
    """Return the begin of a secret that goes on beyond the end of the text; else the text's length."""
    at = text.find(secret[:LEAST_CHARACTERS], max(0, len(text) - len(secret)))
    while at >= 0:
        if secret.startswith(text[at:]):
            return at
        at = text.find(secret[:LEAST_CHARACTERS], at + 1)
    return len(text)
