"""What works on the Python of the tests, and not on an older one that EMQ allows."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_enum_has_an_empty_tuple_as_a_value() -> None:
    """Before Python 3.11.4 the value would be a bare object: on Debian 12, every call to Redis failed."""
    found = []
    for file in [
        file
        for folder in ("emq", "services", "spark", "storage_adapters", "tools")
        for file in ROOT.glob(f"{folder}/**/*.py")
    ]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and any("Enum" in ast.unparse(base) for base in node.bases):
                values = [part.value for part in node.body if isinstance(part, ast.Assign)]
                found += [f"{file}:{v.lineno}" for v in values if isinstance(v, ast.Tuple) and not v.elts]
    assert found == []
