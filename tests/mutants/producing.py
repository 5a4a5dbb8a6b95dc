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
        "doubtful-publish-is-forgotten",
        "L",
        "delayed messages stored while the database was away are not looked at again",
        "emq/producer/delayed_messages.py",
        "self._doubts.put([item for _, item in stored if item.group > 0])",
        "pass",
        "tests/integration/test_host_outages.py::"
        "test_what_was_delayed_into_a_group_that_others_retired_meanwhile_is_placed_anew",
    ),
    Mutant(
        "forgotten-layout-refuses-for-ever",
        "L",
        "a publish that a restored catalog routes by an older layout is refused until an operator acts",
        "emq/producer/reopening.py",
        "if route.topic.layout >= layout:",
        "if True:",
        "tests/contract/test_restored_catalogs.py::"
        "test_keys_are_taken_though_the_catalog_has_forgotten_a_number_of_groups[memory-grown]",
    ),
    Mutant(
        "sealed-publish-keeps-its-layout",
        "K",
        "a message that is routed anew goes by the layout of its first route",
        "emq/producer/log_topics.py",
        "body = message.with_layout(body, route.topic.layout)",
        "pass",
        "tests/unit/test_producer.py::test_a_message_that_is_routed_again_says_by_which_layout",
    ),
    Mutant(
        "refused-publish-counts",
        "L",
        "a publish of many that was refused in part returns as if all were stored",
        "emq/producer/log_topics.py",
        "outcomes[i] = answer\n",
        "outcomes[i] = None\n",
        "tests/unit/test_producer.py::test_what_a_publish_of_many_stored_before_a_refusal_is_counted",
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
    Mutant(
        "publish-overtakes-the-line",
        "K",
        "a publish that comes right after the first reading of its topic overtakes those that waited for it",
        "emq/producer/router.py",
        "if route is None or name in self._lines.names or",
        "if route is None or",
        "tests/unit/test_router.py::test_nobody_overtakes_those_that_wait_for_their_topic",
    ),
)
