"""The contract of stores, as tests: an adapter that passes them keeps what the protocols in `emq/storage/` promise.

A file of tests of your own, with `pytest` and `pytest-asyncio`:

    from emq.testing.contract import *

    @pytest.fixture
    def target() -> Target:
        return Target("mine", lambda environment: open_store("mine://host", environment), EVERYTHING - {Can.REPLICATE})

Each module of this package becomes a class, such as `TestLanes`. See docs/adapters.md.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from emq_testing.contract import fixtures
from emq_testing.contract.target import EVERYTHING, PUT_GET, Can, Target

MODULES = (
    "bounds",
    "fold_sandbox",
    "holding",
    "lane_priorities",
    "lane_waiting",
    "lanes",
    "log",
    "log_control",
    "lost_messages",
    "mixed_batches",
    "models",
    "published_ids",
    "seals",
    "sorted",
    "sorted_histories",
    "sorted_merging",
    "sorted_models",
    "sorted_resting",
    "sorted_settling",
    "sorted_waking",
    "store_identity",
    "waking",
)


def _suite(module: Any) -> type:
    """Return a class with the tests of a module; pytest-asyncio runs them in its strict mode, too."""
    tests = {name: test for name, test in vars(module).items() if name.startswith("test_")}
    marked = {n: pytest.mark.asyncio(t) if inspect.iscoroutinefunction(t) else t for n, t in tests.items()}
    named = "".join(word.title() for word in module.__name__.rpartition(".")[2].split("_"))
    members = {name: staticmethod(test) for name, test in marked.items()}
    return type(
        f"Test{named}", (), {**members, "pytestmark": getattr(module, "pytestmark", []), "__doc__": module.__doc__}
    )


_suites = [_suite(importlib.import_module(f"{__name__}.{name}")) for name in MODULES]
_fixtures = {name: each for name, each in vars(fixtures).items() if isinstance(each, type(fixtures.needs))}
globals().update({suite.__name__: suite for suite in _suites}, **_fixtures)

__all__ = ["EVERYTHING", "PUT_GET", "Can", "Target"]
__all__ += [*_fixtures, *(suite.__name__ for suite in _suites)]
