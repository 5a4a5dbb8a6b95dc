"""Mistakes in claiming from the slots of sorted topics."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
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
        "slots-claim-the-same-starts",
        "A",
        "each slot of a topic claims all that the topic may start, and gives back what others have started",
        "emq/fetcher/slot_looks.py",
        "left = group.counter.available(now) - owner.coming",
        "left = group.counter.available(now)",
        "tests/unit/test_slot_room.py::test_the_slots_of_a_topic_claim_together_no_more_than_the_topic_may_start",
    ),
)
