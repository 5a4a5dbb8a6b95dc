"""The Python snippets of a page, for tests that look at more than `page_blocks`: at what a page's program has made."""

from __future__ import annotations

import inspect
import pathlib
import re
import sys
import types
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]


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
