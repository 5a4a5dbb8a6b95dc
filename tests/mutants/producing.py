"""Mistakes in publishing."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "publish-skips-the-queue-of-a-key",
        "K",
        "messages of one key go to the groups in turn",
        "emq/producer/router.py",
        "if key is not None:\n            return group_of_key(key, groups)",
        "",
        "tests/unit/test_producer.py::test_messages_without_a_key_go_round_and_those_of_a_key_stay_together",
    ),
    Mutant(
        "publish-lands-in-a-retired-group",
        "L",
        "a delayed message that came into a group that is gone is left there",
        "emq/producer/lanes.py",
        "if item.group >= topics[item.topic.name].groups]\n        gone",
        "if False]\n        gone",
        "tests/unit/test_producer.py::test_what_is_delayed_into_a_retired_group_is_placed_anew",
    ),
    Mutant(
        "doubtful-publish-is-forgotten",
        "L",
        "delayed messages stored while the database was away are not looked at again",
        "emq/producer/lanes.py",
        "self._doubts.put([item for _, item in stored if item.group > 0])",
        "pass",
        "tests/integration/test_host_outages.py::"
        "test_what_was_delayed_into_a_group_that_others_retired_meanwhile_is_placed_anew",
    ),
    Mutant(
        "doubts-have-no-bound",
        "A",
        "a producer takes delayed messages without end while the database is away",
        "emq/producer/doubts.py",
        "if len(self._items) >= MESSAGES or self._bytes >= BYTES:",
        "if len(self._items) >= MESSAGES:",
        "tests/unit/test_producer.py::test_what_waits_for_the_database_is_bounded_in_messages_and_bytes",
    ),
    Mutant(
        "sealed-publish-keeps-its-layout",
        "K",
        "a message that is routed anew goes by the layout of its first route",
        "emq/producer/queues.py",
        "body = message.with_layout(body, route.topic.layout)",
        "pass",
        "tests/unit/test_producer.py::test_a_message_that_is_routed_again_says_by_which_layout",
    ),
    Mutant(
        "sealed-batch-keeps-its-layout",
        "K",
        "messages of a batch that are routed anew go by the layout of their first route",
        "emq/producer/queues.py",
        "encoded[i] = message.with_layout(encoded[i], layout)",
        "pass",
        "tests/unit/test_producer.py::test_a_message_that_is_routed_again_says_by_which_layout",
    ),
    Mutant(
        "refused-publish-counts",
        "L",
        "a publish of many that was refused in part returns as if all were stored",
        "emq/producer/queues.py",
        "outcomes[i] = answer\n",
        "outcomes[i] = None\n",
        "tests/unit/test_producer.py::test_what_a_publish_of_many_stored_before_a_refusal_is_counted",
    ),
    Mutant(
        "batch-refuses-all",
        "L",
        "where room is short, messages of different publishers are stored together or not at all",
        "emq/producer/queues.py",
        "alone = single.route.max_length is not None",
        "alone = False",
        "tests/unit/test_producer.py::"
        "test_a_full_topic_refuses_and_publishes_that_fit_are_not_refused_for_their_neighbours",
    ),
    Mutant(
        "max-length-is-not-split",
        "L",
        "each group takes what the topic as a whole may hold",
        "emq/producer/router.py",
        "share = None if length is None else max(1, length // topic.active_groups)",
        "share = length",
        "tests/unit/test_producer.py::test_max_length_is_shared_by_the_groups_and_the_oldest_may_be_dropped",
    ),
    Mutant(
        "calls-have-no-bound-in-bytes",
        "I",
        "a call to the store takes any number of bytes",
        "emq/producer/batcher.py",
        "if sum(sizes) <= CALL_BYTES:",
        "if True:",
        "tests/unit/test_producer_sorted.py::test_a_call_of_many_is_bounded_by_bytes_and_takes_one_message_of_any_size",
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
        "draining-topic-takes-messages",
        "L",
        "a topic that is draining takes new messages",
        "emq/producer/router.py",
        "if route.topic.state is State.DRAINING:",
        "if False:",
        "tests/unit/test_producer.py::test_a_draining_topic_takes_nothing_and_a_paused_one_does",
    ),
    Mutant(
        "stale-catalog-is-used-for-ever",
        "L",
        "a producer publishes by a catalog that nobody has confirmed for hours",
        "emq/producer/router.py",
        "if age_s > STALE_S:",
        "if False:",
        "tests/integration/test_host_outages.py::"
        "test_a_sealed_queue_and_what_is_known_for_too_long_are_refused_with_a_documented_error",
    ),
)
