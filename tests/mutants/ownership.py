"""Mistakes in taking groups, letting go of them, and repairing what is missing."""

from __future__ import annotations

from mutants.mutant import Mutant

ASSIGNING = "tests/unit/test_assigning.py"

MUTANTS = (
    Mutant(
        "checkpoints-are-not-fenced",
        "O",
        "a new owner raises no fence for checkpoints, so that its predecessor saves over it",
        "emq/host/takeover.py",
        "found = await self._checkpoints.fence(epochs)",
        "found = Fenced((), await self._checkpoints.load([*epochs]), 0)",
        "tests/integration/test_taking_over.py::"
        "test_nothing_is_saved_behind_a_new_owners_back_once_it_has_read_the_checkpoints",
    ),
    Mutant(
        "lanes-are-not-recovered",
        "L",
        "what a former owner had claimed from a lane stays claimed",
        "emq/host/takeover.py",
        "answers = await of_each(self._store.lanes.recover(list(wanted.items())), len(wanted)) if wanted else ()",
        "answers = [0] * len(wanted)",
        "tests/integration/test_host_moves.py::test_retries_that_a_host_had_claimed_are_delivered_by_the_next",
    ),
    Mutant(
        "release-saves-nothing",
        "D",
        "a group is let go of without a last checkpoint",
        "emq/host/letting_go.py",
        "await self._give_back(groups)\n        await self._work.checkpointer.save()",
        "await self._give_back(groups)",
        "tests/integration/test_taking_over.py::test_a_group_that_moves_between_living_hosts_repeats_nothing",
    ),
    Mutant(
        "new-era-keeps-the-old-groups",
        "O",
        "a host whose membership was lost goes on with the groups that belong to others",
        "emq/host/assignments.py",
        "                await self._ownership.forget_all()\n",
        "",
        "tests/unit/test_assigning.py::test_what_was_held_in_an_earlier_life_of_the_membership_is_forgotten_at_once",
    ),
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
