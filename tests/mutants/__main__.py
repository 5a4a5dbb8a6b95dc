"""Plant mistakes in a copy of the code, one after the other, and see that the tests catch each."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import Progress

from mutants import collection, table, tree, trial


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="names of subsystems or mutants, also with * (default: all)")
    parser.add_argument(
        "--by", nargs="+", default=[], help="run these tests instead, to see which of them catch the mutants"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--write", action="store_true", help="only write the table into README.md")
    parser.add_argument(
        "--files", nargs="+", default=[], help="plant mistakes of a standard kind in these files, and run --by"
    )
    parser.add_argument("--all", action="store_true", help="with --files: name all tests that catch a mistake")
    options = parser.parse_args(arguments)
    if options.write:
        table.README.write_text(table.page(collection.SUBSYSTEMS), encoding="utf-8")
        return 0
    mutants = collection.chosen(options.names)
    if options.files and not options.by:
        parser.error("name the tests to run for --files: --by tests/unit/test_counter.py")
    if not mutants:
        parser.error(f"no mutant is named like {' '.join(options.names)}")
    began = time.monotonic()
    with tree.copied() as copy:
        if options.files:
            trials = trial.trials_of_files(copy, options.files, options.by, all_=options.all)
        else:
            trials = trial.trials(copy, mutants, options.by)
        verdicts = _try(trials, None if options.files else len(mutants), options.json)
    bad = sum(not verdict.is_good for verdict in verdicts)
    if options.json:
        sys.stdout.write(json.dumps([table.record(verdict) for verdict in verdicts], indent=1) + "\n")
    else:
        sys.stdout.write(
            f"{len(verdicts) - bad} of {len(verdicts)} mutants were caught, in {time.monotonic() - began:.0f} s\n"
        )
    return 1 if bad else 0


def _try(trials: Iterator[trial.Verdict], total: int | None, silent: bool) -> list[trial.Verdict]:
    verdicts = []
    console = Console(stderr=True, soft_wrap=True)
    with Progress(console=console, disable=silent or not console.is_terminal) as progress:
        task = progress.add_task("mutants", total=total)
        for verdict in trials:
            verdicts.append(verdict)
            progress.update(task, advance=1)
            if not silent:
                progress.console.print(table.line(verdict), markup=False, highlight=False)
    return verdicts


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
