"""What MkDocs calls while it builds the site: it adds pages from outside docs/, links to them, and generated tables."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))

import generated
import links

from emq_web import application

ROOT = Path(__file__).parents[2]

OUTSIDE = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "deploy/README.md",
    "deploy/compose/README.md",
    "deploy/helm/README.md",
    "deploy/prometheus/README.md",
    "deploy/rolling-upgrades.md",
    "deploy/sizing.md",
    "deploy/systemd/README.md",
    "examples/README.md",
    "spark/README.md",
    "tests/mutants/README.md",
)
"""Pages that lie beside what they speak of; on the site they have the same path."""

INSIDE = "Inside EMQ"
"""The section for those who change EMQ. The search leaves its pages out, for users ask other questions."""

UNASKED = ("CHANGELOG.md", "tests/mutants/README.md")
"""Pages of no section that the search leaves out, too."""

log = logging.getLogger("mkdocs.hooks.emq")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/, a page for each file of code that a page links to, and the API's document."""
    for path in OUTSIDE:
        files.append(File.generated(config, path, content=(ROOT / path).read_text()))
    targets = {path for file in files.documentation_pages() for path in _sources(file)}
    for path in sorted(targets):
        files.append(File.generated(config, links.code_page(path), content=links.code_text(ROOT, path)))
    files.append(File.generated(config, "openapi.json", content=json.dumps(application.document(), indent=1)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Insert what is generated from the code, and turn links to files of the repository into links of the site."""
    uri = page.file.src_uri
    if uri in UNASKED or any(each.title == INSIDE for each in page.ancestors):
        page.meta["search"] = {"exclude": True}
    return links.rewritten(ROOT, uri, generated.inserted(markdown, uri, log.warning), OUTSIDE)


def _sources(file: File) -> set[str]:
    return links.code_files(ROOT, file.src_uri, file.content_string, OUTSIDE)
