"""Simulate seeds until one of them violates a promise: `python -m mutants.seeds 200`, with PYTHONHASHSEED=0.

Exits with 1 if a seed violated a promise, with 0 if no seed did, and with 2 if a seed could not be simulated.
"""

from __future__ import annotations

import sys
import traceback

from support.simulation.run import simulate


def main(arguments: list[str]) -> int:
    for seed in range(int(arguments[0])):
        try:
            outcome = simulate(seed)
        except Exception:
            traceback.print_exc()
            return 2
        if outcome.violations:
            sys.stdout.write(f"seed {seed}: {outcome.violations[0]}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
