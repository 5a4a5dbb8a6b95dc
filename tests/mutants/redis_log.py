"""Mistakes in the scripts of Redis for queues and lanes."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "redis-reads-for-a-stale-owner",
        "O",
        "a read is not fenced",
        "storage_adapters/emq_stores/redis/lua/read.lua",
        "elseif owner and fence > epoch then",
        "elseif false then",
        "tests/contract/test_log_control.py::test_a_higher_epoch_fences_off_reads_and_trims_of_lower_ones[redis]",
    ),
    Mutant(
        "redis-trims-what-it-lost",
        "L",
        "a store that came back without messages drops what came in their place",
        "storage_adapters/emq_stores/redis/lua/trim.lua",
        "local dropped = lost and 0 or",
        "local dropped =",
        "tests/contract/test_lost_messages.py::test_nothing_is_dropped_on_the_word_of_who_has_seen_what_is_gone[redis]",
    ),
    Mutant(
        "redis-dead-letter-is-added-twice",
        "X",
        "an add of an id that is dead makes it wait beside its dead letter",
        "storage_adapters/emq_stores/redis/lua/lane_add.lua",
        "new = 1 - redis.call('HEXISTS', bodies, id)",
        "new = 1",
        "tests/contract/test_lanes.py::test_an_id_is_added_once_whatever_its_state[redis]",
    ),
)
