"""Mistakes in publishing."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "publish-skips-the-queue-of-a-key",
        "K",
        "messages of one key go to the groups in turn",
        "emq/producer/routes.py",
        "if key is not None:\n            return group_of_key(key, groups)",
        "",
        "tests/unit/test_producer.py::test_messages_without_a_key_go_round_and_those_of_a_key_stay_together",
    ),
    Mutant(
        "send-goes-on-after-a-failure",
        "K",
        "after a failed call, later messages of the same queue overtake those that failed",
        "emq/producer/log_topics.py",
        "outcomes += [unsent(failure)] * (count - end)",
        "pass",
        "tests/unit/test_send.py::test_after_a_failure_nothing_overtakes_and_each_outcome_is_true",
    ),
    Mutant(
        "look-hides-a-change",
        "L",
        "a producer goes on by a topic as read before its last change, since a look has counted that change as known",
        "emq/producer/router.py",
        "self._begun_at = min(self._begun_at, made.version)",
        "pass",
        "tests/unit/test_router.py::test_a_look_that_ends_before_a_topics_first_reading_hides_no_change_of_it",
    ),
    Mutant(
        "missing-answers-count",
        "L",
        "a store that answers for fewer messages than it was given counts as having taken all",
        "emq/producer/batcher.py",
        "if len(answers) != len(batch):",
        "if False:",
        "tests/unit/test_one_bad_item.py::"
        "test_a_call_that_answers_too_few_items_fails_its_senders_and_none_waits_for_ever",
    ),
    Mutant(
        "stale-catalog-is-used-for-ever",
        "L",
        "a producer publishes by a catalog that nobody has confirmed for hours",
        "emq/producer/router.py",
        "> STALE_S:",
        "> 1e9:",
        "tests/integration/test_host_outages.py::"
        "test_a_sealed_queue_and_what_is_known_for_too_long_are_refused_with_a_documented_error",
    ),
)
