"""Mistakes in the store in memory."""

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
)
