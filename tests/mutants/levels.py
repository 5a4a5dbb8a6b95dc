"""Mistakes in what finds differences by itself: loops that wait to be told, or forget what they held at an error."""

from __future__ import annotations

from mutants.mutant import Mutant

ASSIGNING = "tests/unit/test_assigning.py"

MUTANTS = (
    Mutant(
        "assignments-wait-for-an-edge",
        "L",
        "a host looks at its assignment only when it is told to",
        "emq/host/assignments.py",
        "await pace.wait(self._changed, LOOK_S)",
        "await self._changed.wait()",
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
        "broken-settle-is-forgotten",
        "L",
        "messages of a call that broke are never settled",
        "emq/dispatch/settler.py",
        "            self._unsettled.rest(pending for pending in batch if not pending.is_settled)",
        "            self._unsettled.rest([])",
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
        "newer-option-is-written",
        "A",
        "an option is written that hosts of the environment's feature level do not know",
        "emq/topics/row_codec.py",
        "if since > level]",
        "if since > level + 9]",
        "tests/unit/test_catalog_rows.py::test_a_row_has_only_what_hosts_of_its_level_can_read",
    ),
)
