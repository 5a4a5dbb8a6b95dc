"""Mistakes in claiming from the slots of sorted topics."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "slot-in-doubt-is-claimed",
        "D",
        "a slot is claimed from while verdicts on its members are in doubt",
        "emq/fetcher/slot_looks.py",
        "if slot.claiming or group.stopping or slot.unsure or (slot.suspect and slot.settling):",
        "if slot.claiming or group.stopping:",
        "tests/integration/test_sorted_doubts.py::"
        "test_a_twin_whose_claim_is_lost_while_the_first_is_being_settled_is_delivered_soon[0.05]",
    ),
    Mutant(
        "lost-members-are-forgotten",
        "L",
        "what a claim of a slot took whose answer was lost waits for its time-out",
        "emq/groups/slot_state.py",
        "self.suspect.add(second)",
        "self.suspect.discard(-1)",
        "tests/integration/test_sorted_topics.py::test_a_claim_whose_answer_was_lost_is_found_again",
    ),
    Mutant(
        "members-go-back-twice-at-once",
        "D",
        "a call gives back members that another call is giving back",
        "emq/fetcher/slot_returns.py",
        "await asyncio.wait(under_way)",
        "break",
        "tests/integration/test_letting_go.py::"
        "test_what_is_being_given_back_when_the_drain_ends_is_not_given_back_twice",
    ),
    Mutant(
        "recovery-takes-what-runs",
        "D",
        "members that time out in the store are rolled back though they run here",
        "emq/fetcher/slot_returns.py",
        "Recover(s.slot, s.group.epoch, older_than_ms, list(s.held), why, lost)",
        "Recover(s.slot, s.group.epoch, older_than_ms, [], why, lost)",
        "tests/integration/test_sorted_doubts.py::"
        "test_a_running_member_is_not_recovered_when_its_twins_acknowledgement_was_slow",
    ),
    Mutant(
        "serial-slot-claims-ahead",
        "K",
        "a serial slot claims more than may run, so that what is sent again does not merge",
        "emq/fetcher/slot_looks.py",
        "startable = min(startable, slot.run - slot.buffered)",
        "pass",
        "tests/unit/test_fetcher.py::"
        "test_where_messages_run_one_by_one_no_more_are_claimed_than_have_run_without_waiting",
    ),
    Mutant(
        "slots-claim-the-same-starts",
        "A",
        "each slot of a topic claims all that the topic may start, and gives back what others have started",
        "emq/fetcher/slot_looks.py",
        "left = group.counter.available(now) - owner.coming",
        "left = group.counter.available(now)",
        "tests/unit/test_slot_room.py::test_the_slots_of_a_topic_claim_together_no_more_than_the_topic_may_start",
    ),
)
