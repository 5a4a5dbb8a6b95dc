"""`emq.testing.contract` in an outsider's project, by the example of docs/adapters.md: a good adapter, and bad ones."""

from __future__ import annotations

import ast
import os
import pathlib
import re
import subprocess
import sys

import pytest

from emq.testing import contract
from emq_testing import contract as of_modules
from support.python_path import python_path

ROOT = pathlib.Path(__file__).parents[2]
SUITE = ROOT / "tools/emq_testing/contract"
PAGE = (ROOT / "docs/adapters.md").read_text()
FILES = dict(re.findall(r'```python title="(\w+\.py)"\n(.*?)```', PAGE, re.DOTALL))
PLUGINS = ("-p", "pytest_asyncio.plugin", "-p", "_hypothesis_pytestplugin")
SOME = ("TestLanes", "TestPublishedIds", "TestSeals", "TestSortedResting", "TestSortedWaking", "TestStoreIdentity")
"""Classes whose tests have marks of their own, asynchronous fixtures or parameters."""


ADAPTER = FILES["tiny_store.py"]


def run(directory: pathlib.Path, *arguments: str, adapter: str = ADAPTER) -> str:
    """Run pytest in a directory on the page's file of tests, and an adapter; return what it prints."""
    (directory / "tiny_store.py").write_text(adapter)
    (directory / "test_tiny_store.py").write_text(FILES["test_tiny_store.py"])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PLUGINS, *arguments]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": python_path(ROOT)}
    ended = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=300)
    return ended.stdout + ended.stderr


def every_test() -> set[str]:
    """Return all tests in the files of the suite, as "TestLanes::test_..."."""
    found = set()
    for file in SUITE.glob("*.py"):
        named = "".join(word.title() for word in file.stem.split("_"))
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found.add(f"Test{named}::{node.name}")
    return found


def test_a_good_adapter_passes(tmp_path: pathlib.Path) -> None:
    said = run(tmp_path, "-k", " or ".join(SOME))
    assert re.search(r"\n(\d\d\d) passed, \d+ deselected", said), said
    assert "failed" not in said
    assert "error" not in said


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return await self._lanes.settle(settles)", "return [True for _ in settles]"),
        ("return await self._lanes.settle(settles)", "return (await self._lanes.settle(settles))[::-1]"),
        (
            "return await self._lanes.settle(settles)",
            "return await self._lanes.settle([s._replace(epoch=None) for s in settles])",
        ),
    ],
)
def test_an_adapter_that_loses_or_confuses_verdicts_or_ignores_the_fence_fails(
    before: str, after: str, tmp_path: pathlib.Path
) -> None:
    assert ADAPTER.count(before) == 1
    said = run(tmp_path, "-k", "TestLanes", adapter=ADAPTER.replace(before, after))
    assert re.search(r"\n\d+ failed, \d+ passed", said), said


def test_an_outsider_gets_every_test_and_this_project_runs_the_same(tmp_path: pathlib.Path) -> None:
    said = run(tmp_path, "--collect-only")
    collected = {line.partition("::")[2].partition("[")[0] for line in said.splitlines() if "::" in line}
    assert collected == every_test()
    for name in of_modules.MODULES:
        mine = ROOT / f"tests/contract/test_{name}.py"
        assert mine.read_text() == f"from emq_testing.contract.{name} import *  # noqa: F403\n"


def test_the_page_lists_what_a_store_can_lack() -> None:
    assert re.findall(r"^\| `([A-Z_]+)` \|", PAGE, re.MULTILINE) == [each.name for each in contract.Can]
