"""Links between files of the repository, as links between pages of the site.

A page links to other files by their relative path, so that its links work where somebody reads the repository. The site
has docs/ as its root, other pages at their own path, and each linked file of code as a page that shows it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\[]*(?:\[[^\]]*\][^\]\[]*)*)\]\((?P<target>[^()\s]+)\)")
_FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2[ \t]*$", re.MULTILINE | re.DOTALL)
_LANGUAGES = {".py": "python", ".lua": "lua", ".sql": "sql", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}


def rewritten(root: Path, uri: str, markdown: str, outside: Collection[str]) -> str:
    """Return a page's text with its links as the site needs them.

    Args:
        root: the repository.
        uri: the page's path on the site.
        outside: the pages from outside docs/.
    """

    def replaced(match: re.Match[str]) -> str:
        found = _on_site(root, uri, match["target"], outside)
        if found is None:
            return match[0]
        return f"[{match['text']}]({found})"

    return _outside_fences(markdown, lambda text: _LINK.sub(replaced, text))


def code_files(root: Path, uri: str, markdown: str, outside: Collection[str]) -> set[str]:
    """Return the paths of the files of code to which a page links."""
    found = set()
    for match in _LINK.finditer(_FENCE.sub("", markdown)):
        path = _in_repository(root, uri, match["target"], outside)
        if path is not None and _is_code(root, path, outside):
            found.add(path)
    return found


def code_page(path: str) -> str:
    """Return the path on the site of the page that shows a file of code."""
    return f"source/{path}.md"


def code_text(root: Path, path: str) -> str:
    """Return the page that shows a file of code, or the files of a directory."""
    file = root / path
    shown = sorted(file.iterdir()) if file.is_dir() else [file]
    parts = [f"`{one.relative_to(root)}`\n\n````{_language(one)}\n{one.read_text()}\n````\n" for one in shown]
    return "\n".join(["---\nsearch:\n  exclude: true\n---", f"# {file.name}\n", *parts])


def _language(file: Path) -> str:
    return _LANGUAGES.get(file.suffix, "text")


def _on_site(root: Path, uri: str, target: str, outside: Collection[str]) -> str | None:
    """Return a link's target on the site; None for a link that may stay as it is."""
    path = _in_repository(root, uri, target, outside)
    if path is None:
        return None
    fragment = target.partition("#")[2]
    if _is_code(root, path, outside):
        there = code_page(path)
    elif path == "README.md":
        there = "index.md"
    elif path.startswith("docs/"):
        there = path.removeprefix("docs/")
    else:
        there = path
    relative = os.path.relpath(there, Path(uri).parent)
    return f"{relative}#{fragment}" if fragment else relative


def _in_repository(root: Path, uri: str, target: str, outside: Collection[str]) -> str | None:
    """Return the path in the repository to which a link leads; None for an address or a place of the same page."""
    if re.match(r"[a-z]+:|#", target):
        return None
    here = Path(uri) if uri in outside else Path("docs", uri)
    path = os.path.normpath(here.parent / target.partition("#")[0])
    if (root / path).is_dir() and (root / path / "README.md").exists():
        return f"{path}/README.md"
    return path


def _is_code(root: Path, path: str, outside: Collection[str]) -> bool:
    return (
        path not in outside and not path.startswith(("docs/", "..")) and path != "README.md" and (root / path).exists()
    )


def _outside_fences(markdown: str, change: object) -> str:
    assert callable(change)
    parts, place = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [change(markdown[place : fence.start()]), fence[0]]
        place = fence.end()
    return "".join([*parts, change(markdown[place:])])
