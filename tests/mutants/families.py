"""Mistakes in families: first publishes, changes and sleep."""

from __future__ import annotations

from mutants.mutant import Mutant

_CONTRACT = "tests/contract/test_topics_of_families.py::"
_UNIT = "tests/unit/test_families.py::"
_SLEEP = "tests/integration/test_sleeping_topics.py::"

MUTANTS = (
    Mutant(
        "sleep-forgets-whatever-was-written",
        "L",
        "the catalog forgets a topic although its producer has just asked for it",
        "emq/topics/family_catalog.py",
        "if now.get(name) == version]",
        "]",
        f"{_CONTRACT}test_a_put_at_the_moment_of_sleep_is_stored_and_the_topic_is_there[sqlite-memory-queue]",
    ),
    Mutant(
        "sleep-counts-once",
        "L",
        "a delayed message that came before the lane was sealed goes with the topic",
        "emq/offsets/sleep.py",
        "still = await empty_ones(store, checkpoints, sealed, now_ms)",
        "still = sealed",
        f"{_CONTRACT}test_a_put_at_the_moment_of_sleep_is_stored_and_the_topic_is_there[sqlite-memory-lane]",
    ),
    Mutant(
        "sleep-leaves-sealed",
        "L",
        "a topic that got a message while it was put to sleep refuses all later ones of its lanes",
        "emq/topics/family_catalog.py",
        "change.save([topic])  # the same topic, in a row of a newer version",
        "pass",
        f"{_CONTRACT}test_a_put_at_the_moment_of_sleep_is_stored_and_the_topic_is_there[sqlite-memory-queue]",
    ),
    Mutant(
        "nobody-opens-what-died",
        "L",
        "a topic whose host died while putting it to sleep refuses every publish",
        "emq/producer/reopening.py",
        "if tries > 1 and route.topic.family:",
        "if False:",
        f"{_CONTRACT}test_a_publish_opens_a_topic_whose_host_died_before_the_catalog_forgot_it[sqlite-memory]",
    ),
    Mutant(
        "first-publish-opens-nothing",
        "L",
        "a topic that slept is made again, and its queues stay sealed",
        "emq/producer/first_publishes.py",
        "await opening.opened(self._store, [topic for topic in made.values() if isinstance(topic, Topic)])",
        "pass",
        "tests/unit/test_first_publishes.py::test_a_topic_that_slept_takes_its_first_publish_at_once",
    ),
    Mutant(
        "waking-topic-forgets-its-death",
        "Q",
        "rows of topics that slept are dropped at once, so a topic that wakes starts beside its former life",
        "emq/topics/family_catalog.py",
        "change.rows.drop_buried(change.before_ms(BURIED_S), MOST_DROPPED)\n            return set(topics)",
        "change.rows.drop_buried(change.version + 1, MOST_DROPPED)\n            return set(topics)",
        f"{_CONTRACT}test_a_topic_that_wakes_at_once_starts_nothing_until_every_host_knows[sqlite-memory]",
    ),
    Mutant(
        "slow-followers-miss-deletions",
        "L",
        "who follows the catalog slowly keeps topics whose rows were dropped",
        "emq/topics/topic_changes.py",
        "return now, now < version or 0 < version < forgotten",
        "return now, now < version",
        f"{_CONTRACT}test_rows_of_topics_that_slept_go_and_who_follows_the_catalog_slowly_reads_all[sqlite-memory]",
    ),
    Mutant(
        "family-changes-what-is-own",
        "Q",
        "a change of a family changes the settings that a topic has of its own",
        "emq/topics/admission.py",
        "for name in differing(after, before) if name not in topic.own}",
        "for name in differing(after, before)}",
        f"{_CONTRACT}test_a_family_changes_its_topics_but_not_in_what_is_their_own[sqlite-memory]",
    ),
    Mutant(
        "family-grows-without-bound",
        "A",
        "strangers make as many topics as they like",
        "emq/topics/family_catalog.py",
        "elif live.setdefault(found, there[found].live) >= family.bounds.max_topics:",
        "elif False:",
        f"{_CONTRACT}test_a_family_has_at_most_max_topics_whoever_publishes[sqlite-memory]",
    ),
    Mutant(
        "refused-names-write",
        "A",
        "a publish to a name that a family refuses changes the catalog, which all hosts then read",
        "emq/topics/family_catalog.py",
        "if not wanted:\n            return refused",
        "",
        f"{_UNIT}test_names_that_make_no_topic_change_nothing_in_the_catalog",
    ),
    Mutant(
        "sleep-forgets-ids",
        "D",
        "a topic sleeps although it still remembers ids, and stores a repeated publish again",
        "emq/host/sleeping.py",
        "max(bounds.idle_s, topic.options.dedupe_s)",
        "bounds.idle_s",
        f"{_SLEEP}test_a_topic_that_remembers_ids_sleeps_only_when_it_has_forgotten_them",
    ),
    Mutant(
        "buried-rows-stay",
        "A",
        "the catalog keeps a row of every topic that ever slept",
        "emq/host/sleeping.py",
        "await self._drop_buried()",
        "pass",
        f"{_SLEEP}test_a_host_drops_the_rows_of_topics_that_slept_and_then_does_nothing",
    ),
    Mutant(
        "sleeper-keeps-its-groups",
        "D",
        "the host of a topic that sleeps starts messages of its next life, and its next owner starts them again",
        "emq/host/assignments.py",
        "await self._letting.release(sorted(mine), self._drain_s)",
        "pass",
        f"{_SLEEP}test_a_host_starts_nothing_of_a_topics_next_life_before_it_knows_of_it",
    ),
)
