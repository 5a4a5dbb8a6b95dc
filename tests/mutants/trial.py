"""The trial: does the test that a mutant names pass without the mistake, and fail with it?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mutants import operators
from mutants.mutant import SIMULATION, Misfit, Mutant
from mutants.tree import TOO_LONG, Run, Tree

LONGEST_WITHOUT_S = 1200.0
"""Of all named tests together, without a mistake."""


class Verdict(NamedTuple):
    """Attributes:
    caught: the tests that failed; none if the mutant survived.
    trouble: why nothing is known: the mistake does not fit in any more, or its test does not run; or "".
    seconds: how long the tests took.
    """

    mutant: Mutant
    caught: Sequence[str]
    trouble: str
    seconds: float

    @property
    def is_good(self) -> bool:
        return bool(self.caught) and not self.trouble

    @property
    def word(self) -> str:
        """One of: caught, SURVIVED, BROKEN."""
        return "caught" if self.is_good else "BROKEN" if self.trouble else "SURVIVED"


def unfit(tree: Tree, mutants: Sequence[Mutant]) -> dict[str, str]:
    """Tests that do not pass without any mistake, and so can catch none, with the reason.

    All run in one process; those of which that does not tell that they pass, once more each by itself.
    """
    wanted = sorted({m.caught_by for m in mutants if m.caught_by != SIMULATION})
    if not wanted:
        return {}
    run = tree.run(wanted, keep_bytecode=True, longest_s=LONGEST_WITHOUT_S)
    if not run.failed and not run.trouble:
        return {}
    doubtful = [test for test in wanted if not _passes(test, run)]
    return {test: why for test in doubtful if (why := _why_unfit(tree.run([test], keep_bytecode=True)))}


def _passes(test: str, run: Run) -> bool:
    """Whether the test passed, with all its parameters if it names none."""
    failed, passed = (
        [id_ for id_ in ids if id_ == test or id_.startswith(f"{test}[")] for ids in (run.failed, run.passed)
    )
    return bool(passed) and not failed


def _why_unfit(run: Run) -> str:
    if run.trouble:
        return run.trouble
    if run.failed:
        return "it fails without the mistake"
    return "" if run.passed else "it ran nothing"


def trials(tree: Tree, mutants: Sequence[Mutant], by: Sequence[str] = ()) -> Iterator[Verdict]:
    """Try each mutant. Those whose test is `unfit` are broken.

    Args:
        by: tests to run instead of those that are named, to find out which of them would catch it.
    """
    bad = {} if by else unfit(tree, mutants)
    for mutant in mutants:
        began = time.monotonic()
        caught, trouble = _try(tree, mutant, by or (mutant.caught_by,), bad.get(mutant.caught_by, ""))
        yield Verdict(mutant, caught, trouble, time.monotonic() - began)


def trials_of_files(tree: Tree, files: Sequence[str], by: Sequence[str], *, all_: bool = False) -> Iterator[Verdict]:
    """Try each mistake of a standard kind in files, with those tests that run the line that it changes.

    Args:
        by: among these tests.
        all_: name all tests that catch it, not only the first one.

    Raises:
        RuntimeError: a test fails without a mistake.
    """
    lines = tree.coverage(files, by)
    for file in files:
        for line, mutant in operators.mutants_of(file, tree.text(file)):
            began = time.monotonic()
            tests = [test for test, ran in lines.items() if (file, line) in ran]
            if tests:
                with tree.planted(mutant):
                    run = tree.run(tests, stop=not all_)
                hangs = () if run.failed or not run.trouble.startswith(TOO_LONG) else tests[:1]
                verdict = Verdict(mutant, run.failed or hangs, "", time.monotonic() - began)
            else:
                verdict = Verdict(mutant, (), "no test runs this line", 0.0)
            yield verdict


def _try(tree: Tree, mutant: Mutant, tests: Sequence[str], bad: str) -> tuple[Sequence[str], str]:
    if bad:
        return (), bad
    try:
        with tree.planted(mutant):
            run = tree.run(tests)
    except Misfit as exc:
        return (), str(exc)
    return run.failed, "" if run.failed else run.trouble
