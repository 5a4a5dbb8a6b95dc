"""Mistakes in fetching: from queues, lanes and slots into buffers."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "finished-offset-is-delivered-again",
        "D",
        "a new owner delivers what its former owner had finished above the watermark",
        "emq/fetcher/puller.py",
        "placed = (each for each in placed if not tracker.is_finished(each[0]))",
        "pass",
        "tests/unit/test_fetcher.py::test_what_a_checkpoint_says_is_finished_is_not_buffered_again",
    ),
    Mutant(
        "wake-up-before-the-answer-is-forgotten",
        "L",
        "a wake-up that overtakes the answer of an empty read is lost with it",
        "emq/groups/owned.py",
        "self.more = self.woken or not exhausted",
        "self.more = not exhausted",
        "tests/unit/test_wakeup_race.py::"
        "test_a_wakeup_that_overtakes_the_answer_of_an_empty_read_leads_to_another_read",
    ),
    Mutant(
        "low-priority-overtakes-a-held-queue",
        "P",
        "messages start although the store has some of a higher priority that may not be read before the next save",
        "emq/groups/reading_ahead.py",
        "if queue.more and (queue.listed or (near and is_held(queue))):",
        "if queue.more and queue.listed:",
        "tests/unit/test_fetcher.py::test_nothing_starts_below_a_queue_that_leaves_what_may_be_unsaved_to_a_higher_one",
    ),
    Mutant(
        "sweep-skips-queues",
        "L",
        "the sweep for lost wake-ups asks about lanes only",
        "emq/fetcher/readiness.py",
        "self._unarmed([*_slices(queues, i, together), *_slices(lanes, i, together)])",
        "self._unarmed(_slices(lanes, i, together))",
        "tests/unit/test_waker.py::test_the_sweep_comes_to_every_queue_and_lane_once[3]",
    ),
    Mutant(
        "lost-claim-is-forgotten",
        "L",
        "what a claim took whose answer was lost stays claimed by nobody",
        "emq/fetcher/lane_claimer.py",
        "            group.lane_lost_ms = group.lane_lost_ms or _passed_ms()\n            rest_s",
        "            rest_s",
        "tests/integration/test_delays.py::test_what_a_lost_claim_had_taken_from_a_lane_is_delivered_once",
    ),
    Mutant(
        "due-times-pile-up",
        "A",
        "each earlier time of a name leaves an outdated one behind",
        "emq/fetcher/due_times.py",
        "if len(self._heap) > 2 * len(self._due) + SPARE:",
        "if False:",
        "tests/unit/test_due.py::test_due_times_do_not_pile_up_for_what_waits_long",
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
        "slots-claim-the-same-starts",
        "A",
        "each slot of a topic claims all that the topic may start, and gives back what others have started",
        "emq/fetcher/slot_looks.py",
        "left = group.counter.available(now) - owner.coming",
        "left = group.counter.available(now)",
        "tests/unit/test_slot_claims.py::test_the_slots_of_a_topic_claim_together_no_more_than_the_topic_may_start",
    ),
)
