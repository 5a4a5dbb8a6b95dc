"""The Python snippets of the documentation, run as a reader would run them."""

from __future__ import annotations

import pathlib
import re
from types import ModuleType
from typing import Any

DOCS = pathlib.Path(__file__).parents[2] / "docs"


def snippets(page: str) -> list[str]:
    """Return the Python snippets of a page of docs/."""
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def module_of(snippet: str) -> Any:
    """Run a snippet as a module of its own."""
    module = ModuleType("snippet")
    exec(compile(snippet, "snippet", "exec", dont_inherit=True), module.__dict__)
    return module
