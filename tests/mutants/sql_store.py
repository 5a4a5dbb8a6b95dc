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
)
