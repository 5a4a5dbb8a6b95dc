"""Mistakes with keys that move between groups, and with groups that retire."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "entry-leaves-both-lanes",
        "L",
        "an entry of a key that moved leaves its lane though the other one did not take it",
        "emq/fetcher/forwarder.py",
        "entry.added = None if isinstance(answer, FAILURES) else entry.taken or answer is True",
        "entry.added = None if isinstance(answer, FAILURES) else True",
        "tests/unit/test_forwarding.py::test_an_entry_stays_whose_other_lane_is_sealed",
    ),
    Mutant(
        "entry-stays-in-a-retired-lane",
        "L",
        "an entry that was handed on to a group that is gone by now is left there",
        "emq/fetcher/forwarder.py",
        "await self._take_back([entry for entry in batch if entry.added and not entry.taken])",
        "pass",
        "tests/unit/test_forwarding.py::test_an_entry_is_taken_back_from_a_group_that_was_retired_meanwhile",
    ),
    Mutant(
        "gate-opens-too-early",
        "K",
        "a key's new group starts its messages while its old group still holds some",
        "emq/topics/key_layouts.py",
        "return group == beside or group >= self._topic.groups or self.passed.get(group, -1) >= layout",
        "return True",
        "tests/unit/test_layouts.py::test_a_message_waits_for_each_former_group_of_its_key",
    ),
    Mutant(
        "gate-trusts-an-unknown-layout",
        "K",
        "a host that has not seen a change of the catalog starts what is routed by it",
        "emq/topics/key_layouts.py",
        "if message.layout > self._topic.layout:\n"
        "            return True  # a producer has seen a change of the catalog that this host has not",
        "",
        "tests/unit/test_layouts.py::test_what_was_routed_by_a_layout_that_the_host_does_not_know_waits",
    ),
    Mutant(
        "gate-opens-without-a-note",
        "P",
        "a message that the gate held back counts as ready all the time, so that proof and audit see an inversion",
        "emq/groups/waiting_messages.py",
        "m.ready_us = now_us",
        "pass",
        "tests/integration/test_trail_of_resizing.py::"
        "test_a_key_that_waits_for_its_former_group_is_not_overtaken_and_one_that_may_start_is",
    ),
    Mutant(
        "open-gate-excuses-all",
        "P",
        "a message that the gate never held counts as ready only from the gate's opening, which hides inversions",
        "emq/groups/waiting_messages.py",
        "if former.holds(m, self.index):",
        "if True:",
        "tests/unit/test_layouts.py::test_what_waits_for_its_running_key_alone_was_ready_all_the_time",
    ),
    Mutant(
        "gate-forgets-what-it-looks-at-again",
        "P",
        "a message that the gate held until now and that is back in its buffer counts as ready all the time",
        "emq/groups/waiting_messages.py",
        "(*self.blocked.values(), *([m] for m in self.released.values()))",
        "self.blocked.values()",
        "tests/unit/test_layouts.py::test_what_the_gate_holds_on_is_ready_when_there_is_no_gate_any_more",
    ),
    Mutant(
        "group-passes-what-runs",
        "K",
        "a group counts as past an earlier layout while messages of it run",
        "emq/host/passage_loop.py",
        "if oldest <= number or any(",
        "if any(",
        "tests/integration/test_moving_keys.py::"
        "test_keys_keep_their_order_while_their_topic_grows_and_shrinks[window-0]",
    ),
    Mutant(
        "group-passes-what-is-unread",
        "K",
        "a group counts as past an earlier layout before its queues are read up to it",
        "emq/host/passage_loop.py",
        "q.position < min(t, tails.get(q.name, t))",
        "q.position < 0",
        "tests/integration/test_moving_keys.py::"
        "test_what_no_host_has_read_yet_goes_before_what_is_published_after_the_change",
    ),
    Mutant(
        "stale-owner-notes-a-passage",
        "K",
        "a stale owner says that a group has passed, whose newer owner still holds old messages",
        "emq/host/passage_loop.py",
        "return [p for group, p in passed if group.name in owned and not group.lost]",
        "return [p for group, p in passed]",
        "tests/integration/test_moving_keys.py::"
        "test_a_host_that_lost_a_group_unawares_does_not_say_what_the_group_has_passed",
    ),
    Mutant(
        "layout-is-forgotten-early",
        "K",
        "an earlier layout is dropped from the topic when one of its groups has passed",
        "emq/host/passage_loop.py",
        "if all(gate.is_past(group, layout.number) for group in range(layout.groups))",
        "if any(gate.is_past(group, layout.number) for group in range(layout.groups))",
        "tests/integration/test_moving_keys.py::"
        "test_keys_keep_their_order_while_their_topic_grows_and_shrinks[window-0]",
    ),
    Mutant(
        "passage-is-taken-back",
        "K",
        "SQLite notes that a group has not passed after it has",
        "emq/database/sql/sqlite/passages_note.sql",
        "SET passed = max(emq_passages.passed, excluded.passed)",
        "SET passed = excluded.passed",
        "tests/contract/test_noted_passages.py::test_what_was_noted_first_counts[sqlite]",
    ),
    Mutant(
        "lost-seals-count-as-old",
        "L",
        "seals that a store has lost, and that are set again, count as if they had held all the time",
        "emq/host/retirement.py",
        "del self._stable[topic.name]  # the store has lost its last writes, and seals set now may be lost as well",
        "pass",
        "tests/unit/test_retiring.py::test_a_group_is_not_dropped_while_the_store_may_still_lose_its_seals",
    ),
    Mutant(
        "retiring-queue-is-sealed-over-new-messages",
        "L",
        "a retired queue is emptied up to its tail before it is sealed",
        "emq/host/retirement.py",
        "finished = [saved[q].watermark if q in saved else b.head for q, b in zip(part, bounds, strict=True)]",
        "finished = [b.tail for q, b in zip(part, bounds, strict=True)]",
        "tests/unit/test_retiring.py::test_a_message_that_comes_to_a_retiring_queue_stays_there_or_is_refused",
    ),
    Mutant(
        "retired-lane-is-not-rescued",
        "L",
        "what came into a retired group's lane as it was dropped is left there",
        "emq/host/retirement.py",
        "await self._rescue(topic.name)\n        return True",
        "return True",
        "tests/unit/test_retiring.py::test_an_entry_that_comes_to_a_retiring_lane_stays_there_or_is_moved",
    ),
    Mutant(
        "new-topic-begins-at-the-lowest-layout",
        "L",
        "a topic that the database has lost is created again with layouts that its queues and messages have outgrown",
        "emq/topics/catalog.py",
        "new = [t if t.is_sorted else msgspec.structs.replace(t, layout=version) for t in topics]",
        "new = topics",
        "tests/simulation/test_simulated_database_losses.py::"
        "test_whatever_operators_did_meanwhile_all_is_well_when_they_have_done_it_again[empty-replica]",
    ),
)
