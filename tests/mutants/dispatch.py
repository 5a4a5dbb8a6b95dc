"""Mistakes in dispatch: starting messages, calling handlers, settling."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "visit-outlives-the-lease",
        "O",
        "a visit goes on past the lease, as after a stopped process was continued",
        "emq/dispatch/dispatcher.py",
        "int(now * 1e6), int(starts.until(group, now) * 1e6)",
        "int(now * 1e6), int(group.counter.valid_until(now) * 1e6)",
        "tests/unit/test_dispatcher.py::test_nothing_is_started_past_the_lease[one-by-one]",
    ),
    Mutant(
        "priority-is-inverted",
        "P",
        "the lowest priority starts first",
        "emq/groups/waiting_messages.py",
        "for buffer in self.buffers:\n                    if buffer:\n                        break",
        "for buffer in reversed(self.buffers):\n                    if buffer:\n                        break",
        "tests/unit/test_owned.py::test_the_highest_priority_is_taken_first_and_each_in_order",
    ),
    Mutant(
        "key-runs-twice",
        "K",
        "a message starts while another one of its key runs",
        "emq/groups/waiting_messages.py",
        "if message.key in self.running or (gate is not None and gate.holds(message, self.index)):",
        "if gate is not None and gate.holds(message, self.index):",
        "tests/unit/test_owned.py::test_a_message_whose_key_runs_waits_and_others_pass_it",
    ),
    Mutant(
        "waiting-message-is-finished-with-its-run",
        "L",
        "a message whose handler waits counts as finished, and a crash then loses it",
        "emq/dispatch/dispatcher.py",
        "self.endings.finish_run(group, stint, message.offset)",
        "self.endings.finish_run(group, stint, message.offset + 1)",
        "tests/unit/test_dispatcher.py::"
        "test_messages_of_a_visit_are_finished_up_to_one_that_does_not_succeed_at_once[waits]",
    ),
    Mutant(
        "expired-batch-starts",
        "X",
        "a handler that takes lists gets messages that have outlived their time",
        "emq/dispatch/starts.py",
        "if 0 < message.expires_us <= now_us:\n"
        "                self._endings.expire_taken(group, message)\n"
        "                continue\n"
        "            message.started_us = now_us\n",
        "message.started_us = now_us\n",
        "tests/unit/test_dispatcher.py::"
        "test_what_has_outlived_its_time_is_a_dead_letter_and_uses_up_no_quota[in-batches]",
    ),
    Mutant(
        "slow-topic-takes-all-places",
        "I",
        "a topic may hold every free place of the host",
        "emq/quota/places/sharing.py",
        "return min(free, ALPHA * free - held)",
        "return free",
        "tests/unit/test_sharing.py::test_a_lone_topic_leaves_a_fifth_of_the_places_free",
    ),
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
    Mutant(
        "unknown-ids-acknowledge-a-batch",
        "L",
        "a PartialFailure with ids that are not in the batch acknowledges the messages that it does not name",
        "emq/dispatch/retry.py",
        "failures = {m.uid: failures.get(m.uid, unclear) for m in batch}",
        "pass",
        "tests/integration/test_odd_calls.py"
        "::test_a_partial_failure_with_an_id_of_another_kind_acknowledges_nothing_in_silence",
    ),
)
