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
        "drift-is-forgotten",
        "Q",
        "a clock that was right once stays sure for ever",
        "emq/runtime/timekeeping.py",
        "return self.error_us + (passed_us - self.at_us) * DRIFT",
        "return self.error_us",
        "tests/unit/test_timekeeping.py::"
        "test_a_host_goes_on_without_the_database_until_its_clock_may_be_wrong_by_the_bound",
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
    Mutant(
        "set-back-reference-is-believed",
        "Q",
        "a host whose reference's clock was set back to after the last note follows it",
        "emq/runtime/timekeeping.py",
        "return least_us < back_us and (back_us < UNNOTED_US or asked.time_us < self._heard_us)",
        "return False",
        "tests/unit/test_timekeeping_shared.py::"
        "test_a_host_that_counted_on_says_so_where_nobody_knows_what_passed_since_the_note",
    ),
)
