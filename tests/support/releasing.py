"""`scripts/release.py` as a module."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", Path(__file__).parents[2] / "scripts/release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release = _loaded()
