"""Mistakes in families: first publishes, changes and sleep."""

from __future__ import annotations

from mutants.mutant import Mutant

_CONTRACT = "tests/contract/test_topics_of_families.py::"
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
        "first-publish-opens-nothing",
        "L",
        "a topic that slept is made again, and its queues stay sealed",
        "emq/producer/first_publishes.py",
        "if made.again:",
        "if False:",
        "tests/unit/test_first_publishes.py::test_a_topic_that_slept_takes_its_first_publish_at_once",
    ),
    Mutant(
        "family-grows-without-bound",
        "A",
        "strangers make as many topics as they like",
        "emq/topics/family_catalog.py",
        "if live.setdefault(found, there[found].live) >= family.bounds.max_topics:",
        "if False:",
        f"{_CONTRACT}test_a_family_has_at_most_max_topics_whoever_publishes[sqlite-memory]",
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
    Mutant(
        "mirror-reads-sleepers",
        "A",
        "a host that starts reads every topic that sleeps",
        "emq/topics/topic_changes.py",
        "changed = changed.where(_table.c.live == tables.AWAKE)",
        "pass",
        "tests/contract/test_catalog_reading.py::test_a_reading_of_the_whole_catalog_looks_only_at_topics_that_are_awake"
        "[sqlite]",
    ),
)
