"""ARCHITECTURE.md stays a short tour, and says where the code is; classes and functions stay small."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
SERVICES = (ROOT / "services" / "README.md").read_text()
HOST_PAGES = "\n".join(page.read_text() for page in sorted((ROOT / "docs" / "host").glob("*.md")))
MOST_CHARACTERS = 15_500
MOST_FILES = 18
"""Files on the way of a message, with those of a retry and of a synchronous handler left out."""
ASIDE = {"threads.py", "retry.py", "settler.py", "lane_claimer.py"}
MOST_METHODS = 20
"""Methods of a class of the engine, its commands, trace, proof or stores. One with more hides a second class."""
MOST_LINES = 60
"""Lines of a function there, with its docstring."""
LONG = {
    "emq/dispatch/dispatcher.py: _visit": "the hot path, with its calls written out",
    "emq/producer/producer.py: publish": "the hot path; half of it are its options and what it raises",
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def test_the_tour_is_short() -> None:
    assert len(TEXT) <= MOST_CHARACTERS, "move details to a page of docs/"


def test_it_names_the_files_that_a_message_passes() -> None:
    [way] = re.findall(r"## One message.*?```mermaid(.*?)```", TEXT, re.DOTALL)
    named = set(re.findall(r"\w+\.py", way)) - ASIDE
    assert f"{len(named)} files decide" in TEXT
    assert len(named) <= MOST_FILES


@pytest.mark.parametrize("text", [TEXT, SERVICES], ids=["tour", "services"])
def test_each_row_of_what_to_change_asks_one_question_and_its_paths_are_there(text: str) -> None:
    [table] = re.findall(r"## To change X, open Y(.*?)(?:\n## |\Z)", text, re.DOTALL)
    rows = re.findall(r"^\| (.*?) \| .* \|$", table, re.MULTILINE)[1:]
    assert len(rows) > 30
    assert [row for row in rows if ";" in row] == []
    paths = re.findall(r"`(\w+/[\w/.]*)`", table)
    assert len(paths) > 40
    roots = [ROOT, ROOT / "emq", ROOT / "services", *(ROOT / "services").glob("emq_*")]
    assert [path for path in paths if not any((root / path).exists() for root in roots)] == []


@pytest.mark.parametrize(
    ("text", "fewest"), [(TEXT, 10), (SERVICES, 4), (HOST_PAGES, 40)], ids=["tour", "services", "host"]
)
def test_every_file_that_it_names_is_there(text: str, fewest: int) -> None:
    named = re.findall(r"`((?:emq|services|storage_adapters|spark|tools|bench|tests|scripts|docs)/[\w/.]+)`", text)
    assert len(named) > fewest
    assert [path for path in named if not (ROOT / path).exists()] == []
    bare = re.findall(r"`(\w+\.py)`", text)  # in the room of the file before
    known = {
        path.name
        for room in ("emq", "services", "spark", "tests", "storage_adapters", "tools", "scripts")
        for path in (ROOT / room).rglob("*.py")
    }
    assert [name for name in bare if name not in known] == []


def test_every_file_of_its_diagrams_is_there() -> None:
    diagrams = "".join(re.findall(r"```mermaid(.*?)```", TEXT, re.DOTALL))
    named = re.findall(r"[\w/]+\.py", diagrams)
    files = [f"/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "emq").rglob("*.py")]
    assert len(named) > 25
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in files)] == []


def test_the_layers_of_its_rooms_are_those_that_import_linter_holds() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract.get("containers") == ["emq"]]
    held = {name: number for number, layer in enumerate(reversed(layers), 1) for name in layer.split(" | ")}
    rows = re.findall(r"^\| (\d+) \| (.*?) \|", TEXT, re.MULTILINE)
    told = {name: int(number) for number, names in rows for name in re.findall(r"`(\w+)(?:/|\.py)`", names)}
    assert told == held


def test_a_class_has_one_idea_and_a_function_fits_on_a_screen() -> None:
    methods, lines = dict[str, int](), dict[str, int]()
    for room in ("emq", "tools/emq_cli", "tools/emq_trace", "tools/emq_proof", "storage_adapters"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    own = sum(isinstance(each, FUNCTIONS) for each in node.body)
                    methods[f"{path.relative_to(ROOT).as_posix()}: {node.name}"] = own
                elif isinstance(node, FUNCTIONS):
                    size = (node.end_lineno or 0) - node.lineno + 1
                    lines[f"{path.relative_to(ROOT).as_posix()}: {node.name}"] = size
    assert len(methods) > 500
    assert len(lines) > 2_000
    assert {name: number for name, number in methods.items() if number > MOST_METHODS} == {}
    assert {name for name, number in lines.items() if number > MOST_LINES} == set(LONG)
