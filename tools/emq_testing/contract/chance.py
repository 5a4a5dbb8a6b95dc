"""The sequences that hypothesis tries: the same in each run, unless the environment has EMQ_FUZZ=1."""

from __future__ import annotations

import os
import zlib
from typing import Any, TypeVar

from hypothesis import seed
from hypothesis.stateful import RuleBasedStateMachine

M = TypeVar("M", bound=RuleBasedStateMachine)

FUZZ = os.environ.get("EMQ_FUZZ") == "1"


def variant(machine: type[M], name: str, **attributes: Any) -> type[M]:
    """Return the machine with these class attributes; each name has sequences of its own."""
    made = type(machine.__name__, (machine,), attributes)
    if FUZZ:
        return made
    seeded: type[M] = seed(zlib.crc32(f"{machine.__name__} {name}".encode()))(made)
    return seeded
