"""Which fault is tried against which store, by which tests, and which promises these judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

STORES = ("memory", "SQLite", "PostgreSQL", "Valkey", "Valkey Cluster", "tree", "endpoints")
"""What a fault happens to, or what lies behind it; the tree is that of ZooKeeper or of the database."""


class Cell(NamedTuple):
    """Attributes:
    shows: letters of the promises that the tests judge, see docs/promises.md.
    tests: names below tests/, with or without parameters; `*` stands for any text.
    """

    shows: str
    tests: tuple[str, ...]


class Fault(NamedTuple):
    """Attributes:
    name: of the fault; it does not change.
    does: what the tests do, in a sentence.
    cells: by store: tests, or the reason why there is none.
    """

    name: str
    does: str
    cells: Mapping[str, Cell | str]


ALL = "LDQPKOMX"

OF_DAYS = "LDQPKX"

SEEDS = "simulation/test_simulation.py::test_every_promise_holds_for_every_seed*"
HAPPENED = "simulation/test_simulation.py::test_each_kind_of_fault_happened_and_had_consequences[{}]"

IN_PROCESS = "lives in the process: there is no server and no connection"
A_FILE = "a file: there is no server and no connection"
NO_PROMISE = "keeps no messages: what fails there is told in the columns of the stores"
AS_ONE = "EMQ talks to each node as to one Valkey: see there"
OF_OTHERS = "not EMQ's: the tests of the endpoints' column break the way to it"
FREE = "nothing that this fault could happen to"


def simulated(*events: str) -> Cell:
    """Many seeds of the simulation, among whose events these were."""
    return Cell(ALL, (SEEDS, *map(HAPPENED.format, events)))


def borders(fault: str, shows: str = "LQO") -> dict[str, Cell | str]:
    hosts = "integration/test_broken_borders.py::test_hosts_behind_a_broken_border_lose_nothing_and_keep_the_cap"
    push = "integration/test_broken_borders.py::test_deliveries_to_an_endpoint_behind_a_broken_border*"
    return {
        "SQLite": A_FILE,
        "PostgreSQL": Cell(shows, (f"{hosts}[postgresql-{fault}]", f"{hosts}[database-{fault}]")),
        "Valkey": Cell(shows, (f"{hosts}[valkey-{fault}]",)),
        "Valkey Cluster": AS_ONE,
        "tree": Cell(shows, (f"{hosts}[tree-{fault}]",)),
        "endpoints": Cell("LI", (push.replace("*", f"_arrive_and_others_do_not_wait[*-{fault}]"),)),
    }


REFUSING = "integration/test_refusing_stores.py::{}[{}-*]"


def refusing(fault: str) -> tuple[str, ...]:
    delivered = "test_what_a_store_refuses_is_told_and_all_that_was_published_is_delivered"
    return tuple(
        REFUSING.format(t, fault) for t in (delivered, "test_members_of_slots_outlive_a_store_that_refuses_them")
    )


def of_lists(shows: str, *tests: str) -> dict[str, Cell | str]:
    """A fault of a list of Valkey servers, which hold one store without a cluster."""
    return {
        **dict.fromkeys(STORES, "not a list of servers"),
        "Valkey": Cell(shows, tuple(f"integration/test_redis_servers{test}" for test in tests)),
        "Valkey Cluster": "see the resharding, and SIGKILL of a server",
    }


RESTORED = (
    "integration/test_restored_from_yesterday.py::test_what_comes_after_a_store_was_restored_is_all_delivered[{}-*]"
)
LOST = "integration/test_store_losses_real.py::test_what_is_published_after_a_server_has_lost_its_last_writes*[{}]"
FAILOVER = (
    "integration/test_store_failovers.py::test_all_that_is_acknowledged_after_a_store_has_gone_back_is_delivered[{}-*]"
)
KILLED_HOST = (
    "integration/test_faults.py::"
    "test_a_killed_host_loses_nothing_and_repeats_only_what_was_unfinished_or_not_checkpointed[{}]"
)
KILLED_SERVER = "integration/test_faults.py::test_a_server_killed_under_load_and_started_again*[{}-*]"
DAY = "day/test_day.py::test_a_realistic_day_breaks_no_promise[{}]"
GARBAGE = "integration/test_garbage.py::test_garbage_in_every_key_and_column_stops_no_loop_and_no_neighbour[{}-*]"

FAULTS = (
    Fault(
        "SIGKILL of a host",
        "Kill host processes at work (`kill -9`); others, or the next one, take their messages over.",
        {
            "memory": simulated("crash", "rebirth"),
            "SQLite": Cell("LDQ", (KILLED_HOST.format("sqlite"),)),
            "PostgreSQL": Cell(
                "LX",
                ("integration/test_api_processes.py::test_the_log_of_deliveries_is_true_after_hosts_were_killed*",),
            ),
            "Valkey": Cell(
                "LDQ",
                (
                    KILLED_HOST.format("redis"),
                    "integration/test_sorted_faults.py::test_a_consumer_killed_between_claim_handler_and_settle*",
                ),
            ),
            "Valkey Cluster": Cell(OF_DAYS, (DAY.format("redis_cluster"),)),
            "tree": Cell(
                "LDQO",
                (
                    "integration/test_cluster_restarts.py::test_twenty_joins_and_leaves_clean_or_by_kill_lose_nothing",
                    "integration/test_cluster_leader.py::test_leaders_killed_while_hosts_come_and_go_lose_nothing",
                ),
            ),
            "endpoints": Cell(
                "X", ("integration/test_push_replay_runners.py::test_a_process_that_dies_or_stands_still_is_replaced*",)
            ),
        },
    ),
    Fault(
        "SIGKILL of a server",
        "Kill the server under load (`kill -9`), and start it again on its data.",
        {
            "memory": simulated("store_down_for_all", "database_down_for_all"),
            "SQLite": A_FILE,
            "PostgreSQL": Cell("LQK", (KILLED_SERVER.format("postgresql"),)),
            "Valkey": Cell(
                "LDQK",
                (
                    KILLED_SERVER.format("redis"),
                    "integration/test_sorted_faults.py::test_a_server_killed_under_load_and_started_again*",
                ),
            ),
            "Valkey Cluster": Cell(
                "LI", ("integration/test_redis_cluster_parts.py::test_a_master_that_is_down_or_silent_costs_its_own*",)
            ),
            "tree": Cell(
                "LQO",
                (
                    "integration/test_cluster_quorum.py::test_without_a_quorum_hosts_go_on_to_their_deadline*",
                    "integration/test_zookeeper_faults.py::test_the_death_of_one_member_costs_no_session",
                ),
            ),
            "endpoints": OF_OTHERS,
        },
    ),
    Fault(
        "SIGSTOP beyond the lease",
        "Stop a process until others have taken its groups over, then let it go on.",
        {
            "memory": simulated("pause", "suspend"),
            "SQLite": "one host at a time: nobody takes its groups over",
            "PostgreSQL": Cell("O", ("contract/test_tree_pauses.py::test_a_client_that_is_paused_within_a_change*",)),
            "Valkey": Cell(
                "LQO",
                (
                    "integration/test_cluster_parted.py::test_a_host_stopped_past_its_session_starts_nothing_more*",
                    "integration/test_cluster_parted.py::test_an_outage_shorter_than_the_lease_pauses_nothing*",
                ),
            ),
            "Valkey Cluster": AS_ONE,
            "tree": Cell(
                "O", ("integration/test_zookeeper_faults.py::test_a_client_that_hangs_longer_than_its_session*",)
            ),
            "endpoints": Cell(
                "X", ("integration/test_push_replay_runners.py::test_a_process_that_dies_or_stands_still_is_replaced*",)
            ),
        },
    ),
    Fault(
        "connections reset",
        "Break all connections twice a second for six seconds, and those to Valkey below its driver.",
        {
            **borders("resets"),
            "memory": simulated("partition", "store_down", "database_down"),
            "Valkey": Cell(
                "LQO",
                (
                    *borders("resets")["Valkey"].tests,  # type: ignore[union-attr]
                    "integration/test_broken_connections.py::*",
                ),
            ),
        },
    ),
    Fault(
        "replies lost",
        "Let a server do what a call asks for, and cut the connection in place of the reply.",
        {
            "memory": simulated("store_loss", "database_loss", "tree_loss", "publisher_loss"),
            "SQLite": A_FILE,
            "PostgreSQL": Cell(
                "D", ("integration/test_silent_database.py::test_a_commit_that_is_not_answered_is_in_doubt",)
            ),
            "Valkey": Cell(
                "LDX", ("integration/test_sorted_faults.py::test_what_the_server_did_unheard_is_found_again*",)
            ),
            "Valkey Cluster": AS_ONE,
            "tree": Cell(
                "O",
                ("integration/test_zookeeper_faults.py::test_a_call_under_way_when_the_server_dies_is_of_unknown*",),
            ),
            "endpoints": "as with the one-way connection that passes no replies",
        },
    ),
    Fault(
        "delays",
        "Keep all that passes a connection for 0.2 s, each way, for six seconds.",
        {**borders("delays"), "memory": simulated("store_delay", "database_delay", "tree_delay")},
    ),
    Fault(
        "half-open connections",
        "Keep the connections and pass nothing, for six seconds: longer than a lease.",
        {
            **borders("half_open"),
            "memory": simulated("store_silent_for_all", "database_silent_for_all", "tree_silent_for_all"),
            "Valkey Cluster": Cell(
                "LI",
                ("integration/test_redis_cluster_parts.py::test_a_host_that_starts_beside_a_silent_master_acquires*",),
            ),
        },
    ),
    Fault(
        "one-way connections, no requests",
        "Pass what servers send and nothing that clients send, for six seconds.",
        {**borders("no_requests"), "memory": IN_PROCESS},
    ),
    Fault(
        "one-way connections, no replies",
        "Pass what clients send and nothing that servers send, for six seconds.",
        {**borders("no_replies"), "memory": IN_PROCESS},
    ),
    Fault(
        "a host cut off alone",
        "Part one host from the tree, or end its session; the others go on.",
        {
            "memory": simulated("partition", "expire"),
            "SQLite": "one host at a time",
            "PostgreSQL": Cell(
                "O",
                (
                    "unit/test_database_tree.py::test_an_outage_suspends_a_session_that_goes_on*",
                    "unit/test_database_tree.py::test_a_session_that_others_saw_silent_is_lost*",
                ),
            ),
            "Valkey": "see the tree: the stores of its tests are Valkey",
            "Valkey Cluster": AS_ONE,
            "tree": Cell(
                "LQO",
                (
                    "integration/test_cluster_parted.py::test_a_host_parted_from_the_ensemble_alone_stops_before*",
                    "integration/test_cluster_parted.py::test_a_session_that_ends_without_a_crash_costs_its_groups*",
                ),
            ),
            "endpoints": FREE,
        },
    ),
    Fault(
        "failover to a replica that lags",
        "Promote a replica that lacks the last writes. What is published after it must all be delivered.",
        {
            "memory": simulated("store_shorter"),
            "SQLite": A_FILE,
            "PostgreSQL": Cell("L", (LOST.format("postgresql killed"),)),
            "Valkey": Cell("LQK", (FAILOVER.format("promoted by hand"), FAILOVER.format("promoted by sentinel"))),
            "Valkey Cluster": Cell(
                "LQK",
                (
                    FAILOVER.format("cluster replica promoted"),
                    "integration/test_redis_cluster.py::test_a_replica_takes_over_and_nothing_that_was_published_replicated*",
                ),
            ),
            "tree": "ZooKeeper writes to a majority before it answers: no leader lags",
            "endpoints": FREE,
        },
    ),
    Fault(
        "resharding",
        "Move hash slots between masters and back under load.",
        {
            "memory": IN_PROCESS,
            "SQLite": "not sharded",
            "PostgreSQL": "not sharded",
            "Valkey": "not sharded",
            "Valkey Cluster": Cell("LD", ("integration/test_redis_cluster.py::test_hash_slots_move_back_and_forth*",)),
            "tree": "not sharded",
            "endpoints": FREE,
        },
    ),
    Fault(
        "a server joins or leaves a list",
        "Spread a store over one Valkey server more, and over one less, under load.",
        of_lists("LDQ", ".py::test_a_server_is_added_and_another_removed_under_load*"),
    ),
    Fault(
        "a server of a list lost",
        "Kill, or stop, one of the Valkey servers that hold one store without a cluster.",
        of_lists("I", ".py::test_a_server_that_is_down_or_silent_costs_its_own_groups_only*"),
    ),
    Fault(
        "a spread broken off",
        "Kill `emq store spread` at each step, and kill or silence its servers: after the last check, too.",
        of_lists(
            "LK",
            ".py::test_a_move_that_was_killed_at_any_step*",
            "_copying.py::test_a_move_notices_that_a_server_was_restarted*",
            "_handover.py::test_a_server_restarted_after_the_last_check*",
            "_handover.py::test_processes_end_a_move_that_was_killed*",
            "_handover.py::test_a_range_is_given_back_when_its_server_was_silent",
        ),
    ),
    Fault(
        "full disk or memory",
        "Refuse each insert of a message as a full disk does; fill the memory of a Valkey.",
        {
            "memory": Cell("LX", ("integration/test_host_outages.py::test_a_full_store_keeps_retries_waiting*",)),
            "SQLite": Cell("LQK", refusing("sqlite_full")),
            "PostgreSQL": Cell("LQK", refusing("postgres_full")),
            "Valkey": Cell(
                "LD", ("integration/test_faults.py::test_a_full_server_refuses_publishing_and_goes_on_being_drained",)
            ),
            "Valkey Cluster": AS_ONE,
            "tree": "a node that is too large is refused; a full disk of ZooKeeper ends the server: see SIGKILL",
            "endpoints": OF_OTHERS,
        },
    ),
    Fault(
        "read-only",
        "Make a master a replica of nobody, or all transactions read-only, for six seconds.",
        {
            "memory": IN_PROCESS,
            "SQLite": "a file that may not be written is refused at the start; an open one stays writable",
            "PostgreSQL": Cell("LQK", refusing("postgres_read_only")),
            "Valkey": Cell("LQK", refusing("valkey_read_only")),
            "Valkey Cluster": "a master that became a replica redirects: see the failover",
            "tree": "a member without a quorum serves nobody: see SIGKILL of a server",
            "endpoints": OF_OTHERS,
        },
    ),
    Fault(
        "wrong types, damaged records",
        "Put garbage, or keys of another type, in the place of each key and each column.",
        {
            "memory": "holds objects of its own, which no other program can write",
            "SQLite": Cell("LI", (GARBAGE.format("sqlite"), "integration/test_sql_damage.py::test_a_damaged_row*")),
            "PostgreSQL": Cell(
                "LI", (GARBAGE.format("postgresql"), "integration/test_sql_damage.py::test_publishers_beside*")
            ),
            "Valkey": Cell("LI", (GARBAGE.format("redis"), "integration/test_redis_damage.py::*")),
            "Valkey Cluster": Cell("LI", (GARBAGE.format("redis_cluster"),)),
            "tree": Cell(
                "I", ("unit/test_cluster_leader_troubles.py::test_a_node_that_somebody_put_among_the_lists*",)
            ),
            "endpoints": Cell("LX", ("unit/test_push_batches.py::test_one_refused_payload_makes_no_dead_letters*",)),
        },
    ),
    Fault(
        "tables locked",
        "Hold a lock on EMQ's tables, or SQLite's lock of those who write, until publishes are refused.",
        {
            "memory": IN_PROCESS,
            "SQLite": Cell("LQK", refusing("sqlite_locked")),
            "PostgreSQL": Cell("L", ("integration/test_locked_database.py::*",)),
            "Valkey": "has no locks",
            "Valkey Cluster": "has no locks",
            "tree": "the tree in the database is among the locked tables of PostgreSQL",
            "endpoints": FREE,
        },
    ),
    Fault(
        "statement time-outs",
        "Let each insert of a message sleep for a minute, so that the statement is cancelled.",
        {
            "memory": IN_PROCESS,
            "SQLite": "has no time-outs but that of its lock: see the locked tables",
            "PostgreSQL": Cell("LQK", refusing("postgres_too_slow")),
            "Valkey": "see the half-open connections: EMQ has a deadline for each call",
            "Valkey Cluster": AS_ONE,
            "tree": "see the half-open connections",
            "endpoints": "see the half-open connections",
        },
    ),
    Fault(
        "clock steps",
        "Set the clock of a machine, or the one that all follow, forward or back by up to hours.",
        {
            "memory": Cell(
                ALL,
                (*simulated("clock_jump", "reference_jump").tests, "integration/test_clock_jumps.py::*"),
            ),
            "SQLite": Cell("X", ("integration/test_wrong_machine_clock.py::test_stores_stamp_dead_letters*[sqlite]",)),
            "PostgreSQL": Cell(
                "X", ("integration/test_wrong_machine_clock.py::test_stores_stamp_dead_letters*[postgres_url]",)
            ),
            "Valkey": Cell(
                "X", ("integration/test_wrong_machine_clock.py::test_stores_stamp_dead_letters*[redis_url]",)
            ),
            "Valkey Cluster": AS_ONE,
            "tree": "sessions are timed by monotonic clocks, which nobody sets",
            "endpoints": FREE,
        },
    ),
    Fault(
        "two clocks an hour apart",
        "Run two hosts whose machines' clocks differ by an hour, and move groups between them.",
        {
            "memory": simulated("clock_jump"),
            "SQLite": "one host at a time, on one machine",
            "PostgreSQL": Cell(
                "QA",
                ("integration/test_wrong_machine_clock.py::test_a_process_an_hour_ahead_forgets_nobodys_wake_ups*",),
            ),
            "Valkey": Cell("Q", ("integration/test_clocks.py::test_groups_that_move_between_hosts_an_hour_apart*",)),
            "Valkey Cluster": AS_ONE,
            "tree": Cell(
                "LDQO",
                ("integration/test_cluster_input.py::test_the_cap_holds_between_hosts_whose_clocks_differ*",),
            ),
            "endpoints": FREE,
        },
    ),
    Fault(
        "a store restored from yesterday",
        "Put a backup in its place, or let the server come back without its last writes.",
        {
            "memory": simulated("store_shorter", "store_empty", "growth_lost"),
            "SQLite": Cell("LQK", (RESTORED.format("sqlite"),)),
            "PostgreSQL": Cell("LQK", (RESTORED.format("postgresql"), LOST.format("postgresql killed"))),
            "Valkey": Cell(
                "LQK",
                (
                    RESTORED.format("valkey"),
                    LOST.format("valkey from a snapshot"),
                    LOST.format("valkey without persistence"),
                    FAILOVER.format("append-only file"),
                ),
            ),
            "Valkey Cluster": Cell("LQK", (FAILOVER.format("cluster node restarted"),)),
            "tree": "see the database, which may hold the tree; one of ZooKeeper that is empty begins anew",
            "endpoints": FREE,
        },
    ),
    Fault(
        "the database restored from yesterday",
        "Put a backup in the place of the database with catalog and checkpoints, or empty it; the store stays.",
        {
            "memory": Cell(
                ALL,
                (
                    *simulated("database_shorter", "database_empty").tests,
                    "simulation/test_simulated_database_losses.py::test_whatever_operators_did_meanwhile*",
                ),
            ),
            "SQLite": Cell("LQK", ("integration/test_restored_from_yesterday.py::test_what_the_store_has*[*-sqlite]",)),
            "PostgreSQL": Cell(
                "LQKO",
                (
                    "integration/test_restored_from_yesterday.py::test_what_the_store_has*[*-postgresql]",
                    "integration/test_lost_database.py::*",
                ),
            ),
            "Valkey": Cell(
                "LK", ("contract/test_restored_catalogs.py::*[redis-*", "contract/test_restored_catalogs.py::*[redis]")
            ),
            "Valkey Cluster": Cell("LK", ("contract/test_restored_catalogs.py::*[redis_cluster*",)),
            "tree": Cell("O", ("contract/test_tree_losses.py::*",)),
            "endpoints": FREE,
        },
    ),
    Fault(
        "exceptions that nobody expects",
        "Raise an exception at a call of each loop, once and again.",
        {
            "memory": Cell(
                ALL,
                (
                    "integration/test_planted_failures.py::*",
                    "unit/test_planted_errors.py::*",
                    "simulation/test_unforeseen.py::*",
                ),
            ),
            "SQLite": "the loops are those of the column of memory",
            "PostgreSQL": Cell("L", ("integration/test_sql_listening.py::test_no_error_ends_the_wake_ups*",)),
            "Valkey": "the loops are those of the column of memory",
            "Valkey Cluster": "the loops are those of the column of memory",
            "tree": Cell("O", ("integration/test_zookeeper_faults.py::test_a_client_library_that_breaks_down*",)),
            "endpoints": Cell("LX", ("integration/test_odd_failures.py::*",)),
        },
    ),
    Fault(
        "rolling restart",
        "Stop and start one host after the other, in both orders.",
        {
            "memory": simulated("leave", "roll"),
            "SQLite": Cell(
                "LD", ("integration/test_faults.py::test_sigterm_in_the_middle_of_work_repeats_nothing[sqlite]",)
            ),
            "PostgreSQL": Cell(
                "LDQ", ("integration/test_hosts_on_one_database.py::test_a_second_lone_host*[postgresql]",)
            ),
            "Valkey": Cell(
                "LD", ("integration/test_faults.py::test_sigterm_in_the_middle_of_work_repeats_nothing[redis]",)
            ),
            "Valkey Cluster": AS_ONE,
            "tree": Cell("LDQO", ("integration/test_cluster_restarts.py::test_a_rolling_restart_repeats_nothing*",)),
            "endpoints": FREE,
        },
    ),
    Fault(
        "rolling upgrade",
        "Run hosts of two versions side by side, and raise the level of what they write.",
        {
            "memory": Cell("LO", ("integration/test_feature_levels.py::*",)),
            "SQLite": Cell("L", ("integration/test_migrations.py::*",)),
            "PostgreSQL": Cell("L", ("integration/test_migrations.py::*",)),
            "Valkey": "the level is kept in the database: see memory",
            "Valkey Cluster": "the level is kept in the database: see memory",
            "tree": "the level is kept in the database: see memory",
            "endpoints": FREE,
        },
    ),
    Fault(
        "a day of everything",
        "300 topics of every kind: failures, hanging handlers, live changes, a kill -9, a clean restart.",
        {
            "memory": Cell(OF_DAYS, (DAY.format("memory"),)),
            "SQLite": Cell(OF_DAYS, (DAY.format("sqlite"), "simulation/test_real_stores.py::*every_seed[sqlite]")),
            "PostgreSQL": Cell(OF_DAYS, (DAY.format("postgresql"),)),
            "Valkey": Cell(OF_DAYS, (DAY.format("valkey"), "simulation/test_real_stores.py::*every_seed[redis]")),
            "Valkey Cluster": Cell(OF_DAYS, (DAY.format("redis_cluster"),)),
            "tree": "one host at a time; see the rolling restart and SIGKILL of a host",
            "endpoints": "its handlers are functions",
        },
    ),
)
