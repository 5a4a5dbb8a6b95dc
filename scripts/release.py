"""Cuts a release: checks what it is made of, builds its files, and writes the notes.

    scripts/release.py check TAG    # the tag, VERSION, changelog and metadata of this checkout belong together
    scripts/release.py build DIR    # wheel, sdist and SBOM into a new directory, checked
    scripts/release.py notes        # the changelog of this version, for the page of the release

`build` needs the group `release` of pyproject.toml; `make dist` installs it, and builds.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[1]
DYNAMIC = 'dynamic = ["version"]'


class Wrong(Exception):
    """This checkout cannot be released so; the text says why, and what to do."""


def main(arguments: Sequence[str]) -> int:
    try:
        match arguments:
            case ["check", tag]:
                if found := problems(ROOT, tag):
                    raise Wrong("\nrelease: ".join(found))
            case ["build", directory]:
                build(Path(directory))
            case ["notes"]:
                sys.stdout.write(notes(ROOT))
            case _:
                sys.stderr.write("usage: scripts/release.py check TAG | build DIR | notes\n")
                return 2
    except Wrong as exc:
        sys.stderr.write(f"release: {exc}\n")
        return 1
    return 0


def version_of(root: Path) -> str:
    """Return the version in the file VERSION, the only place where a program reads it."""
    return (root / "VERSION").read_text().strip()


def problems(root: Path, tag: str) -> list[str]:
    """Return what keeps a tag from being a release of the checkout at `root`; nothing if it can be released."""
    version, found = version_of(root), []
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        found.append(f"VERSION {version!r} must be three numbers, such as 0.2.0")
    if tag != f"v{version}":
        found.append(f"the tag {tag!r} must be v{version}, since VERSION has {version}")
    sections = changelog(root)
    if sections.pop("Unreleased", "").strip():
        found.append(f"CHANGELOG.md has unreleased changes; move them below version {version}")
    newest = next(iter(sections), "")
    if not re.fullmatch(rf"{re.escape(version)} \d{{4}}-\d\d-\d\d", newest):
        found.append(f"CHANGELOG.md begins with {newest!r}; it must begin with {version} and its date")
    urls = tomllib.loads((root / "pyproject.toml").read_text())["project"]["urls"]
    if examples := [name for name, url in urls.items() if (urlsplit(url).hostname or "").endswith("example.com")]:
        found.append(f"URLs in pyproject.toml are examples ({', '.join(examples)}); write the repository's address")
    return found


def changelog(root: Path) -> dict[str, str]:
    """Return the sections of the changelog, the newest first: `0.2.0 2026-11-30` (or `Unreleased`) to its text."""
    _, *parts = re.split(r"^## \[(.+?)\](?: - (.+))?$", (root / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    return {
        " ".join(filter(None, title)): text for *title, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }


def notes(root: Path) -> str:
    """Return the text of this version's section in the changelog."""
    version = version_of(root)
    for title, text in changelog(root).items():
        if title.partition(" ")[0] == version:
            return text.strip() + "\n"
    raise Wrong(f"CHANGELOG.md has no section of version {version}")


def build(directory: Path) -> None:
    """Build what a release consists of into a new directory."""
    if directory.exists():
        raise Wrong(f"{directory} exists; name a new directory, or remove it")
    wheel = packages(ROOT, directory)
    with tempfile.TemporaryDirectory() as work:
        installed = Path(work) / "emq"
        _run([str(ROOT / "deploy/image/install"), str(wheel), str(installed)])
        sbom(installed, directory / "emq.cdx.json")


def packages(root: Path, directory: Path) -> Path:
    """Build wheel and sdist of the checkout at `root`, and check that an index would take them; return the wheel."""
    _run([sys.executable, "-m", "hatchling", "build", "--directory", str(directory.absolute())], at=root)
    built = sorted(str(path) for path in directory.iterdir())
    _run([sys.executable, "-m", "twine", "check", "--strict", *built])
    [wheel] = directory.glob("*.whl")
    return wheel


def sbom(installed: Path, file: Path) -> None:
    """Write the parts of an installation, in the versions that it has, as CycloneDX in JSON.

    Args:
        installed: the directory that `deploy/image/install` made.
        file: the file to write.
    """
    with tempfile.TemporaryDirectory() as work:
        # The tool does not follow a version that stands in a file of its own.
        project = Path(work) / "pyproject.toml"
        text = (ROOT / "pyproject.toml").read_text()
        project.write_text(text.replace(DYNAMIC, f'version = "{version_of(ROOT)}"'))
        shutil.copy(ROOT / "LICENSE", work)
        command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--pyproject"]
        _run([*command, str(project), "--output-file", str(file), str(installed / "bin/python")])


def _run(command: Sequence[str], at: Path = ROOT) -> None:
    # The tools of this environment first: the script of the image takes uv from there.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=at, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Wrong(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
