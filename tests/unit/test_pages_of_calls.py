"""The snippets of the pages on payloads, middleware and dependencies do what the pages say."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import pages


class FakeSentry(types.ModuleType):
    """Stands for the module `sentry_sdk`, which EMQ's tests do not install."""

    def __init__(self) -> None:
        super().__init__("sentry_sdk")
        self.captured: list[tuple[BaseException, dict[str, Any]]] = []

    @contextlib.contextmanager
    def new_scope(self) -> Iterator[FakeScope]:
        yield FakeScope(self)


class FakeScope:
    def __init__(self, sentry: FakeSentry) -> None:
        self._sentry = sentry
        self._told: dict[str, Any] = {}

    def set_tag(self, name: str, value: str) -> None:
        self._told[name] = value

    def set_context(self, name: str, value: dict[str, Any]) -> None:
        self._told[name] = value

    def capture_exception(self, error: BaseException) -> None:
        self._sentry.captured.append((error, self._told))


@pytest.mark.parametrize("page", ["docs/payloads.md", "docs/middleware.md", "docs/dependencies.md"])
async def test_the_snippets_of_a_page_run(
    page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentry = FakeSentry()
    monkeypatch.setitem(sys.modules, "sentry_sdk", sentry)
    monkeypatch.chdir(tmp_path)
    names = await pages.run(page)
    assert any(name.startswith("test_") for name in names)
    if page == "docs/middleware.md":
        [(error, told)] = sentry.captured
        assert str(error) == "this order is bad"
        assert told["emq.topic"] == "orders"
        assert told["message"]["attempt"] == 1
        assert capsys.readouterr().out.count("order took ") == 2
