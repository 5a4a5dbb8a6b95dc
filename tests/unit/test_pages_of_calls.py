"""The snippets of the pages on payloads, middleware and dependencies do what the pages say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import pages


@pytest.mark.parametrize("page", ["docs/payloads.md"])
async def test_the_snippets_of_a_page_run(page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    names = await pages.run(page)
    assert any(name.startswith("test_") for name in names)
