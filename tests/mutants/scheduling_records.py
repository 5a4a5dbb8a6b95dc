"""Mistakes of resource scheduling in the catalog of pools, in the records of tasks, and in the proof from them."""

from __future__ import annotations

from mutants.mutant import Mutant

ENDS = "tests/integration/scheduling/test_pool_ends.py"
RECORDS = "tests/integration/scheduling/test_scheduling_records.py"
CATALOG = "tests/integration/scheduling/test_scheduling_catalog.py"
MOVES = "tests/integration/scheduling/test_pool_moves.py"
PROOF = "tests/unit/scheduling/test_scheduling_proof.py"

MUTANTS = (
    Mutant(
        "expired-backlog-waits-for-its-starts",
        "I",
        "what expired in the store comes to the scheduler a start at a time, and fresh tasks wait behind it",
        "services/emq_scheduling/topics.py",
        "ttl_s=kind.ttl_s,",
        "ttl_s=None if kind.ttl_s is None else kind.ttl_s + 600,",
        f"{ENDS}::test_tasks_that_expired_in_the_store_delay_nothing_and_are_recorded_and_replied",
    ),
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
        "emq/host/ownership.py",
        " or self._is_kept(g)",
        "",
        f"{MOVES}::test_a_limit_in_flight_holds_while_the_pool_moves[2.0-10.0]",
    ),
    Mutant(
        "pool-forgets-what-runs-when-its-lease-lapses",
        "Q",
        "a pool is taken over anew after a lapse of the lease, though its tasks still run",
        "services/emq_scheduling/hosting/pool_host.py",
        "        if epoch != self._epoch:\n",
        "        if epoch != self._epoch or not self._app.owns(self.name):\n",
        f"{MOVES}::test_a_lease_that_lapses_for_a_moment_does_not_let_more_run",
    ),
    Mutant(
        "deleted-pool-leaves-its-use",
        "Q",
        "a pool that is made anew begins with what the deleted one of its name has used",
        "services/emq_scheduling/administering.py",
        "    await UsageTable(app.database, environment).drop(name)\n",
        "",
        f"{MOVES}::test_a_deleted_pool_is_let_go_of_and_forgotten",
    ),
    Mutant(
        "pool-change-overwrites-another",
        "L",
        "a change of a pool that somebody else changed meanwhile overwrites that change",
        "services/emq_scheduling/pools/catalog.py",
        "return await self.put(changed, found.version)",
        "return await self.put(changed)",
        f"{CATALOG}::test_of_changes_at_the_same_time_none_is_lost[postgresql]",
    ),
    Mutant(
        "full-log-starts-more",
        "L",
        "tasks go on starting however many of their records wait for a database that is away",
        "services/emq_scheduling/records/ends.py",
        "            self._room.clear()\n",
        "",
        f"{RECORDS}::test_while_the_database_is_away_nothing_is_dropped_and_a_full_log_pushes_back[sqlite-away]",
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
    Mutant(
        "late-cancel-is-passed-over",
        "L",
        "a request to cancel that is committed after a later one is never read",
        "services/emq_scheduling/records/cancels.py",
        "max(0, self._latest_us - OVERLAP_US)",
        "self._latest_us",
        f"{RECORDS}::test_a_request_that_is_committed_late_is_not_passed_over[sqlite]",
    ),
    Mutant(
        "present-version-is-trimmed",
        "Q",
        "the version of a pool by which tasks still start is deleted when it is old, so that nobody can judge them",
        "services/emq_scheduling/records/retention.py",
        "(v.pool == pool) & (v.version < newest)",
        "(v.pool == pool) & (v.version <= newest)",
        f"{RECORDS}::test_what_is_too_old_goes_and_nothing_else[sqlite]",
    ),
    Mutant(
        "proof-forgets-debt",
        "Q",
        "the proof does not hold what a task used beyond its estimate against later starts",
        "services/emq_scheduling/records/proof.py",
        "        self.debt += units\n",
        "",
        f"{PROOF}::test_debt_is_carried_until_it_is_paid",
    ),
    Mutant(
        "proof-charges-no-parents",
        "Q",
        "the proof counts no start against the limits of a resource's parents",
        "services/emq_scheduling/records/proof.py",
        "        at = pool.resources[at].parent\n",
        "        at = None\n",
        f"{PROOF}::test_parents_are_charged_for_all_their_children",
    ),
    Mutant(
        "proof-takes-the-largest-amount",
        "Q",
        "the proof allows at each hour what the calendar allows at some hour",
        "services/emq_scheduling/records/proof.py",
        "return by_name.get(limit.name, limit.amount)",
        "return rules.most_of(pool, pool.resources[owner], limit)",
        f"{PROOF}::test_calendars_change_amounts_by_the_clock_on_the_wall",
    ),
)
