"""A hint names libraries that a user can install, and no hint names EMQ, which is on no package index."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from emq.runtime.extras import remedy

ROOT = Path(__file__).parents[2]
REQUIREMENTS = [
    "aiolimiter>=1.2",
    "redis>=8.0; extra == 'redis'",
    "hiredis>=3.1 ; extra == 'redis'",
    'psycopg[binary]>=3.2; (python_version < "4") and extra == "postgres"',
    "redis>=8.0; extra == 'demo'",
]

OF_EXTRAS = re.compile(r"(?:remedy|needing)\(([^)]*)\)")
BY_NAME = re.compile(r"pip install (?:\S+ )*?['\"]?emq(?:\[[^]]*])?(?! @)(?![\w./@\[-])")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the libraries that are taken for installed; EMQ requires what `REQUIREMENTS` says."""
    names: set[str] = set()

    def distribution(name: str) -> None:
        if name not in names:
            raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", lambda _: REQUIREMENTS)
    monkeypatch.setattr(metadata, "distribution", distribution)
    return names


def test_the_libraries_of_an_extra_are_named_with_their_oldest_versions(installed: set[str]) -> None:
    assert remedy("redis") == "pip install 'hiredis>=3.1' 'redis>=8.0'"
    assert remedy("postgres") == "pip install 'psycopg[binary]>=3.2'"
    assert remedy("postgres", "demo") == "pip install 'psycopg[binary]>=3.2' 'redis>=8.0'"


def test_only_what_is_missing_is_named_and_everything_if_nothing_is(installed: set[str]) -> None:
    installed.add("hiredis")
    assert remedy("redis") == "pip install 'redis>=8.0'"
    installed.add("redis")
    assert remedy("redis") == "pip install 'hiredis>=3.1' 'redis>=8.0'"


def test_without_metadata_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    assert remedy("spark", "redis") == "install EMQ with its extra spark, redis; docs/installing.md says how"


def sources() -> dict[Path, str]:
    """Each text of the product in which a user may find a hint."""
    files = [
        p
        for room in ("emq", "services", "spark", "storage_adapters", "tools", "deploy", "docs", "examples")
        for p in (ROOT / room).rglob("*")
    ]
    wanted = [p for p in (*files, ROOT / "README.md") if p.suffix in {".py", ".md", ".yaml"} or p.name == "Dockerfile"]
    return {path: path.read_text() for path in wanted}


def test_every_extra_that_a_hint_is_for_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    calls = [call for path, text in sources().items() if path.suffix == ".py" for call in OF_EXTRAS.findall(text)]
    literals = {
        extra
        for call in calls
        for text in re.findall(r"""["']([a-z]+(?:,[a-z]+)*)["']""", call)
        for extra in text.split(",")
    }
    assert {"redis", "trail", "demo", "spark", "zookeeper"} < literals
    assert literals <= set(extras)


def test_no_hint_tells_to_install_emq_by_its_name() -> None:
    assert BY_NAME.search("pip install 'emq[redis]'")
    assert BY_NAME.search("pip install emq")
    assert not BY_NAME.search("pip install 'emq[redis] @ git+https://git.example/emq'")
    assert not BY_NAME.search("pip install './dist/emq-0.1.0-py3-none-any.whl[redis]'")
    assert not [(path, hint) for path, text in sources().items() for hint in BY_NAME.findall(text)]


def test_the_page_tells_what_each_extra_is_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = (ROOT / "docs/installing.md").read_text().partition("| extra |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(extras)


@pytest.mark.parametrize(("extra", "parts"), [("production", ()), ("all", ("reload", "demo"))])
def test_the_page_tells_which_extras_are_in_another(extra: str, parts: tuple[str, ...]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs/installing.md").read_text()
    [row] = [line for line in page.splitlines() if line.startswith(f"| `{extra}` |")]
    but = set(re.findall(r"`(\w+)`", row.partition("all of these but")[2]))
    of_production = {each for text in extras["production"] for each in re.findall(r"\w+", text.partition("[")[2])}
    assert but == set(extras) - of_production - {"production", "all"} - set(parts)
