"""The command that installs the libraries of an extra.

The command names the libraries, not EMQ: EMQ is on no public package index, so pip would not find `emq[redis]`, or
install another package of that name. The command works however EMQ was installed: from a checkout, a wheel or a git
URL.
"""

from __future__ import annotations

import re
import shlex
from importlib import metadata

_REQUIREMENT = re.compile(r"""(?P<library>(?P<name>[\w.-]+)[^;]*?)\s*;.*\bextra == ['"](?P<extra>[\w.-]+)""")


def remedy(*extras: str) -> str:
    """Return the shell command that installs the libraries that some extras still lack.

    Args:
        extras: names of extras in pyproject.toml, such as `redis`.

    Returns:
        Such as `pip install 'hiredis>=3.1' 'redis>=8.0'`. If no library is missing (one of them may be damaged), the
        command has all of them. If EMQ runs without its metadata, as in a copy of its source files, the text asks for
        an installed EMQ.
    """
    needed = {
        found["library"]: found["name"]
        for found in map(_REQUIREMENT.match, _requirements())
        if found is not None and found["extra"] in extras
    }
    missing = [library for library, name in needed.items() if not _installed(name)]
    libraries = sorted(missing or needed)
    if not libraries:
        return f"install EMQ with its extra {', '.join(extras)}; docs/installing.md says how"
    return shlex.join(["pip", "install", *libraries])


def _requirements() -> list[str]:
    try:
        return metadata.requires("emq") or []
    except metadata.PackageNotFoundError:
        return []


def _installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True
