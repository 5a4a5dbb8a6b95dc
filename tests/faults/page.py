"""The page docs/faults.md: the table, with what was seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from faults.seen import TESTS, Seen, of
from faults.table import STORES, Cell, Fault

PAGE = TESTS.parent / "docs" / "faults.md"

HEAD = """# Faults

This page says what is broken on purpose, which promises must hold meanwhile, and what was seen. `make faults` runs
every test named here, in this order, for hours; a run that was stopped goes on where it was. Then
`make faults FAULTS_ARGS=--write` writes this page. `FAULTS_ARGS=--short` takes the tests of `make test` only, a few
minutes; `FAULTS_ARGS='--only "read-only"'` those of one fault. The table is in `tests/faults/table.py`.

A cell holds if all its tests pass. The letters are those of [the promises](promises.md). Behind a letter is a judge
that knows only what publishers were told, what handlers or receivers wrote down, and what the stores hold:

- L: 0 of the messages whose publish returned were lost.
- D: 0 repeats after a clean stop; after a crash only of what was in flight or not yet saved.
- Q: 0 seconds over the cap. P: 0 inversions of priority. K: 0 messages of a key out of order.
- O: 0 starts by a former owner. M: 0 checkpoints went back. X: each dead letter is there once, with its reason.
- I: what the fault does not touch goes on. A: nothing is polled meanwhile.

*Repeats* counts deliveries that came again. *Pause* is the longest time between two starts of one group, or of the
one topic, while messages waited: it includes the fault. *Back* is the time from the end of a fault until all was
delivered. Where a test measures none of them, the column is empty. Tests of connections and of stores run under
asyncio's event loop and under uvloop.
"""


def cells(fault: Fault) -> Iterator[Cell]:
    """Yield the cells of a fault that have tests."""
    yield from (cell for store in STORES if isinstance(cell := fault.cells[store], Cell))


def verdicts(faults: Sequence[Fault], seen: Seen) -> Counter[str]:
    """Return the number of cells of each verdict."""
    return Counter(_verdict(cell.tests, seen) for fault in faults for cell in cells(fault))


def page(faults: Sequence[Fault], seen: Seen) -> str:
    commits = sorted({line["commit"] for line in seen.values()})
    days = sorted({line["on"] for line in seen.values()})
    when = f"Seen from {days[0]} to {days[-1]}, at {', '.join(commits)}." if days else ""
    rows = [
        f"| [{f.name}](#{_anchor(f.name)}) | " + " | ".join(_brief(f.cells[s], seen) for s in STORES) for f in faults
    ]
    table = "\n".join([f"| | {' | '.join(STORES)} |", "|---" * (len(STORES) + 1) + "|", *(f"{row} |" for row in rows)])
    return "\n".join([HEAD, when, "", table, "", *(_section(fault, seen) for fault in faults)])


def _anchor(name: str) -> str:
    return "".join(c for c in name.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def _brief(cell: Cell | str, seen: Seen) -> str:
    return "none" if isinstance(cell, str) else f"{cell.shows} {_verdict(cell.tests, seen)}"


def _verdict(names: Sequence[str], seen: Seen) -> str:
    results = [[seen[test]["result"] for test in of([name], seen)] for name in names]
    if any("failed" in found for found in results):
        return "**failed**"
    if not any("passed" in found for found in results):
        return "not run yet"
    return "held" if all("passed" in found for found in results) else "held, in part not run yet"


def _section(fault: Fault, seen: Seen) -> str:
    lines = [f"## {fault.name[0].upper()}{fault.name[1:]}", "", fault.does, ""]
    lines += ["| | promises | test | seen | messages | repeats | pause s | back s |", "|---" * 8 + "|"]
    for store in STORES:
        if isinstance(cell := fault.cells[store], Cell):
            lines += [f"| {store} | {cell.shows} | {_row(name, seen)} |" for name in cell.tests]
    empty: dict[str, list[str]] = {}
    for store in STORES:
        if isinstance(cell := fault.cells[store], str):
            empty.setdefault(cell, []).append(store)
    lines += ["", *(f"- {', '.join(stores)}: {reason}." for reason, stores in empty.items()), ""]
    return "\n".join(lines)


def _row(name: str, seen: Seen) -> str:
    runs = [seen[test] for test in of([name], seen) if seen[test]["result"] != "skipped"]
    passed = sum(run["result"] == "passed" for run in runs)
    is_short = all(run["form"] == "short" for run in runs)
    verdict = f"{passed} of {len(runs)} passed{', short form' if is_short else ''}" if runs else "not run yet"
    measured = " | ".join(_spread(runs, what) for what in ("messages", "repeats", "pause_s", "back_s"))
    return f"`{name}` | {verdict} | {measured}"


def _spread(runs: Sequence[Any], what: str) -> str:
    """The least and the most of what was measured."""
    found = sorted(run[what] for run in runs if what in run)
    if not found:
        return ""
    return f"{found[0]}" if found[0] == found[-1] else f"{found[0]} to {found[-1]}"
