"""The list of mutants fits the code and the tests; `make mutants` proves that each is caught."""

from __future__ import annotations

import re

import pytest

from mutants import collection, table
from mutants.mutant import PROMISES, ROOT, SIMULATION, Mutant

ALL = collection.chosen(())


def test_there_are_many_mutants_of_every_promise() -> None:
    assert len(ALL) >= 60
    assert {m.promise for m in ALL} == PROMISES.keys()


def test_each_mutant_has_a_name_of_its_own() -> None:
    names = [m.name for m in ALL]
    assert len(set(names)) == len(names)
    assert not [name for name in names if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)]


@pytest.mark.parametrize("mutant", ALL, ids=[m.name for m in ALL])
def test_a_mutant_fits_into_the_code_in_exactly_one_place_and_its_test_is_there(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    changed = mutant.planted(text)
    assert changed != text
    if mutant.file.endswith(".py"):
        compile(changed, mutant.file, "exec")
    if mutant.caught_by == SIMULATION:
        return
    file, *places = mutant.caught_by.split("::")
    text = (ROOT / file).read_text(encoding="utf-8")
    for module in re.findall(r"^from emq_testing\.contract\.(\w+) import \*", text, re.MULTILINE):
        text += (ROOT / f"tools/emq_testing/contract/{module}.py").read_text(encoding="utf-8")
    for place in places:
        name = re.escape(place.partition("[")[0])
        assert re.search(rf"^\s*(async def|def|class) {name}\b|^{name} = ", text, re.MULTILINE), mutant.caught_by


def test_the_page_lists_every_mutant() -> None:
    """After a change of the list: make mutants WRITE=1."""
    assert table.README.read_text(encoding="utf-8") == table.page(collection.SUBSYSTEMS)
