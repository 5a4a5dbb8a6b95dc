"""A promise that was broken."""

from __future__ import annotations

from typing import NamedTuple


class Violation(NamedTuple):
    """Attributes:
    promise: its letter, as in the design; or "run" for what must never happen at all.
    group: the group concerned, or "".
    """

    promise: str
    group: str
    text: str
