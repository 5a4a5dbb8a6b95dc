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
        "broken-settle-is-forgotten",
        "L",
        "messages of a call that broke are never settled",
        "emq/dispatch/settler.py",
        "            self._unsettled.rest(pending for pending in batch if not pending.is_settled)",
        "            self._unsettled.rest([])",
        "tests/unit/test_settler.py::test_a_call_that_breaks_or_is_cancelled_leaves_no_message_unsettled[None]",
    ),
)
