"""Mistakes in claiming from the slots of sorted topics."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "slot-in-doubt-is-claimed",
        "D",
        "a slot is claimed from while verdicts on its members are in doubt",
        "emq/fetcher/slot_claimer.py",
        "elif slot.unsure or (slot.suspect and slot.settling):",
        "elif False:",
        "tests/integration/test_sorted_doubts.py::"
        "test_a_twin_whose_claim_is_lost_while_the_first_is_being_settled_is_delivered_soon[0.05]",
    ),
    Mutant(
        "lost-members-are-forgotten",
        "L",
        "what a claim of a slot took whose answer was lost waits for its time-out",
        "emq/fetcher/slot_claimer.py",
        "slot.suspect.add(now_ms // 1000)",
        "slot.suspect.discard(-1)",
        "tests/integration/test_sorted_topics.py::test_a_claim_whose_answer_was_lost_is_found_again",
    ),
    Mutant(
        "recovery-takes-what-runs",
        "D",
        "members that time out in the store are rolled back though they run here",
        "emq/fetcher/slot_claimer.py",
        "Recover(s.slot, s.group.epoch, older_than_ms, list(s.held), why, lost)",
        "Recover(s.slot, s.group.epoch, older_than_ms, [], why, lost)",
        "tests/integration/test_sorted_doubts.py::"
        "test_a_running_member_is_not_recovered_when_its_twins_acknowledgement_was_slow",
    ),
    Mutant(
        "timed-out-members-stay",
        "L",
        "members of consumers that died are never rolled back",
        "emq/fetcher/slot_claimer.py",
        "if state.oldest_prepared_ms is not None and state.oldest_prepared_ms < now_ms - timeout_ms:",
        "if False:",
        "tests/integration/test_sorted_topics.py::test_what_a_foreign_consumer_left_in_prepare_times_out",
    ),
    Mutant(
        "slot-sweep-skips-the-rest",
        "L",
        "the sweep never comes to the last slots",
        "emq/fetcher/slot_claimer.py",
        "size = -(-len(slots) // steps)",
        "size = len(slots) // steps",
        "tests/unit/test_slot_sweep.py::test_each_slot_is_looked_at_once_in_each_round[1]",
    ),
    Mutant(
        "claims-under-way-count-as-room",
        "I",
        "claims from several slots bring more than their topic has room for",
        "emq/fetcher/slot_claimer.py",
        "return max(0, min(startable, owner.room() - owner.coming))",
        "return max(0, min(startable, owner.room()))",
        "tests/unit/test_fetcher.py::test_claims_under_way_from_other_slots_take_their_topics_room",
    ),
    Mutant(
        "serial-slot-claims-ahead",
        "K",
        "a serial slot claims more than may run, so that what is sent again does not merge",
        "emq/fetcher/slot_claimer.py",
        "startable = min(startable, slot.run - slot.buffered)",
        "pass",
        "tests/unit/test_fetcher.py::"
        "test_where_messages_run_one_by_one_no_more_are_claimed_than_have_run_without_waiting",
    ),
    Mutant(
        "message-sent-again-starts-as-it-was",
        "K",
        "what waits for a key starts though it was sent again meanwhile",
        "emq/fetcher/slot_claimer.py",
        "if answer is not False:  # also one of which it is not known",
        "if False:",
        "tests/integration/test_sorted_edges.py::"
        "test_what_is_sent_again_while_it_waits_for_its_key_runs_once_with_its_new_payload",
    ),
    Mutant(
        "late-claim-is-not-given-back",
        "X",
        "what a claim brings when its group is being let go of stays claimed, and loses an attempt",
        "emq/fetcher/slot_claimer.py",
        "late += [give_back(slot, e.member, e.token, e.score) for e in answer.entries]",
        "pass",
        "tests/integration/test_sorted_edges.py::test_a_clean_stop_gives_back_what_a_claim_under_way_brings",
    ),
    Mutant(
        "slots-claim-the-same-starts",
        "A",
        "each slot of a topic claims all that the topic may start, and gives back what others have started",
        "emq/fetcher/slot_claimer.py",
        "left = group.counter.available(now) - owner.coming",
        "left = group.counter.available(now)",
        "tests/unit/test_slot_room.py::test_the_slots_of_a_topic_claim_together_no_more_than_the_topic_may_start",
    ),
    Mutant(
        "one-slot-claims-all",
        "Q",
        "a slot with a backlog claims all that the topic may start, and the others wait for many seconds",
        "emq/fetcher/slot_claimer.py",
        "owner.counter.most - ready, ",
        "",
        "tests/unit/test_slot_room.py::test_the_slots_of_a_topic_claim_together_no_more_than_the_topic_may_start",
    ),
)
