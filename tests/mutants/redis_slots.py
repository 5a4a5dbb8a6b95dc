"""Mistakes in the scripts of Redis for slots."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "redis-slot-claims-for-a-stale-owner",
        "O",
        "a claim from a slot is not fenced",
        "storage_adapters/emq_stores/redis/lua/slot_claim.lua",
        "if highest(owned[1], -1) > epoch then",
        "if false then",
        "tests/contract/test_sorted_settling.py::test_a_higher_epoch_fences_off_lower_ones[range-redis]",
    ),
    Mutant(
        "redis-acknowledges-for-a-stale-owner",
        "O",
        "an acknowledgement in a slot is not fenced",
        "storage_adapters/emq_stores/redis/lua/slot_ack.lua",
        "if epoch ~= '' and highest(owned[1], -1) > tonumber(epoch) then",
        "if false then",
        "tests/contract/test_sorted_settling.py::test_a_refused_verdict_leaves_the_others_of_its_call[range-redis]",
    ),
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
        "redis-claims-twins",
        "K",
        "a duplicate is claimed while its twin runs",
        "storage_adapters/emq_stores/redis/lua/slot_claim.lua",
        "if prepared == 0 then return nil end",
        "if true then return nil end",
        "tests/contract/test_sorted_merging.py::test_a_duplicate_waits_while_its_twin_is_in_prepare[range-redis]",
    ),
    Mutant(
        "redis-slot-takes-one-too-many",
        "L",
        "a slot holds one message more than its bound",
        "storage_adapters/emq_stores/redis/lua/slot_add.lua",
        "most - redis.call('ZCARD', store)",
        "most - redis.call('ZCARD', store) + 1",
        "tests/contract/test_sorted.py::test_a_full_slot_refuses_new_members_and_still_merges[range-redis]",
    ),
    Mutant(
        "redis-failed-attempts-are-not-counted",
        "X",
        "a member that failed is tried for ever",
        "storage_adapters/emq_stores/redis/lua/slot_moves.lua",
        "if before then left = math.min(left, math.floor(before) - 1) end",
        "",
        "tests/contract/test_sorted_resting.py::test_attempts_are_counted_on_when_no_retries_are_left[range-redis]",
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
