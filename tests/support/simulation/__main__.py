"""Many seeds, in several processes: `python -m support.simulation --seeds 5000`, or one of them: `--seed 123`."""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from rich.console import Console
from rich.progress import Progress

from support.simulation.batch import Result, run_batch
from support.simulation.keepers import LEFT_OUT, keeping
from support.simulation.report import replay, report
from support.simulation.run import simulate

Failures = Sequence[tuple[int, str]]

BATCH = 5
SHOWN = 5


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="number of seeds to run (default 300)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument(
        "--store", choices=sorted(LEFT_OUT), default="memory", help="run over this store (default memory)"
    )
    parser.add_argument("--seed", type=int, help="run only this seed, and print its whole history if it fails")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of names is part of a schedule.
        os.execve(sys.executable, [sys.executable, "-m", "support.simulation", *arguments], _environment())
    if options.seed is not None:
        return _one(options.seed, options.store)
    return _many(options)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONHASHSEED": "0"}


def _one(seed: int, store: str) -> int:
    with keeping(store) as keep:
        outcome = simulate(seed, keep)
    for at, group, text in outcome.evidence.history:
        _say(f"{at:9.3f} s  {group:12} {text}")
    if outcome.violations:
        _say(report(outcome))
        return 1
    _say(outcome.schedule)
    _say(f"nothing was violated; {_summary(outcome.happened)}")
    return 0


def _many(options: argparse.Namespace) -> int:
    failures: list[tuple[int, str]] = []
    happened: Counter[str] = Counter()
    began, done = time.monotonic(), 0
    batches = [
        range(first, min(first + BATCH, options.first + options.seeds))
        for first in range(options.first, options.first + options.seeds, BATCH)
    ]
    with _bar(options.seeds, None if options.json else sys.stderr) as bar:
        for result in _results(batches, options.store, options.jobs):
            done += result.seeds
            failures += result.failures
            happened.update(result.happened)
            bar(done, result.failures)
    failures.sort()
    if options.json:
        _say(json.dumps({"seeds": done, "failures": failures, "happened": happened}))
    else:
        _tell(options.store, done, failures, happened, time.monotonic() - began)
    return 1 if failures else 0


def _results(batches: list[range], store: str, jobs: int) -> Iterator[Result]:
    if jobs == 1:  # without a process to start
        yield from (run_batch(batch, store) for batch in batches)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        for future in concurrent.futures.as_completed([pool.submit(run_batch, batch, store) for batch in batches]):
            yield future.result()


def _tell(store: str, done: int, failures: list[tuple[int, str]], happened: Counter[str], seconds: float) -> None:
    for _, text in failures[:SHOWN]:
        _say(f"{text}\n")
    _say(f"{done} seeds in {seconds:.0f} s; {_summary(happened)}")
    if failures:
        _say(f"{len(failures)} seeds fail: {' '.join(str(seed) for seed, _ in failures)}")
        _say(f"replay one with: {replay(failures[0][0], store)}")


def _say(what: object) -> None:
    sys.stdout.write(f"{what}\n")


def _summary(happened: Counter[str]) -> str:
    return ", ".join(f"{n} {what}" for what, n in sorted(happened.items()))


@contextlib.contextmanager
def _bar(total: int, out: TextIO | None) -> Iterator[Callable[[int, Failures], None]]:
    """A progress bar, and each failure as it comes; where nobody watches, only the failures."""
    if out is None:
        yield lambda done, failures: None
        return
    with Progress(console=Console(file=out), disable=not out.isatty()) as progress:
        task = progress.add_task("seeds", total=total)

        def advance(done: int, failures: Failures) -> None:
            progress.update(task, completed=done)
            for _, text in failures:
                progress.console.print(text.partition("\n")[0], markup=False, highlight=False)

        yield advance


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
