"""The pytest plugin `emq_harness`, and docs/testing.md, tried as a user's project would."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

from support.python_path import python_path

ROOT = pathlib.Path(__file__).parents[2]

PLUGIN = "emq_testing.pytest_plugin"

APP = """
import emq

app = emq.App("sqlite:////nonexistent/directory/emq.db")

@app.family("orders.*", qps=50).handler
async def deliver(message: emq.Message) -> None:
    if message.payload == b"bad":
        raise ValueError("this order is bad")
"""

PASSING = """
from shop import app

async def test_delivered(emq_harness):
    async with emq_harness(app) as t:
        await t.publish("orders.acme", b"17")
        await t.settled()
        assert len(t.delivered) == 1
"""

FAILING = PASSING.replace('b"17"', 'b"bad"')


def run(directory: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in the directory, with no plugins but those named."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": python_path(ROOT)}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120)


def written(directory: pathlib.Path, files: dict[str, str]) -> pathlib.Path:
    for name, text in files.items():
        (directory / name).write_text(text)
    return directory


def test_the_documented_example_works(tmp_path: pathlib.Path) -> None:
    module, test = re.findall(r"```python[^\n]*\n(.*?)```", (ROOT / "docs/testing.md").read_text(), re.DOTALL)
    ended = run(written(tmp_path, {"shop.py": module, "test_shop.py": test}), "-p", PLUGIN)
    assert "1 passed" in ended.stdout, ended.stdout


@pytest.mark.parametrize(
    ("plugins", "test"),
    [
        ([], PASSING),
        (["-p", "pytest_asyncio.plugin", "-o", "asyncio_mode=auto"], PASSING),
        (
            ["-p", "pytest_asyncio.plugin"],
            "import pytest\n" + PASSING.replace("async def", "@pytest.mark.asyncio\nasync def", 1),
        ),
        (["-p", "pytest_asyncio.plugin"], PASSING),
    ],
    ids=["alone", "asyncio-auto", "asyncio-strict", "asyncio-unmarked"],
)
def test_it_runs_with_and_without_another_plugin(tmp_path: pathlib.Path, plugins: list[str], test: str) -> None:
    ended = run(written(tmp_path, {"shop.py": APP, "test_shop.py": test}), "-p", PLUGIN, *plugins)
    assert "1 passed" in ended.stdout, ended.stdout
    assert "warning" not in ended.stdout


def test_a_failing_test_shows_what_the_handler_raised(tmp_path: pathlib.Path) -> None:
    ended = run(written(tmp_path, {"shop.py": APP, "test_shop.py": FAILING}), "-p", PLUGIN)
    assert "1 failed" in ended.stdout
    assert "EMQ: failed deliveries" in ended.stdout
    assert "delivered: 0; attempts that failed: 1" in ended.stdout
    assert re.search(r"<orders\.acme \S+ attempt 1: ValueError: this order is bad; again at ", ended.stdout)
    assert 'raise ValueError("this order is bad")' in ended.stdout, "the traceback leads into the handler"
    assert "dispatcher.py" not in ended.stdout, "the traceback begins in the engine"
    assert ended.stdout.count("Traceback") == 1, "the captured log has it already"
    assert "the traceback is in the log above" in ended.stdout


def test_without_the_log_the_report_has_the_traceback_itself(tmp_path: pathlib.Path) -> None:
    ended = run(written(tmp_path, {"shop.py": APP, "test_shop.py": FAILING}), "-p", PLUGIN, "--log-level=ERROR")
    section = ended.stdout.partition("EMQ: failed deliveries")[2]
    assert section.count("Traceback") == 1
    assert 'raise ValueError("this order is bad")' in section


def test_a_session_that_does_not_use_it_does_not_load_emq(tmp_path: pathlib.Path) -> None:
    test = """
import sys

def test_nothing():
    heavy = {"emq.app", "emq_testing.harness", "sqlalchemy", "msgspec"} & set(sys.modules)
    assert not heavy
"""
    ended = run(written(tmp_path, {"test_it.py": test}), "-p", PLUGIN)
    assert "1 passed" in ended.stdout, ended.stdout


def test_emq_does_not_need_pytest() -> None:
    code = "import emq, emq_testing, sys; emq_testing.Harness; emq.App; assert 'pytest' not in sys.modules"
    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": python_path(ROOT)}, check=True, timeout=60
    )


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"emq": PLUGIN}
