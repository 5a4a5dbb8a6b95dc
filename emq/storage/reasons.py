"""The reason of a failed attempt as stores keep it: the error, and the place in the code where it was raised.

An example: `ConnectionError: no route (at shop.py:14 in deliver)`. Older versions of EMQ read all of it as the reason.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_PLACE = re.compile(r" \(at (\S[^\n]*:\d+ in [^\n]+)\)\Z")
_OPEN = " (at "


class Reason(NamedTuple):
    """Attributes:
    text: the error.
    place: `file:line in function`; empty if unknown.
    """

    text: str
    place: str = ""


def joined(text: str, place: str) -> str:
    """Return a reason with its place, for a store."""
    return f"{text}{_OPEN}{place})" if place else text


def parted(stored: str) -> Reason:
    """Return a stored reason in its parts."""
    start = stored.rfind(_OPEN)
    found = _PLACE.match(stored, start) if start >= 0 else None
    return Reason(stored[:start], found[1]) if found else Reason(stored)
