"""Masks secrets in what endpoints answer: an endpoint may repeat the request that it got."""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "***"
LEAST_CHARACTERS = 4
"""A shorter secret is not masked: it may be part of any word."""

_COMMON = re.compile(r"\b(whsec_|whsk_|(?:Bearer|Basic)\s+)[A-Za-z0-9+/=_.~-]+", re.IGNORECASE)


class Masking:
    """Masks an endpoint's own secrets, and what looks like a secret.

    Args:
        secrets: the endpoint's.
    """

    __slots__ = ("_own",)

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        longest_first = sorted({s for s in secrets if len(s) >= LEAST_CHARACTERS}, key=len, reverse=True)
        self._own = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def __call__(self, text: str) -> str:
        """Return the text with its secrets masked."""
        if self._own is not None:
            text = self._own.sub(MASK, text)
        return _COMMON.sub(rf"\1{MASK}", text)
