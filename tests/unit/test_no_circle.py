"""No files of the product import each other in a circle, not even for types: each can be read after those below it."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = [
    ROOT / "emq",
    *sorted(
        path for part in ("services", "storage_adapters", "spark", "tools") for path in (ROOT / part).glob("emq_*")
    ),
]


def module_of(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports() -> dict[str, set[str]]:
    """Return what each module imports of the product, by module."""
    files = {module_of(path, package): path for package in PACKAGES for path in package.rglob("*.py")}
    found: dict[str, set[str]] = {}
    for module, path in files.items():
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    names.add(inner if inner in files else node.module)
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
        found[module] = (names & files.keys()) - {module}
    return found


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = imports()
    assert len(graph) > 500
    assert "emq.groups.owned" in graph["emq.dispatch.dispatcher"]
    graphlib.TopologicalSorter(graph).prepare()
