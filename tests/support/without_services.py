"""The engine's tests alone, with what is built on it out of reach: EMQ_ENGINE_ALONE=1, which `make engine` sets.

The commands, the trace, the proof, the stores, the test kit and the servers stay: no test could do without them.
"""

from __future__ import annotations

import ast
import functools
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[2]
TESTS = ROOT / "tests"

FOLDERS = {"support": TESTS, "bench": ROOT}
"""The packages that tests use beside the product, with the folders in which they are."""

HIDDEN = frozenset(
    path.parent.name for folder in ("services", "spark") for path in ROOT.glob(f"{folder}/*/__init__.py")
) | {"emq_demo"}

IS_ALONE = bool(os.environ.get("EMQ_ENGINE_ALONE"))


def hide() -> None:
    """Make the packages below services/ and spark/ as if they were not installed; call this before one is imported."""
    hidden = {str(ROOT / "services"), str(ROOT / "spark")}
    sys.path[:] = [path for path in sys.path if path not in hidden]
    sys.path_importer_cache.clear()


def needs_services(path: pathlib.Path) -> bool:
    """Return True if a file of tests imports what is hidden, itself or through modules of `support` or `bench`."""
    seen, waiting = {path}, [path]
    while waiting:
        for name in _imported(waiting.pop()):
            package, *rest = name.split(".")
            if package in HIDDEN:
                return True
            if package not in FOLDERS:
                continue
            helper = FOLDERS[package].joinpath(package, *rest).with_suffix(".py")
            if helper not in seen and helper.exists():
                seen.add(helper)
                waiting.append(helper)
    return False


@functools.cache
def _imported(path: pathlib.Path) -> frozenset[str]:
    """Return what a file imports when it runs, with the names taken from it."""
    names = set[str]()
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)})
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            waiting.extend(ast.iter_child_nodes(node))
    return frozenset(names)
