"""Mistakes in starting messages: priorities, keys, room in flight, the end of a grant or a lease."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "visit-outlives-its-grant",
        "Q",
        "a visit that began in one second goes on with its grant in the next",
        "emq/dispatch/dispatcher.py",
        "while stint.granted and now_us < until_us:",
        "while stint.granted:",
        "tests/unit/test_dispatcher.py::test_a_grant_is_used_in_its_second_only[one-by-one]",
    ),
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
        "volley-outlives-the-lease",
        "O",
        "tasks of a volley start messages past the lease",
        "emq/dispatch/volley.py",
        "Volley(group, size, now, int(self._starts.until(group, now) * 1e6))",
        "Volley(group, size, now, int(group.counter.valid_until(now) * 1e6))",
        "tests/unit/test_dispatcher.py::test_nothing_is_started_past_the_lease[in-volleys]",
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
        "aging-sinks",
        "P",
        "a message falls by one priority for each step that it waits",
        "emq/groups/priority.py",
        "rank = (i - max(0, now_us - published_us) // self._step_us, published_us)",
        "rank = (i + max(0, now_us - published_us) // self._step_us, published_us)",
        "tests/unit/test_priority.py::test_aging_lifts_a_message_one_priority_for_each_step_it_waits",
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
        "key-releases-two",
        "K",
        "a second message of a key is released before the first one was taken, and gets in front of it",
        "emq/groups/waiting_messages.py",
        "if waiting and (priority, key) not in self.released:",
        "if waiting:",
        "tests/unit/test_owned.py::test_order_within_a_priority_survives_another_priority_of_the_key_in_between",
    ),
    Mutant(
        "serial-slot-is-never-busy",
        "K",
        "a group that runs one at a time starts the next message while the first one waits",
        "emq/dispatch/dispatcher.py",
        "group.busy = group.serial",
        "group.busy = False",
        "tests/integration/test_sorted_topics.py::test_ordering_says_what_may_run_at_the_same_time",
    ),
    Mutant(
        "settled-key-is-not-released",
        "L",
        "what waits for the key of a message that was settled waits for ever",
        "emq/dispatch/endings.py",
        "if message.key is not None and message.started_us:\n                group.finish_key(message.key)",
        "if message.key is not None and message.started_us:\n                pass",
        "tests/integration/test_host_failures.py::test_a_retry_keeps_its_key_serial",
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
        "topic-fills-the-host",
        "I",
        "a topic starts more than its limit in flight",
        "emq/groups/owned.py",
        "room = self.limit - self.in_flight",
        "room = self.limit",
        "tests/integration/test_host_failures.py::"
        "test_at_most_max_in_flight_handlers_of_a_topic_run_and_the_host_has_a_bound_too",
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
        "crowd-piles-up",
        "A",
        "a topic that waits for places leaves something behind each time that it is looked at",
        "emq/quota/places/sharing.py",
        "if len(heap) > 2 * len(waiting) + 64:",
        "if False:",
        "tests/unit/test_sharing.py::test_a_crowd_that_is_looked_at_again_and_again_does_not_grow",
    ),
    Mutant(
        "headers-are-not-counted",
        "I",
        "a host counts the payloads of its messages only, and megabytes of headers fill its memory",
        "emq/message.py",
        "    m.size = stored + HEADER_MEMORY_BYTES * len(m.headers) if m.headers else stored",
        "    m.size = len(m.payload)",
        "tests/integration/test_labels.py::test_a_host_counts_headers_whatever_a_handler_makes_of_them",
    ),
    Mutant(
        "known-by-one-message",
        "I",
        "a topic counts as quick once one of its messages has ended, however many hang",
        "emq/quota/places/sharing.py",
        "places = min(room(full_at, used, held), max(places, pace.proven))",
        "places = room(full_at, used, held)",
        "tests/integration/test_hung_starts.py::"
        "test_topics_that_hang_for_nine_of_ten_messages_leave_their_rate_to_unknown_ones",
    ),
)
