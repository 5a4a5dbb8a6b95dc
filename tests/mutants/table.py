"""The mutants as a table: for the terminal, and for README.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mutants.mutant import PROMISES, ROOT, SEEDS, SIMULATION, Mutant
from mutants.trial import Verdict

README = ROOT / "tests/mutants/README.md"

_HEAD = """\
# Mutants

Each line is a small mistake that somebody could make in EMQ's own code. It breaks one of the promises, and the test
beside it must then fail. `make mutants` proves that: it plants the mistakes one after the other in a copy of the tree,
runs the test of each, and fails if a mistake survives.

    make mutants                              # all of them
    make mutants NAMES="dispatch redis-*"     # those of a subsystem, or by name
    make mutants NAMES=watermark-leaps BY="tests/unit tests/property"    # which of these tests would catch it?
    make mutants WRITE=1                      # write this file again, after a change of the list
    make mutants FILES=emq/quota/counter.py BY=tests/unit/test_counter.py    # mistakes of a standard kind in any file

The list is in the Python files of this folder, one for each subsystem. A mutant is a text that occurs once in a file of
the product, and the text that takes its place. When you change that piece of code, say the mistake again in its new
words; `tests/unit/test_mutants.py` tells you which. When you write a new mechanism, add the mistake that would break it
and that you expect to survive: a mistake that survives is a hole in the tests.

The list holds one mistake for each mechanism that keeps a promise. For variants of these, and for all other mistakes,
there are operators (`operators.py`): negate a condition, swap < and <= or other comparisons, replace a constant, drop a
statement, return early. With `FILES`, `make mutants` plants each of them at each place in these files, and runs those
tests of `BY` that run the changed line. It prints SURVIVED where all of them pass: a test is missing there, or the
change changes nothing. `ALL=1` runs all these tests, to see which mistakes a test catches alone.
`python -m support.coverage_map` (in `tests/`) prints tests that run no line of the product alone; give it the output of
`ALL=1 JSON=1` as `--kills`, and it leaves out those that catch a mistake alone.

Those of `checking` are mistakes in the checkers of a trail, which then pass over what breaks the promise. A checker
counts only if a fault that is planted in a trail makes it fail.

"""


def page(subsystems: Mapping[str, Sequence[Mutant]]) -> str:
    """Return the whole README.md."""
    mutants = [mutant for part in subsystems.values() for mutant in part]
    lines = [f"There are {len(mutants)} mutants. The promises:", ""]
    for letter, words in PROMISES.items():
        lines.append(f"- {letter}: {words} ({sum(m.promise == letter for m in mutants)} mutants)")
    lines += ["", "| subsystem | mutant | promise | mistake | file | caught by |", "|---|---|---|---|---|---|"]
    for name, part in subsystems.items():
        lines += [f"| {name} | {m.name} | {m.promise} | {m.mistake} | `{m.file}` | {_by(m)} |" for m in part]
    return _HEAD + "\n".join(lines) + "\n"


def _by(mutant: Mutant) -> str:
    if mutant.caught_by == SIMULATION:
        return f"the simulation, within {SEEDS} seeds"
    return f"`{mutant.caught_by.removeprefix('tests/')}`"


def line(verdict: Verdict) -> str:
    """Return one line for the terminal."""
    m = verdict.mutant
    by = verdict.trouble or (", ".join(verdict.caught) if verdict.caught else f"passes: {m.caught_by or m.mistake}")
    return f"{verdict.word:8}  {m.promise}  {m.name:44}  {verdict.seconds:6.1f} s  {by}"


def record(verdict: Verdict) -> dict[str, object]:
    """Return the verdict as plain values for JSON."""
    m = verdict.mutant
    return {
        "name": m.name,
        "promise": m.promise,
        "mistake": m.mistake,
        "file": m.file,
        "verdict": verdict.word.lower(),
        "caught": list(verdict.caught),
        "trouble": verdict.trouble,
        "seconds": round(verdict.seconds, 2),
    }
