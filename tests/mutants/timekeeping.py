"""Mistakes in keeping the time."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "time-goes-back",
        "Q",
        "the environment's time goes back when the reference's clock does",
        "emq/runtime/timekeeping.py",
        "return Successor(max(noted.time_us, reference_us))",
        "return Successor(reference_us)",
        "tests/unit/test_timekeeping.py::test_the_time_of_an_environment_never_goes_back_and_returns_to_the_reference",
    ),
    Mutant(
        "doubtful-host-starts",
        "Q",
        "a host whose time is uncertain beyond the bound goes on",
        "emq/runtime/timekeeping.py",
        "if best is None or best.error_us >= self._bound_us:\n            return 0.0",
        "if best is None or best.error_us >= self._bound_us:\n            return float(2**40)",
        "tests/unit/test_timekeeping.py::test_the_shortest_round_trip_counts_and_one_that_is_too_long_tells_nothing",
    ),
)
