"""A release: one version everywhere, packages that an index takes, a workflow that only runs what is pinned."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import whole_product
from support.releasing import release

ROOT = Path(__file__).parents[2]
VERSION = release.version_of(ROOT)
WORKFLOW = ROOT / ".github/workflows/release.yml"

NAMED = re.compile(r"\bemq[:-](?P<file>\d+\.\d+\.\d+)|^emq (?P<said>\d+\.\d+\.\d+)$", re.MULTILINE)
"""A version of EMQ in a page or a file of `deploy/`: of an image, of a wheel, and what `emq --version` prints."""


def job(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text())["jobs"][name]
    return found


# ---------------------------------------------------------------------------------------------------------- the version


def test_every_page_and_every_way_to_deploy_names_this_version() -> None:
    pages = [path for folder in ("deploy", "docs") for path in (ROOT / folder).rglob("*") if path.is_file()]
    texts = [(path, path.read_bytes().decode(errors="ignore")) for path in pages if "__pycache__" not in path.parts]
    named = [(path.name, found["file"] or found["said"]) for path, text in texts for found in NAMED.finditer(text)]
    assert {"Dockerfile", "compose.yaml", "installing.md", "tutorial.md"} <= {name for name, _ in named}
    assert [each for each in named if each[1] != VERSION] == [], f"VERSION has {VERSION}"


def test_a_tag_on_this_commit_is_that_of_its_version() -> None:
    asked = ["git", "tag", "--points-at", "HEAD", "--list", "v*"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    assert set(done.stdout.split()) <= {f"v{VERSION}"}, done.stderr


def test_this_version_lacks_nothing_for_its_release_but_the_address_of_the_repository() -> None:
    assert [line for line in release.problems(ROOT, f"v{VERSION}") if "URLs in pyproject.toml" not in line] == []


@pytest.mark.parametrize(
    ("file", "before", "after", "tag", "said"),
    [
        ("VERSION", "", "", "v1.2.4", "the tag 'v1.2.4' must be v1.2.3, since VERSION has 1.2.3"),
        ("VERSION", "", "", "1.2.3", "the tag '1.2.3' must be v1.2.3"),
        ("VERSION", "1.2.3", "1.2.3.dev0", "v1.2.3.dev0", "VERSION '1.2.3.dev0' must be three numbers"),
        ("CHANGELOG.md", "[Unreleased]\n", "[Unreleased]\n\n- New.\n", "v1.2.3", "has unreleased changes"),
        ("CHANGELOG.md", " - 2030-01-02", "", "v1.2.3", "begins with '1.2.3'; it must begin with 1.2.3 and its date"),
        ("CHANGELOG.md", "[1.2.3]", "[1.2.2]", "v1.2.3", "begins with '1.2.2 2030-01-02'; it must begin with 1.2.3"),
        ("pyproject.toml", "git.of.us", "git.example.com", "v1.2.3", "URLs in pyproject.toml are examples (Home)"),
    ],
)
def test_what_does_not_belong_to_a_release_is_named(
    tmp_path: Path, file: str, before: str, after: str, tag: str, said: str
) -> None:
    (tmp_path / "VERSION").write_text("1.2.3\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## [Unreleased]\n\n## [1.2.3] - 2030-01-02\n\n- First.\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n[project.urls]\nHome = "https://git.of.us/x"\n')
    assert release.problems(tmp_path, "v1.2.3") == []
    assert release.notes(tmp_path) == "- First.\n"
    (tmp_path / file).write_text((tmp_path / file).read_text().replace(before, after))
    assert said in "; ".join(release.problems(tmp_path, tag))


def test_a_wrong_tag_ends_the_command_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["check", "v0.0.1"]) == 1
    assert (
        capsys.readouterr().err.splitlines()[0]
        == f"release: the tag 'v0.0.1' must be v{VERSION}, since VERSION has {VERSION}"
    )
    assert release.main(["check"]) == 2


# --------------------------------------------------------------------------------------------------------- the packages


def about(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as files:
        return Parser().parsestr(files.read(f"emq-{VERSION}.dist-info/METADATA").decode())


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as files:
        return sorted(files.namelist())


def test_an_index_takes_the_packages_and_the_sdist_builds_the_same_wheel(tmp_path: Path) -> None:
    wheel = release.packages(ROOT, tmp_path / "dist")  # twine, strictly
    told = about(wheel)
    assert (told["Name"], told["Version"], told["License-Expression"]) == ("emq", VERSION, "Apache-2.0")
    assert {line.partition(",")[0] for line in told.get_all("Project-URL", [])} >= {"Repository", "Changelog"}
    assert {"message-queue", "webhooks"} <= set(told["Keywords"].split(","))
    whole_product.unpack(tmp_path / f"dist/emq-{VERSION}.tar.gz", tmp_path)
    again = release.packages(tmp_path / f"emq-{VERSION}", tmp_path / "again")
    assert names(again) == names(wheel)
    assert about(again).items() == told.items()


# --------------------------------------------------------------------------------------------------------- the workflow


def test_the_workflow_is_one_by_the_schema_of_workflows() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(WORKFLOW)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflow_runs_nothing_that_somebody_else_can_change_later() -> None:
    used = re.findall(r"uses: *(.*)", WORKFLOW.read_text())
    assert len(used) >= 8
    assert [line for line in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


def test_nothing_is_published_before_it_was_built_tested_and_attested() -> None:
    assert set(job("attest")["needs"]) == {"build", "test"}
    assert (job("publish")["needs"], job("page")["needs"]) == ("attest", "publish")
    assert yaml.safe_load(WORKFLOW.read_text())["permissions"] == {"contents": "read"}
    rights = {name: job(name).get("permissions", {}) for name in ("build", "test", "attest", "publish", "page")}
    writes = {name: {right for right, level in given.items() if level == "write"} for name, given in rights.items()}
    assert writes == {
        "build": set(),
        "test": set(),
        "attest": {"id-token", "attestations"},
        "publish": {"id-token"},
        "page": {"contents"},
    }
    [publish] = [step for step in job("publish")["steps"] if "pypi-publish" in step["uses"]]
    assert "with" not in publish, "a trusted publisher needs no password"


def test_the_workflow_checks_the_tag_first_and_its_commands_exist() -> None:
    run = [step["run"] for name in ("build", "test") for step in job(name)["steps"] if "run" in step]
    assert run[0] == 'python scripts/release.py check "$GITHUB_REF_NAME"'
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = {target for line in run if line.startswith("make ") for target in line.split()[1:]}
    assert {"dist", "setup", "lint", "types", "test"} <= made <= targets
