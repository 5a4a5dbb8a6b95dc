"""Mistakes in the stores."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "memory-settles-for-a-stale-owner",
        "O",
        "memory carries out a stale owner's verdict",
        "storage_adapters/emq_stores/memory/lane_store.py",
        "if settle.epoch is not None and (stale := self._world.fence(settle.lane, settle.epoch)):",
        "if False and (stale := True):",
        "tests/contract/test_lanes.py::test_a_higher_epoch_fences_off_claims_and_verdicts_of_lower_ones[memory]",
    ),
    Mutant(
        "sql-reads-for-a-stale-owner",
        "O",
        "SQL reads for a stale owner",
        "storage_adapters/emq_stores/sql/log_store.py",
        "if epoch < queue.epoch:\n                answers[index]",
        "if False:\n                answers[index]",
        "tests/contract/test_log_control.py::test_a_higher_epoch_fences_off_reads_and_trims_of_lower_ones[sqlite]",
    ),
    Mutant(
        "postgresql-arms-over-a-put",
        "L",
        "PostgreSQL arms a queue though a put came after the read",
        "storage_adapters/emq_stores/sql/sql/postgresql/queues_arm.sql",
        " AND q.tail = w.tail",
        "",
        "tests/contract/test_arming_races.py::"
        "test_a_read_that_found_nothing_is_not_exhausted_if_something_came_meanwhile",
    ),
    Mutant(
        "postgresql-runs-twins-at-once",
        "K",
        "a duplicate in PostgreSQL is claimed while its twin runs",
        "storage_adapters/emq_stores/sql/sql/postgresql/members_take.sql",
        "\n"
        "          AND (SELECT t.state FROM store_members AS t WHERE t.slot_id = c.slot_id AND t.id "
        "= m.id AND t.state + 0 = 1) IS NULL",
        "",
        "tests/contract/test_sorted_merging.py::test_a_duplicate_waits_while_its_twin_is_in_prepare[range-postgresql]",
    ),
    Mutant(
        "sqlite-writes-to-a-file-without-a-name",
        "L",
        "publishes are acknowledged into a file that was deleted or replaced",
        "emq/database/same_file.py",
        "if found != self._file:",
        "if False:",
        "tests/integration/test_replaced_files.py",
    ),
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
    Mutant(
        "redis-list-hands-over-lost-copies",
        "L",
        "a range of a list of servers is handed over to a server that was restarted and lost its copies",
        "storage_adapters/emq_stores/redis/lua/note_step.lua",
        "'run_id:' .. ARGV[2]",
        "'run_id:'",
        "tests/integration/test_redis_servers_handover.py::"
        "test_a_server_restarted_after_the_last_check_loses_no_message[target]",
    ),
    Mutant(
        "redis-list-serves-what-it-forgot-to-freeze",
        "L",
        "a server that was restarted serves a range though it may have lost that the range was handed over",
        "storage_adapters/emq_stores/redis/lua/listed.lua",
        "'run_id:' .. run",
        "'run_id:'",
        "tests/integration/test_redis_servers_handover.py::"
        "test_a_server_restarted_after_the_last_check_loses_no_message[source]",
    ),
    Mutant(
        "redis-list-copies-once",
        "L",
        "what calls change while a range is copied stays at the former server",
        "storage_adapters/emq_stores/redis/lua/listed.lua",
        "if not only_reads and",
        "if false and",
        "tests/integration/test_redis_servers_handover.py::test_what_changes_while_a_range_is_copied_is_copied_again",
    ),
)
