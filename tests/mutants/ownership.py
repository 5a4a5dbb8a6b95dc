"""Mistakes in ownership: taking groups, letting go of them, following the catalog and the assignment."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "checkpoints-are-not-fenced",
        "O",
        "a new owner raises no fence for checkpoints, so that its predecessor saves over it",
        "emq/host/takeover.py",
        "return refused | {group_of(queue) for queue in await self._checkpoints.fence(epochs)}",
        "return refused",
        "tests/integration/test_taking_over.py::"
        "test_nothing_is_saved_behind_a_new_owners_back_once_it_has_read_the_checkpoints",
    ),
    Mutant(
        "owner-reads-before-its-fence",
        "O",
        "a new owner reads checkpoints before it fences its predecessor off",
        "emq/host/ownership.py",
        "            newly_refused = await self.takeover.fence(wanted, queues, waiting)\n"
        "            if newly_refused:\n"
        "                refused |= newly_refused\n"
        "                continue\n"
        "            if any(not topic.is_sorted for topic in topics.values()):\n"
        "                # Behind the fence: a former owner that knew more of the catalog may have "
        "noted that keys have moved\n"
        "                # away from its group. Later notes of it are refused. One look for all groups of a call.\n"
        "                await look()\n"
        "            served = {g: e for g, e in wanted.items() if g not in waiting}\n"
        "            saved = await self.takeover.prepare(served, queues, topics, waiting)\n",
        "            served = {g: e for g, e in wanted.items() if g not in waiting}\n"
        "            saved = await self.takeover.prepare(served, queues, topics, waiting)\n"
        "            newly_refused = await self.takeover.fence(wanted, queues, waiting)\n"
        "            if newly_refused:\n"
        "                refused |= newly_refused\n"
        "                continue\n"
        "            if any(not topic.is_sorted for topic in topics.values()):\n"
        "                # Behind the fence: a former owner that knew more of the catalog may have "
        "noted that keys have moved\n"
        "                # away from its group. Later notes of it are refused. One look for all groups of a call.\n"
        "                await look()\n",
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
        "release-does-not-drain",
        "D",
        "a group is let go of while its messages are in flight",
        "emq/host/letting_go.py",
        "if self._work.unsettled(g) or g.is_claiming or",
        "if g.is_claiming or",
        "tests/integration/test_host_moves.py::test_a_stop_waits_for_handlers_and_starts_nothing_more",
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
        "owner-forgets-finished-ranges",
        "D",
        "a new owner goes on from the watermark alone",
        "emq/host/ownership.py",
        "tracker = OffsetTracker(checkpoint.watermark, checkpoint.finished)",
        "tracker = OffsetTracker(checkpoint.watermark)",
        "tests/integration/test_host_moves.py::test_what_finished_out_of_order_is_not_repeated_after_a_crash",
    ),
    Mutant(
        "deleted-topic-starts",
        "Q",
        "what is held of a deleted topic starts beside the new topic of its name",
        "emq/host/ownership.py",
        "for held in owner.groups.values():\n                    self.stop(held)",
        "pass",
        "tests/integration/test_letting_go.py::test_what_is_held_of_a_deleted_topic_stops_as_soon_as_the_host_knows",
    ),
    Mutant(
        "paused-topic-starts",
        "Q",
        "a topic that is paused goes on",
        "emq/host/topic_updates.py",
        "if binding is None or owner.topic.state is State.PAUSED:",
        "if binding is None:",
        "tests/integration/test_host.py::test_pause_stops_starting_and_resume_goes_on_with_nothing_lost",
    ),
    Mutant(
        "group-is-taken-while-it-is-let-go-of",
        "O",
        "a host takes a group again while it is letting go of it",
        "emq/host/assignments.py",
        "self._ownership.groups.keys() - self._letting_go",
        "self._ownership.groups.keys()",
        "tests/unit/test_assigning.py::test_a_group_is_not_taken_again_before_it_is_said_to_be_released",
    ),
    Mutant(
        "new-era-keeps-the-old-groups",
        "O",
        "a host whose membership was lost goes on with the groups that belong to others",
        "emq/host/assignments.py",
        "await self._ownership.forget_all()\n                self._told.clear()",
        "self._told.clear()",
        "tests/unit/test_assigning.py::test_what_was_held_in_an_earlier_life_of_the_membership_is_forgotten_at_once",
    ),
    Mutant(
        "groups-move-at-any-time",
        "Q",
        "groups are let go of at any time of a second, so that their new owner loses what is left of it",
        "emq/host/assignments.py",
        " and not EARLIEST <= part <= LATEST:",
        " and not 0.0 <= part <= 1.0:",
        "tests/unit/test_assigning.py::test_groups_are_let_go_of_early_in_a_second",
    ),
)
