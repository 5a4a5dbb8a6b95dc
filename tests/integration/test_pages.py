"""Each block of README and of the documentation does what its page says; see support/page_blocks.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import page_blocks
from support.pages import session

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
ELSEWHERE = ("other-languages.md",)
"""Pages whose tests are in test_other_languages.py: they need more than Python."""
MOST_SKIPPED = 0.25
"""Of all blocks that a reader might run."""


def runnable(page: Path) -> list[page_blocks.Block]:
    return [block for block in page_blocks.blocks(page) if block.language in ("python", "console", "bash")]


RUN_HERE = [page for page in PAGES if runnable(page) and page.name not in ELSEWHERE]


@pytest.mark.parametrize("page", RUN_HERE, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    ended = session(page, tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_few_blocks_are_not_run() -> None:
    every = [block for page in PAGES for block in runnable(page)]
    assert len([block for block in every if block.skipped]) <= MOST_SKIPPED * len(every)


WRONG_PAGES = {
    "called": (
        '```python\nimport emq\n\nasync def work(app: emq.App) -> None:\n    await app.publish("none", b"")\n```',
        "UnknownTopic",
    ),
    "exit code": ("```console\n$ emq topic show none\n```", "ended with 1, not 0"),
    "output": ("```console\n$ emq topic create t --qps 1\ntopic 't': 2 a second in 1 group\n```", "lacks the line"),
    "raises": ("<!-- snippet: raises ValueError -->\n```python\nimport emq\n```", "does not raise ValueError"),
    "background": (
        "<!-- snippet: background -->\n```console\n$ emq up --app nothing\nready\n```",
        "lacks the line 'ready'",
    ),
    "mark": ("<!-- snippet: skip -->\n```python\n```", "says nothing that tests understand"),
}


@pytest.mark.parametrize("name", WRONG_PAGES)
def test_a_wrong_block_is_found(name: str, tmp_path: Path) -> None:
    text, complaint = WRONG_PAGES[name]
    page = tmp_path / "page.md"
    page.write_text(text + "\n")
    ended = session(page, tmp_path)
    assert ended.returncode != 0
    assert complaint in ended.stderr
