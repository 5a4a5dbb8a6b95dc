"""Mistakes in starting messages: priorities, keys, room in flight, the end of a grant or a lease."""

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
)
