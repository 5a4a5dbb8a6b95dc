"""The documentation site: it builds without a warning, and needs nothing but its own files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from emq.runtime import errors, settings
from emq_cli.commands import app as commands
from emq_scheduling import Limit, Pool, Resource, TaskType
from support.python_path import python_path

ROOT = Path(__file__).parents[2]


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": python_path(ROOT)}
    command = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "-f", str(config), "-d", str(site)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once."""
    directory = tmp_path_factory.mktemp("site")
    ended = build(ROOT / "mkdocs.yml", directory)
    assert ended.returncode == 0, ended.stderr
    return directory


def mistaken(directory: Path, text: str) -> str:
    """What the build says of a site with a page of this text; it must refuse the site."""
    (directory / "docs").mkdir()
    (directory / "docs/index.md").write_text(text)
    config = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0]
    config = config.replace("scripts/site/", f"{ROOT}/scripts/site/").replace("paths: [.]", f"paths: [{ROOT}]")
    (directory / "mkdocs.yml").write_text(config.replace("docs_dir: docs", f"docs_dir: {directory}/docs"))
    ended = build(directory / "mkdocs.yml", directory / "site")
    assert ended.returncode != 0, "the build does not notice"
    return ended.stderr


@pytest.mark.xdist_group("site")
def test_pages_load_nothing_from_the_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        loaded = re.findall(r"<(?:script|link|img|iframe)[^>]*?(?:src|href)=\"?(https?://[^\s\">]+)", page.read_text())
        assert not loaded, f"{page.relative_to(site)} loads {loaded}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?https?:", sheet.read_text()), sheet


@pytest.mark.xdist_group("site")
def test_pages_with_a_diagram_bring_the_script_that_draws_it(site: Path) -> None:
    page = (site / "ARCHITECTURE.html").read_text()
    assert 'class="mermaid"' in page
    assert 'src="assets/mermaid.tiny.js"' in page
    assert page.index("mermaid.tiny.js") < page.index("bundle."), "the theme would take it from the network"
    assert "mermaid.tiny.js" not in (site / "reference/settings.html").read_text()


@pytest.mark.xdist_group("site")
def test_the_reference_has_every_setting_command_and_error(site: Path) -> None:
    told = (site / "reference/settings.html").read_text()
    assert [name for name in settings.DESCRIPTIONS if f'id="{name}"' not in told] == []
    told = (site / "reference/commands.html").read_text()
    names = [command.name or getattr(command.callback, "__name__", "") for command in commands.registered_commands]
    assert len(names) > 10
    assert [name for name in names if f'id="emq-{name}"' not in told] == []
    told = (site / "reference/pools.html").read_text()
    fields = [field for struct in (Pool, Resource, TaskType, Limit) for field in struct.__struct_fields__]
    assert [name for name in fields if f"<code>{name}</code>" not in told] == []
    told = (site / "reference/errors.html").read_text()
    kinds = [
        name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.EMQError)
    ]
    assert [name for name in kinds if f"<code>{name}</code>" not in told] == []


def test_pages_with_generated_parts_say_in_the_checkout_where_to_read_them() -> None:
    sys.path.insert(0, str(ROOT / "scripts" / "site"))
    try:
        import generated
    finally:
        sys.path.pop(0)
    for page in sorted((ROOT / "docs" / "reference").glob("*.md")):
        note = f"`make docs` builds the page into\n> `site/reference/{page.stem}.html`"
        assert note in page.read_text(), page
        shown = generated.inserted(page.read_text(), page.name, pytest.fail)
        assert "make docs" not in shown
        assert "generated:" not in shown


MISTAKES = {
    "[a page](none.md)": "none.md",
    "[a place](#none)": "#none",
    "[code](../emq/none.py)": "none.py",
    "<!-- generated: none -->": "nothing is generated for 'none'",
}


def test_mistakes_in_a_page_fail_the_build(tmp_path: Path) -> None:
    told = mistaken(tmp_path, "\n\n".join(["# A page", *MISTAKES, ""]))
    assert [complaint for complaint in MISTAKES.values() if complaint not in told] == []


def test_a_name_that_the_code_lacks_fails_the_build(tmp_path: Path) -> None:
    assert "emq.Application" in mistaken(tmp_path, "# A page\n\n::: emq.Application\n")
