"""Where a process that a test starts finds the packages of its checkout, whichever checkout is installed."""

from __future__ import annotations

import os
import pathlib

FOLDERS = ("services", "spark", "storage_adapters", "tools")
"""Those that hold packages, beside the root."""


def python_path(root: pathlib.Path, *more: pathlib.Path) -> str:
    """Return the PYTHONPATH of a process that imports the product from the checkout at `root`, then `more`."""
    return os.pathsep.join(map(str, (root, *(root / name for name in FOLDERS), *more)))
