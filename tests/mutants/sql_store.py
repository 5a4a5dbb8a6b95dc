"""Mistakes in the stores in SQL, and in their statements for SQLite and PostgreSQL."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
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
        "sql-trims-for-a-stale-owner",
        "O",
        "SQL drops what a stale owner says",
        "storage_adapters/emq_stores/sql/log_store.py",
        "if trim.epoch is not None and (stale := groups[group_of(trim.queue)].fence(trim.epoch)):",
        "if False and (stale := True):",
        "tests/contract/test_log_control.py::test_a_higher_epoch_fences_off_reads_and_trims_of_lower_ones[sqlite]",
    ),
    Mutant(
        "sql-settles-for-a-stale-owner",
        "O",
        "SQL carries out a stale owner's verdict",
        "storage_adapters/emq_stores/sql/lane_store.py",
        "if settle.epoch is not None and (stale := lane.fence(settle.epoch)):",
        "if False and (stale := True):",
        "tests/contract/test_lanes.py::test_a_higher_epoch_fences_off_claims_and_verdicts_of_lower_ones[sqlite]",
    ),
    Mutant(
        "sql-acknowledges-for-a-stale-owner",
        "O",
        "SQL carries out a stale owner's verdict in a slot",
        "storage_adapters/emq_stores/sql/slot_store.py",
        "if settle.epoch is not None and (stale := slot.refuses(settle.epoch)):",
        "if False and (stale := True):",
        "tests/contract/test_sorted_settling.py::test_a_higher_epoch_fences_off_lower_ones[range-sqlite]",
    ),
    Mutant(
        "sql-takes-one-too-many",
        "L",
        "a group in SQL holds one message more than its bound",
        "storage_adapters/emq_stores/sql/log_store.py",
        "if excess <= 0:",
        "if excess <= 1:",
        "tests/contract/test_log_control.py::test_max_length_counts_all_priorities_of_the_group[sqlite]",
    ),
    Mutant(
        "sql-put-wakes-nobody",
        "L",
        "a put to an exhausted queue in SQL wakes nobody",
        "storage_adapters/emq_stores/sql/log_store.py",
        "transaction.wake(queue.armed, put.queue)",
        "pass",
        "tests/contract/test_waking.py::test_a_put_to_an_exhausted_queue_wakes[sqlite]",
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
        "sqlite-drops-one-too-many",
        "L",
        "a trim in SQLite drops the first message that is to stay",
        "storage_adapters/emq_stores/sql/sql/sqlite/messages_drop.sql",
        "msg_offset < ?",
        "msg_offset <= ?",
        "tests/contract/test_log.py::test_a_read_from_below_the_head_begins_at_the_head[sqlite]",
    ),
    Mutant(
        "postgresql-drops-one-too-many",
        "L",
        "a trim in PostgreSQL drops the first message that is to stay",
        "storage_adapters/emq_stores/sql/sql/postgresql/messages_drop.sql",
        "m.msg_offset < r.upto",
        "m.msg_offset <= r.upto",
        "tests/contract/test_log.py::test_a_read_from_below_the_head_begins_at_the_head[postgresql]",
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
)
