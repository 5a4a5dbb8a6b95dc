"""Mistakes of resource scheduling in the catalog of pools, in the records of tasks, and in the proof from them."""

from __future__ import annotations

from mutants.mutant import Mutant

ENDS = "tests/integration/scheduling/test_pool_ends.py"
RECORDS = "tests/integration/scheduling/test_scheduling_records.py"
MOVES = "tests/integration/scheduling/test_pool_moves.py"
PROOF = "tests/unit/scheduling/test_scheduling_proof.py"

MUTANTS = (
    Mutant(
        "expired-in-the-store-tells-nobody",
        "L",
        "a task that expired in the store has no record, and its submitter no reply",
        "emq/dispatch/settler.py",
        "            group.owner.on_expired(m)\n",
        "            pass\n",
        f"{ENDS}::test_tasks_that_expired_in_the_store_delay_nothing_and_are_recorded_and_replied",
    ),
    Mutant(
        "pool-moves-while-its-tasks-run",
        "D",
        "a pool with a limit in flight moves at once, and what runs is cancelled and done again",
        "emq/host/letting_go.py",
        " or self._is_kept(g)",
        "",
        f"{MOVES}::test_a_limit_in_flight_holds_while_the_pool_moves[2.0-10.0]",
    ),
    Mutant(
        "running-replaces-the-end",
        "L",
        "a repeated record that an attempt runs replaces the record of its end",
        "services/emq_scheduling/records/ends.py",
        "excluded.outcome <> 'running'",
        "excluded.outcome <> ''",
        f"{RECORDS}::test_writing_a_record_again_changes_nothing[sqlite]",
    ),
)
