"""Mistakes in the scripts of Redis for slots."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "redis-acknowledges-any-claim",
        "D",
        "a late acknowledgement acts on a newer claim of the member",
        "storage_adapters/emq_stores/redis/lua/slot_ack.lua",
        "(found == token or tonumber(found) == wanted)",
        "true",
        "tests/contract/test_sorted_settling.py::test_a_verdict_needs_the_token_of_the_claim[range-redis]",
    ),
    Mutant(
        "redis-rest-ends-early",
        "X",
        "what rests until its next attempt is claimed again at once",
        "storage_adapters/emq_stores/redis/lua/slot_moves.lua",
        "redis.call('ZRANGEBYSCORE', slot.rests, '-inf', now, 'WITHSCORES', 'LIMIT', 0, most)",
        "redis.call('ZRANGEBYSCORE', slot.rests, '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, most)",
        "tests/contract/test_sorted_resting.py::"
        "test_what_rests_is_claimed_again_after_its_time_and_no_sooner[priority-apart-redis]",
    ),
)
