"""Stands for deques that hold nothing yet: an empty deque takes 760 bytes, and each topic of a host has five."""

from __future__ import annotations

from collections import deque
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


class _Nothing(deque[Any]):
    """Always empty. Whoever adds something must first put a deque of his own in its place."""

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("NOTHING takes nothing; put a deque in its place first")

    append = appendleft = extend = extendleft = insert = __iadd__ = _refuse


NOTHING = _Nothing()


def writable(holder: deque[T]) -> deque[T]:
    """Return a deque to add to: a new one in place of `NOTHING`, else the same."""
    return deque() if holder is NOTHING else holder
