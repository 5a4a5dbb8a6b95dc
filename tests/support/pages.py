"""Runs a page as its reader would; or its Python snippets alone, for tests that look at what a page's program made."""

from __future__ import annotations

import inspect
import os
import pathlib
import re
import subprocess
import sys
import types
from collections.abc import Mapping
from typing import Any

from support.python_path import python_path

ROOT = pathlib.Path(__file__).parents[2]


def session(
    page: pathlib.Path, directory: pathlib.Path, more: Mapping[str, str] | None = None, *, limit_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run the blocks of a page in this directory, with no settings from outside.

    Args:
        more: variables of the environment.
        limit_s: seconds that the page may take.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EMQ_")}
    environment |= {
        "PYTHONPATH": python_path(ROOT, ROOT / "tests"),
        "PATH": os.pathsep.join([str(pathlib.Path(sys.executable).parent), environment.get("PATH", "")]),
        "HOME": str(directory),
        **(more or {}),
    }
    command = [sys.executable, "-m", "support.page_session", str(page)]
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
    )


def snippets(page: str) -> list[str]:
    """Return the Python snippets of a page, such as `docs/payloads.md`, in order."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def module_of(snippet: str) -> Any:
    """Run a snippet as a module of its own."""
    module = types.ModuleType("snippet")
    exec(compile(snippet, "snippet", "exec", dont_inherit=True), vars(module))
    return module


async def run(page: str) -> dict[str, Any]:
    """Run all Python snippets of a page as one module, then await its `test_` functions; return the module's names."""
    name = "page_" + pathlib.Path(page).stem
    module = types.ModuleType(name)
    sys.modules[name] = module
    try:
        for snippet in snippets(page):
            exec(compile(snippet, page, "exec"), vars(module))
        for test in [value for key, value in vars(module).items() if key.startswith("test_")]:
            assert inspect.iscoroutinefunction(test)
            await test()
    finally:
        del sys.modules[name]
    return vars(module)
