"""The constraints files pin what pyproject.toml asks for: tested versions in one, the oldest allowed in the other."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def lines(file: str) -> list[str]:
    return [line for line in (ROOT / file).read_text().splitlines() if not line.startswith("#")]


def pins(file: str, python: str) -> dict[str, Version]:
    """Versions by package that `file` names for Linux and this Python."""
    environment = {**default_environment(), "python_version": python, "python_full_version": f"{python}.9"}
    found: dict[str, Version] = {}
    for requirement in map(Requirement, lines(file)):
        if requirement.marker is None or requirement.marker.evaluate(dict(environment)):
            assert requirement.name not in found, requirement.name
            (specifier,) = requirement.specifier
            assert specifier.operator == "=="
            found[requirement.name] = Version(specifier.version)
    return found


def direct(lists: Iterable[Iterable[object]]) -> list[Requirement]:
    written = {text for texts in lists for text in texts if isinstance(text, str) and not text.startswith("emq[")}
    return [Requirement(text) for text in sorted(written)]


def within(extra: str) -> set[str]:
    """An extra with the extras in it."""
    inner = {name for line in EXTRAS[extra] if line.startswith("emq[") for name in line[4:-1].split(",")}
    return {extra}.union(*map(within, inner))


@pytest.mark.parametrize("python", PYTHONS)
def test_every_requirement_has_a_tested_version_that_it_allows(python: str) -> None:
    pinned = pins("constraints.txt", python)
    groups = PROJECT["dependency-groups"].values()
    for wanted in direct(
        (PROJECT["build-system"]["requires"], PROJECT["project"]["dependencies"], *EXTRAS.values(), *groups)
    ):
        name = canonicalize_name(wanted.name)
        assert name in pinned, f"constraints.txt lacks {name}; run make constraints"
        assert wanted.specifier.contains(pinned[name]), f"{wanted} is not {pinned[name]}; run make constraints"


def test_the_oldest_version_of_each_requirement_is_the_one_that_is_tried() -> None:
    wanted = direct((PROJECT["project"]["dependencies"], *(EXTRAS[name] for name in within("all"))))
    assert len(wanted) > 15
    for python in PYTHONS:
        pinned = pins("constraints-oldest.txt", python)
        for requirement in wanted:
            assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)])
    # Newer Pythons may lack wheels of the oldest.
    pinned = pins("constraints-oldest.txt", PYTHONS[0])
    for requirement in wanted:
        (floor,) = (s for s in requirement.specifier if s.operator == ">=")
        tested = pinned[canonicalize_name(requirement.name)]
        assert Version(floor.version) == tested, f"{requirement}, but {tested} is tried; run make constraints"


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-oldest.txt"])
def test_the_files_have_names_and_versions_only(file: str) -> None:
    assert len(lines(file)) > 50
    for line in lines(file):
        clause = r"\(?[a-z_]+ (==|!=|<|>=) '[\w.]+'\)?"
        assert re.fullmatch(rf"[a-z0-9-]+==[0-9a-z.]+( ; {clause}( (and|or) {clause})*)?", line)
