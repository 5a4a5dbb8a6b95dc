"""Mistakes in keeping the time."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "time-goes-back",
        "Q",
        "the environment's time goes back when the reference's clock does",
        "emq/loops/timekeeping.py",
        "return Successor(max(noted.time_us, reference_us))",
        "return Successor(reference_us)",
        "tests/unit/test_timekeeping.py::test_the_time_of_an_environment_never_goes_back_and_returns_to_the_reference",
    ),
    Mutant(
        "answer-counts-as-it-came",
        "Q",
        "the reference's answer is taken for the time of its arrival, not of the middle of its round trip",
        "emq/loops/timekeeping.py",
        "middle_us = (asked.sent_us + asked.came_us) // 2",
        "middle_us = asked.came_us",
        "tests/unit/test_timekeeping.py::test_an_answer_is_taken_for_the_middle_of_its_round_trip",
    ),
    Mutant(
        "worst-answer-is-kept",
        "Q",
        "the answer with the longest round trip counts",
        "emq/loops/timekeeping.py",
        "return min(self._answers, key=lambda a: a.error_at(now_us), default=None)",
        "return max(self._answers, key=lambda a: a.error_at(now_us), default=None)",
        "tests/unit/test_timekeeping.py::test_the_shortest_round_trip_counts_and_one_that_is_too_long_tells_nothing",
    ),
    Mutant(
        "drift-is-forgotten",
        "Q",
        "a clock that was right once stays sure for ever",
        "emq/loops/timekeeping.py",
        "return self.error_us + (passed_us - self.at_us) * DRIFT",
        "return self.error_us",
        "tests/unit/test_timekeeping.py::"
        "test_a_host_goes_on_without_the_database_until_its_clock_may_be_wrong_by_the_bound",
    ),
    Mutant(
        "doubtful-host-starts",
        "Q",
        "a host whose time is uncertain beyond the bound goes on",
        "emq/loops/timekeeping.py",
        "if best is None or best.error_us >= self._bound_us:\n            return 0.0",
        "if best is None or best.error_us >= self._bound_us:\n            return float(2**40)",
        "tests/unit/test_timekeeping.py::test_the_shortest_round_trip_counts_and_one_that_is_too_long_tells_nothing",
    ),
    Mutant(
        "landing-host-starts-at-once",
        "Q",
        "a host whose clock jumped forward starts in the second in which it lands",
        "emq/loops/timekeeping.py",
        "self._landed = True",
        "pass",
        "tests/unit/test_timekeeping.py::"
        "test_a_host_whose_clock_jumps_forward_starts_nothing_in_the_second_in_which_it_lands",
    ),
    Mutant(
        "set-back-reference-is-believed",
        "Q",
        "a host whose reference's clock was set back to after the last note follows it",
        "emq/loops/timekeeping.py",
        "return least_us < back_us and (back_us < UNNOTED_US or asked.time_us < self._heard_us)",
        "return False",
        "tests/unit/test_timekeeping_shared.py::"
        "test_a_host_that_counted_on_says_so_where_nobody_knows_what_passed_since_the_note",
    ),
    Mutant(
        "anchor-of-a-host-is-ignored",
        "Q",
        "the environment's time does not go on from the clock of a host that has counted on",
        "emq/database/environment_time.py",
        "time_us = max(time_us, middle_us + anchor_us)",
        "pass",
        "tests/unit/test_timekeeping_shared.py::"
        "test_a_host_that_counted_on_says_so_where_nobody_knows_what_passed_since_the_note",
    ),
    Mutant(
        "seconds-after-a-note-are-given-again",
        "Q",
        "where the reference's clock was set back behind the note, time goes on from the note",
        "emq/loops/timekeeping.py",
        "return Successor(max(noted.time_us + counted_us, reference_us), True)",
        "return Successor(max(noted.time_us, reference_us), True)",
        "tests/unit/test_timekeeping_shared.py::"
        "test_seconds_that_hosts_counted_after_the_last_note_are_not_given_again_when_the_clock_is_set_back",
    ),
    Mutant(
        "clock-set-back-is-not-noted",
        "Q",
        "that the reference's clock was set back is not noted, so that the next host goes by it",
        "emq/database/environment_time.py",
        "found.has_jumped or not 0",
        "not 0",
        "tests/unit/test_timekeeping_shared.py::"
        "test_hosts_that_run_keep_the_time_from_going_back_when_the_clock_is_set_back_by_less_than_the_notes_age",
    ),
    Mutant(
        "lost-time-is-not-brought-back",
        "Q",
        "hosts follow a database that has lost its note of the time",
        "emq/loops/timekeeping.py",
        "(back_us < UNNOTED_US or asked.time_us < self._heard_us)",
        "back_us < UNNOTED_US",
        "tests/unit/test_timekeeping_shared.py::"
        "test_hosts_bring_the_time_back_to_a_database_that_has_lost_that_its_clock_was_set_back",
    ),
    Mutant(
        "host-joins-before-it-knows-the-time",
        "Q",
        "a host that starts while the database is away goes by its machine's clock",
        "emq/host/host.py",
        "await self.timekeeper.known()",
        "pass",
        "tests/unit/test_host_joining.py::"
        "test_a_host_does_not_join_before_it_knows_the_time_and_stops_at_once_meanwhile",
    ),
)
