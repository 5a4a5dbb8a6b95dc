"""Mistakes in settling: acknowledgements, retries, dead letters."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "retry-forgets-its-priority",
        "P",
        "a message that failed in its queue comes back from the lane at the highest priority",
        "emq/dispatch/settle_requests.py",
        "body, decision.due_ms, epoch=group.epoch, priority=m.priority, since_ms=since_ms)",
        "body, decision.due_ms, epoch=group.epoch, since_ms=since_ms)",
        "tests/integration/test_host_failures.py::test_whatever_comes_to_wait_in_a_lane_ranks_by_its_own_priority",
    ),
    Mutant(
        "refused-retry-is-finished",
        "L",
        "a failed message counts as finished although the store refused to take its retry",
        "emq/dispatch/settler.py",
        "self._events.refused(group, m)",
        "self._events.settled(group, m)",
        "tests/unit/test_settler.py::test_a_refusal_means_that_the_group_is_lost_and_nothing_was_retried",
    ),
    Mutant(
        "stale-owner-adds-retries",
        "O",
        "a retry is added without its owner's epoch, so that a stale owner's retry is taken",
        "emq/dispatch/settle_requests.py",
        "decision.due_ms, epoch=group.epoch, priority=m.priority, since_ms=since_ms)",
        "decision.due_ms, priority=m.priority, since_ms=since_ms)",
        "tests/unit/test_settler.py::test_a_refusal_means_that_the_group_is_lost_and_nothing_was_retried",
    ),
    Mutant(
        "proven-retry-is-repeated",
        "D",
        "an add whose answer was lost is sent again although its entry was claimed meanwhile",
        "emq/dispatch/settle_requests.py",
        "return self.proven\n",
        "return False\n",
        "tests/unit/test_settler.py::test_a_move_whose_answer_was_lost_is_not_repeated_once_its_entry_was_claimed",
    ),
    Mutant(
        "one-attempt-too-many",
        "X",
        "a message is tried once more than its attempts",
        "emq/dispatch/retry.py",
        "attempt >= options.max_attempts",
        "attempt > options.max_attempts",
        "tests/unit/test_retry.py::test_the_last_attempt_and_a_reject_end_in_the_dead_letters",
    ),
)
