"""Tests of handlers: the real engine on the memory store, in virtual time. See docs/testing.md."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emq_testing.database import InlineDatabase
    from emq_testing.harness import Harness
    from emq_testing.left import Left, NotSettled
    from emq_testing.record import Failure, Published
    from emq_testing.virtual_time import VirtualLoop

__all__ = [
    "Failure",
    "Harness",
    "InlineDatabase",
    "Left",
    "NotSettled",
    "Published",
    "VirtualLoop",
]

_HOMES = {
    "Failure": "record",
    "Harness": "harness",
    "InlineDatabase": "database",
    "Left": "left",
    "NotSettled": "left",
    "Published": "record",
    "VirtualLoop": "virtual_time",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: pytest loads the plugin in this package in every session."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
