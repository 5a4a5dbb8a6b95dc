"""Clients in TypeScript and Go, generated from the OpenAPI document, against a running API."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.emq_processes import Shell, line_with
from support.http_receiver import HttpReceiver
from support.page_blocks import blocks
from support.pages import session
from support.wanting import missing

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "clients"
NODE_MODULES = CLIENTS / "typescript/node_modules"
TRIALS = {"typescript": ("trial.ts", "tsconfig.json", "package.json"), "go": ("trial.go", "go.mod")}
PAGE = ROOT / "docs/other-languages.md"
DOCUMENT = "http://127.0.0.1:8080/v1/openapi.json"
"""What the page generates from."""
STORY = """\
a wrong key: 401 invalid_key
a tenant: 201, then 200 with 60 a second for Acme
an unknown tenant: 404 unknown_tenant
a wrong value: 422 invalid_request /qps
an endpoint: whsec_ 40
its limit taken away: null
a message, sent twice with one key: one id
its payload: {"order":17,"amount":12.5}
messages in one request: 6
deliveries: 7 on 4 pages
all are delivered
a pool: version 1
a change of another version: 412 other_version
a task: t1, attempts 0
tasks: 1 accepted, 1 refused as unknown_type
the tenant deleted: 204
"""

pytestmark = pytest.mark.xdist_group("other languages")


@functools.cache
def script() -> dict[str, Any]:
    """Return the names of scripts/clients.py."""
    return runpy.run_path(str(ROOT / "scripts/clients.py"))


@pytest.fixture
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    """What programs need beside the variables of the tests. Go compiles its standard library once for all runs."""
    assert request.config.cache is not None
    return {**script()["environment"](), "GOCACHE": str(request.config.cache.mkdir("go"))}


def need(check: str) -> None:
    """Skip or fail the test unless a function of scripts/clients.py finds what it looks for."""
    try:
        script()[check]()
    except script()["Missing"] as exc:
        missing(str(exc))


@pytest.fixture(scope="module")
def typescript() -> None:
    need("check_typescript")


@pytest.fixture(scope="module")
def go() -> None:
    need("check_go")


class Api:
    """A host with the API, in a process of its own, and an endpoint that takes everything.

    Args:
        environment: what programs need besides.
    """

    def __init__(self, emq: Shell, receiver: HttpReceiver, environment: dict[str, str]) -> None:
        self._key = emq("api key create")[0].strip()
        found = re.search(r"http://\S+:\d+", line_with(emq.start("up --api 127.0.0.1:0"), "serving the API"))
        assert found is not None
        self._url = found.group()
        self._receiver = receiver
        self._environment = {**os.environ, **environment}

    async def generate(self, command: str, language: str, directory: Path) -> None:
        """Copy the trial of a language to the directory, and generate its client from what the API says of itself."""
        for name in TRIALS[language]:
            shutil.copy(CLIENTS / language / name, directory)
        generate, document = script()["generate"], f"{self._url}/v1/openapi.json"
        await asyncio.to_thread(generate, script()[command], document, directory)

    async def ran(self, directory: Path, *command: str) -> str:
        """Return what a command prints; it must end well."""
        ended = await asyncio.to_thread(
            functools.partial(
                subprocess.run,
                command,
                cwd=directory,
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=300,
            )
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return str(ended.stdout)

    async def try_out(self, directory: Path, *program: str) -> None:
        """Run a trial, which must tell its story, and send all of its messages."""
        assert await self.ran(directory, *program, self._url, self._key, self._receiver.url("/hook")) == STORY
        orders = [json.loads(request.body)["order"] for request in self._receiver.requests]
        assert sorted(orders) == [1, 2, 3, 4, 5, 6, 17]


@pytest.fixture
async def api(emq: Shell, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    monkeypatch.setenv("EMQ_PUSH_ALLOW", "127.0.0.1")
    async with HttpReceiver(lambda _: 204).running() as receiver:
        yield Api(emq, receiver, environment)


async def test_the_client_in_typescript_does_with_a_running_api_what_it_says(
    typescript: None, api: Api, tmp_path: Path
) -> None:
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    await api.generate("TYPES", "typescript", tmp_path)
    await api.ran(tmp_path, "npx", "tsc", "--project", ".")
    await api.try_out(tmp_path, "node", "trial.js")


async def test_the_client_in_go_does_with_a_running_api_what_it_says(go: None, api: Api, tmp_path: Path) -> None:
    await api.generate("PACKAGE", "go", tmp_path)
    assert await api.ran(tmp_path, "go", "list", "-m", "all") == "emq.example/trial\n", "it needs packages of others"
    await api.ran(tmp_path, "go", "build", "-o", "trial", ".")
    await api.try_out(tmp_path, "./trial")


def test_the_page_does_what_it_says(typescript: None, go: None, environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    ended = session(PAGE, tmp_path, environment, limit_s=300)
    assert ended.returncode == 0, ended.stderr


def test_the_page_has_the_commands_and_versions_of_make_clients() -> None:
    shown = [
        " ".join(command.line.replace("\\\n", " ").split()) for block in blocks(PAGE) for command in block.commands()
    ]
    assert {script()[name].format(document=DOCUMENT) for name in ("TYPES", "PACKAGE")} <= {*shown}
    packages = json.loads((CLIENTS / "typescript/package.json").read_text())
    for kind, begin in (("dependencies", "npm install "), ("devDependencies", "npm install --save-dev ")):
        [named] = [each.removeprefix(begin).split() for each in shown if re.match(begin + r"[^-]", each)]
        assert sorted(named) == sorted(f"{name}@{version}" for name, version in packages[kind].items())
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    assert [each for each in shown if each.startswith("pip")] == [
        f"pip install {each}" for each in pinned if each.startswith("openapi-generator-cli")
    ]


def test_what_is_missing_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = runpy.run_path(str(ROOT / "scripts/clients.py"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    for check, remedy in (("check_typescript", "install Node.js"), ("check_go", "run make setup")):
        with pytest.raises(names["Missing"], match=remedy):
            names[check]()
