"""The examples of resource scheduling run as a new user would run them; short variants."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from support.python_path import python_path

pytest.importorskip("pyarrow", reason="the proof from the trail needs the extra trail")

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "scheduling"
LIMIT_S = 180.0


def run(name: str, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("EMQ_")}
    return subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        cwd=cwd,
        env={**environ, "PYTHONPATH": python_path(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def told(ended: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert ended.returncode == 0, ended.stdout[-2_000:] + ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    assert found["verdict"]["ok"], found["verdict"]
    assert found["verdict"]["submitted"] == found["verdict"]["done"] > 100
    return found


def test_the_sms_platform_sends_codes_before_a_flood(tmp_path: Path) -> None:
    found = told(run("sms_platform.py", tmp_path, "--seconds", "12", "--json"))
    assert found["flood_per_s"] == 20 * found["capacity_per_s"]
    assert found["seconds_with_backlog"] >= 4
    assert found["utilisation"] > 0.7
    waits = found["waits"]
    assert waits["verification"]["p99_s"] < waits["verification"]["target_s"]
    assert waits["marketing"]["p99_s"] > 2.0
    assert found["channels"]["us-short-code"]["not_sent"] >= 1  # it failed, and its tasks went elsewhere
    chart = ElementTree.parse(tmp_path / "sms-platform.svg")
    assert len(list(chart.iter())) > 200
    assert [path.name for path in tmp_path.iterdir()] == ["sms-platform.svg"]


def test_model_calls_settle_what_they_really_used(tmp_path: Path) -> None:
    found = told(run("model_calls.py", tmp_path, "--seconds", "10", "--json"))
    assert found["more_than_estimated"] > 0
    assert found["tokens"]["batch"]["used"] != found["tokens"]["batch"]["estimated"]
    assert {each["limit"] for each in found["limits"]} >= {"tokens/minute of north", "tokens/minute of north-large"}
    assert all(each["peak"] <= each["amount"] for each in found["limits"])
    assert found["waits"]["chat"]["p99_s"] < found["waits"]["batch"]["p99_s"]
    assert (tmp_path / "model-calls.svg").exists()
