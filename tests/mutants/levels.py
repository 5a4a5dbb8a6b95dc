"""Mistakes in what finds differences by itself: loops that wait to be told, or forget what they held at an error."""

from __future__ import annotations

from mutants.mutant import Mutant

ASSIGNING = "tests/unit/test_assigning.py"
MEMBERS = "tests/unit/test_cluster_membership.py"

MUTANTS = (
    Mutant(
        "assignments-wait-for-an-edge",
        "L",
        "a host looks at its assignment only when it is told to",
        "emq/host/assignments.py",
        "async with asyncio.timeout(LOOK_S):",
        "async with asyncio.timeout(None):",
        f"{ASSIGNING}::test_a_lost_group_is_acquired_again_though_nobody_says_so",
    ),
    Mutant(
        "unexpected-error-ends-acquiring",
        "L",
        "an error that nobody expects keeps all groups of a call from being acquired, again and again",
        "emq/host/assignments.py",
        "        except Exception as exc:\n            failure: Failure",
        "        except AssertionError as exc:\n            failure: Failure",
        f"{ASSIGNING}::test_a_group_that_always_fails_keeps_no_other_from_being_acquired",
    ),
    Mutant(
        "stopped-group-stands",
        "L",
        "a group that has stopped, while nobody lets go of it, is left as it is",
        "emq/host/assignments.py",
        "                self._start_again_what_stands()\n",
        "",
        f"{ASSIGNING}::test_a_group_that_stands_though_nobody_lets_go_of_it_is_acquired_again",
    ),
    Mutant(
        "stopping-host-acquires",
        "D",
        "a host that stops goes on to acquire groups that it lets go of",
        "emq/host/assignments.py",
        "                if self._is_stopping:\n                    continue\n",
        "",
        f"{ASSIGNING}::test_a_host_that_stops_acquires_nothing_more",
    ),
    Mutant(
        "offer-known-by-its-address",
        "L",
        "a leader tells offers of groups apart by their address, which a new one may have, too",
        "emq/allocation/leader.py",
        "fenced, serves, self._offers, catalog)",
        "fenced, serves, id(quotas), catalog)",
        f"{MEMBERS}::test_groups_are_planned_though_the_offer_of_them_has_the_address_of_an_older_one",
    ),
    Mutant(
        "leader-relies-on-watches",
        "L",
        "a leader reads a record again only when a watch tells that it has changed",
        "emq/allocation/leader.py",
        "            self._watched.forget()  # in case a watch was lost\n",
        "",
        f"{MEMBERS}::test_a_leader_notices_a_change_of_which_no_watch_has_told",
    ),
    Mutant(
        "break-forgets-calls",
        "L",
        "what a loop had taken is forgotten when one of its calls breaks",
        "emq/loops/aside.py",
        "        except Exception:\n            self._spare.append(aside)\n            raise\n",
        "        finally:\n            pass\n",
        "tests/unit/test_aside.py::test_after_an_error_the_next_run_has_what_the_last_one_had_taken",
    ),
    Mutant(
        "broken-settle-is-forgotten",
        "L",
        "messages of a call that broke are never settled",
        "emq/dispatch/settler.py",
        "                if not pending.is_settled and id(pending) not in resting:",
        "                if False:",
        "tests/unit/test_settler.py::test_a_call_that_breaks_or_is_cancelled_leaves_no_message_unsettled[None]",
    ),
    Mutant(
        "abandoned-statement-is-not-cancelled",
        "A",
        "a statement that waits for a lock is left at the server when its call has ended",
        "emq/database/postgres.py",
        "if not until and cancel():",
        "if False:",
        "tests/integration/test_locked_database.py::"
        "test_statements_that_wait_for_a_lock_are_cancelled_and_keep_no_connection",
    ),
    Mutant(
        "server-does-not-look-for-its-clients",
        "A",
        "the server goes on with a statement whose client has died",
        "emq/database/postgres.py",
        'connection.execute(f"SET client_connection_check_interval TO {_CHECK_MS}")',
        "pass",
        "tests/integration/test_locked_database.py::test_a_client_that_dies_leaves_no_statement_behind",
    ),
    Mutant(
        "grown-topic-has-no-orphans",
        "L",
        "messages of groups that the catalog has forgotten of a topic that it knows are not found",
        "emq/offsets/orphans.py",
        "(known is None or index >= known.groups)",
        "known is None",
        "tests/integration/test_orphans.py::test_what_the_catalog_does_not_know_is_listed_adopted_and_purged",
    ),
    Mutant(
        "lapsed-host-accuses-strangers",
        "A",
        "a host whose lease has ended calls those that take its groups strangers",
        "emq/allocation/member.py",
        "self._era == era and self._clock.now() < self.lease.until and group in self._handoff.planned",
        "True",
        "tests/unit/test_cluster_membership.py::"
        "test_others_that_take_the_groups_of_a_host_whose_lease_has_ended_are_no_strangers",
    ),
    Mutant(
        "newer-option-is-written",
        "A",
        "an option is written that hosts of the environment's feature level do not know",
        "emq/topics/catalog_rows.py",
        "if since > level]",
        "if since > level + 9]",
        "tests/unit/test_catalog_rows.py::test_a_row_has_only_what_hosts_of_its_level_can_read",
    ),
    Mutant(
        "older-host-slips-in",
        "A",
        "the feature level stays raised although an older host has joined in that moment",
        "emq/observe/upgrading.py",
        "            _check(await hosts_now(), level)  # an older host may have joined in between\n",
        "            pass\n",
        "tests/integration/test_feature_levels.py::test_a_host_that_joins_in_the_moment_of_a_raise_takes_it_back",
    ),
    Mutant(
        "runtime-error-of-uvloop",
        "L",
        "the error of uvloop for a connection that is closed is not translated",
        "storage_adapters/emq_stores/redis/server.py",
        "        except Exception as exc:\n            raise translated",
        "        except (redis.exceptions.RedisError, OSError) as exc:\n            raise translated",
        "tests/integration/test_broken_connections.py::"
        "test_a_write_to_a_connection_that_is_closed_is_of_unknown_outcome[uvloop]",
    ),
)
