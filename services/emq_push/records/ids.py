"""Ids of the push service: their kind, then the time of their making, so that they sort by it."""

from __future__ import annotations

import itertools
import os
import secrets
import weakref
from typing import ClassVar, Literal

Kind = Literal["msg", "ep", "key", "rpl", "aud", "bat"]

_LAST = (1 << 20) - 1


class Ids:
    """Makes ids that are unique across processes, such as `msg_0644b1c3d2e5f0000a1h3kZ8wQ`.

    An id has the microseconds since the epoch in 14 hex digits, a counter in 5, and 8 random characters (48 bits) of
    this source, which keep two processes apart. A forked child begins with other random characters.
    """

    _all: ClassVar[weakref.WeakSet[Ids]] = weakref.WeakSet()

    def __init__(self) -> None:
        self._begin()
        Ids._all.add(self)

    def _begin(self) -> None:
        self._source = secrets.token_urlsafe(6).replace("-", "A")
        self._count = itertools.count()

    def next(self, kind: Kind, now_us: int) -> str:
        """Return a new id.

        Args:
            now_us: microseconds since the epoch.
        """
        return f"{kind}_{now_us:014x}{next(self._count) & _LAST:05x}{self._source}"

    @classmethod
    def in_child(cls) -> None:
        for one in list(cls._all):
            one._begin()


os.register_at_fork(after_in_child=Ids.in_child)
