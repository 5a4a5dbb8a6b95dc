"""Some seeds, one after the other, in a process of their own."""

from __future__ import annotations

import gc
from collections import Counter
from typing import NamedTuple

from support.simulation.keepers import Keep, keeping
from support.simulation.report import report
from support.simulation.run import simulate


class Result(NamedTuple):
    """Attributes:
    failures: seeds, each with what is to be told of it.
    happened: see `Outcome`, summed up; "runs" counts the seeds that could be simulated.
    """

    seeds: int
    failures: list[tuple[int, str]]
    happened: Counter[str]


def run_batch(seeds: range, store: str) -> Result:
    """Simulate some seeds in this process, over a store of that name; return failures and counts."""
    with keeping(store) as keep:
        return _run(seeds, keep)


def _run(seeds: range, keep: Keep) -> Result:
    gc.disable()  # a seed's garbage is collected once, at its end
    gc.freeze()  # and what was imported before is no garbage: it is not looked through each time
    failures, happened = [], Counter[str]()
    for seed in seeds:
        try:
            outcome = simulate(seed, keep)
        except Exception as exc:
            failures.append((seed, f"SEED={seed} could not be simulated: {exc!r}"))
            continue
        happened.update({what: n for what, n in outcome.happened.items() if n})
        happened["runs"] += 1
        if outcome.violations:
            failures.append((seed, report(outcome)))
        del outcome
        gc.collect()
    return Result(len(seeds), failures, happened)
