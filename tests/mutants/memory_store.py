"""Mistakes in the store in memory."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "memory-reads-for-a-stale-owner",
        "O",
        "memory reads for a stale owner",
        "storage_adapters/emq_stores/memory/log_store.py",
        "if read.epoch is not None and (stale := self._world.fence(group_of(read.queue), read.epoch)):",
        "if False and (stale := None):",
        "tests/contract/test_log_control.py::test_a_higher_epoch_fences_off_reads_and_trims_of_lower_ones[memory]",
    ),
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
        "memory-takes-one-too-many",
        "L",
        "a group in memory holds one message more than its bound",
        "storage_adapters/emq_stores/memory/log_store.py",
        "if excess <= 0:",
        "if excess <= 1:",
        "tests/contract/test_log_control.py::test_max_length_counts_all_priorities_of_the_group[memory]",
    ),
    Mutant(
        "memory-put-wakes-nobody",
        "L",
        "a put to an exhausted queue in memory wakes nobody",
        "storage_adapters/emq_stores/memory/log_store.py",
        "self._world.armed.pop(put.queue).wake(put.queue)",
        "self._world.armed.pop(put.queue)",
        "tests/contract/test_waking.py::test_a_put_to_an_exhausted_queue_wakes[memory]",
    ),
    Mutant(
        "memory-runs-twins-at-once",
        "K",
        "a duplicate in memory is claimed while its twin runs",
        "storage_adapters/emq_stores/memory/slot_members.py",
        "if kept is not None and member not in self.prepared and place == self._place(kept):",
        "if kept is not None and place == self._place(kept):",
        "tests/contract/test_sorted_merging.py::"
        "test_a_duplicate_waits_also_where_the_member_has_waited_before[range-memory]",
    ),
)
