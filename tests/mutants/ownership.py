"""Mistakes in ownership: taking groups, letting go of them, following the catalog and the assignment."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "changed-quota-is-not-taken-over",
        "Q",
        "owners go on with the quota that the topic had when they took the group",
        "emq/host/topic_updates.py",
        "owner.counter.follow(topic, self._clock.now())",
        "pass",
        "tests/integration/test_host.py::test_a_new_qps_counts_while_the_host_runs",
    ),
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
        "            newly_refused = await self._takeover.fence(wanted, topics, waiting)\n"
        "            if newly_refused:\n"
        "                refused |= newly_refused\n"
        "                continue\n"
        "            if any(not topic.is_sorted for topic in topics.values()):\n"
        "                # Behind the fence: a former owner that knew more of the catalog may have "
        "said that keys have moved away\n"
        "                # from its group. Whoever says so later is refused. One look for all groups of a call.\n"
        "                await self.loops.look()\n"
        "            saved = await self._takeover.prepare({g: e for g, e in wanted.items() if g not in "
        "waiting}, topics, waiting)\n",
        "            saved = await self._takeover.prepare({g: e for g, e in wanted.items() if g not in "
        "waiting}, topics, waiting)\n"
        "            newly_refused = await self._takeover.fence(wanted, topics, waiting)\n"
        "            if newly_refused:\n"
        "                refused |= newly_refused\n"
        "                continue\n"
        "            if any(not topic.is_sorted for topic in topics.values()):\n"
        "                # Behind the fence: a former owner that knew more of the catalog may have "
        "said that keys have moved away\n"
        "                # from its group. Whoever says so later is refused. One look for all groups of a call.\n"
        "                await self.loops.look()\n",
        "tests/integration/test_taking_over.py::"
        "test_nothing_is_saved_behind_a_new_owners_back_once_it_has_read_the_checkpoints",
    ),
    Mutant(
        "owner-does-not-look-behind-its-fence",
        "K",
        "a new owner goes by the catalog as it knew it before its fence",
        "emq/host/ownership.py",
        "await self.loops.look()",
        "pass",
        "tests/integration/test_moving_keys.py::"
        "test_a_host_that_acquires_a_group_with_an_old_picture_of_the_catalog_keeps_its_keys_in_turn",
    ),
    Mutant(
        "first-checkpoint-is-not-fenced",
        "O",
        "a queue without a checkpoint gets no row, so that a former owner may write its first one",
        "emq/host/takeover.py",
        "await self._checkpoints.save(begun)",
        "pass",
        "tests/integration/test_taking_over.py::"
        "test_a_former_owner_cannot_save_its_first_checkpoint_once_another_has_taken_over",
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
        "slots-are-not-recovered",
        "L",
        "what a former owner had claimed from a slot waits for its time-out",
        "emq/host/takeover.py",
        "recovered = await of_each(self._store.sorted.recover(recovers, now_ms), len(recovers))",
        "recovered = [0] * len(recovers)",
        "tests/integration/test_taking_over.py::test_what_a_former_owner_had_claimed_from_a_slot_is_delivered_at_once",
    ),
    Mutant(
        "release-does-not-drain",
        "D",
        "a group is let go of while its messages are in flight",
        "emq/host/ownership.py",
        "if self.loops.unsettled(g) or g.is_claiming or",
        "if g.is_claiming or",
        "tests/integration/test_host_moves.py::test_a_stop_waits_for_handlers_and_starts_nothing_more",
    ),
    Mutant(
        "release-saves-nothing",
        "D",
        "a group is let go of without a last checkpoint",
        "emq/host/ownership.py",
        "await self._give_back(groups)\n        await self.loops.checkpointer.save()",
        "await self._give_back(groups)",
        "tests/integration/test_taking_over.py::test_a_group_that_moves_between_living_hosts_repeats_nothing",
    ),
    Mutant(
        "release-gives-nothing-back",
        "D",
        "what was claimed and not started is left to time out when a group moves",
        "emq/host/ownership.py",
        "await self._give_back(groups)\n        await",
        "await",
        "tests/integration/test_letting_go.py::"
        "test_what_was_claimed_and_not_started_goes_back_when_its_group_is_let_go_of",
    ),
    Mutant(
        "lost-group-is-saved-later",
        "L",
        "what ends in a group after it was let go of counts, though its store refused it",
        "emq/host/ownership.py",
        "group.lost = True  # also if it was let go of before: what ends in it from now on is not saved",
        "pass",
        "tests/integration/test_letting_go.py::"
        "test_what_ends_in_a_group_that_was_let_go_of_is_not_saved_once_its_store_refuses_it",
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
        "changed-policy-is-not-taken-over",
        "P",
        "owners go on with the priority policy that the topic had when they took the group",
        "emq/host/topic_updates.py",
        "        group.policy = priority.policy_for(topic)\n",
        "",
        "tests/integration/test_changed_options.py::"
        "test_a_changed_priority_policy_counts_for_the_backlog_that_is_there",
    ),
    Mutant(
        "changed-limit-is-not-taken-over",
        "I",
        "owners go on with the room in flight that the topic had when they took the group",
        "emq/host/topic_updates.py",
        "owner.limit = in_flight_limit(topic)",
        "pass",
        "tests/integration/test_changed_options.py::test_changed_room_in_flight_counts_at_once",
    ),
    Mutant(
        "deleted-topic-starts",
        "Q",
        "what is held of a deleted topic starts beside the new topic of its name",
        "emq/host/ownership.py",
        "for held in owner.groups.values():\n                    self._stop(held)",
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
        "former-topic-keeps-its-groups",
        "O",
        "a topic created again goes on with the groups, and the fence, of the former one",
        "emq/host/ownership.py",
        "if topic.name not in self.topics:\n                former +=",
        "if False:\n                former +=",
        "tests/integration/test_created_again.py::"
        "test_a_host_that_keeps_the_groups_of_a_topic_created_again_consumes_them",
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
        "refused-group-is-asked-for-again",
        "O",
        "a host takes a group again under an epoch that the store has refused",
        "emq/host/assignments.py",
        "if g in absent and self._refused.get(g) != e",
        "if g in absent",
        "tests/unit/test_assigning.py::test_a_group_is_not_asked_for_again_under_an_epoch_that_was_refused",
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
        "stranger-takes-the-rest-unnoticed",
        "O",
        "a host that a stranger took a group from does not ask about its other groups",
        "emq/host/assignments.py",
        "await self._ownership.look_at_lanes()",
        "pass",
        "tests/unit/test_assigning.py::test_who_loses_a_group_to_a_stranger_asks_the_stores_about_all_others",
    ),
    Mutant(
        "group-is-not-said-to-be-released",
        "O",
        "a host that let go of a group does not say so",
        "emq/host/assignments.py",
        "await self._membership.released(done)  # should",
        "# should",
        "tests/integration/test_host_moves.py::test_the_cap_holds_while_a_group_moves_between_hosts",
    ),
    Mutant(
        "moving-group-drops-what-runs",
        "D",
        "a group that moves is let go of at once, whatever runs in it or is being claimed",
        "emq/host/ownership.py",
        "if self.loops.unsettled(g) or g.is_claiming or self._is_kept(g)",
        "if False",
        "simulation",
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
    Mutant(
        "abandoned-lane-is-not-recovered",
        "L",
        "what a host had claimed from the lane of a group that it starts again stays claimed",
        "emq/host/takeover.py",
        "self._abandoned.add(group.name)",
        "pass",
        "tests/integration/test_store_losses.py::"
        "test_what_was_claimed_from_a_lane_and_not_started_is_delivered_when_its_group_starts_again",
    ),
    Mutant(
        "release-does-not-await-a-claim",
        "X",
        "a group is handed over while a claim from its slot is under way, whose members lose an attempt",
        "emq/host/ownership.py",
        " or g.is_claiming or",
        " or",
        "tests/integration/test_letting_go.py::test_a_group_is_let_go_of_once_a_claim_under_way_has_answered",
    ),
    Mutant(
        "lost-catalog-goes-unnoticed",
        "L",
        "hosts go on with changes of the catalog that the database has lost",
        "emq/topics/catalog_rows.py",
        "lost = now < version",
        "lost = False",
        "tests/unit/test_catalog.py::"
        "test_changes_that_the_database_has_lost_are_found_and_their_versions_not_used_again",
    ),
    Mutant(
        "empty-catalog-is-asked-for-without-end",
        "A",
        "a host whose catalog came back empty offers its groups anew each time it is asked to look",
        "emq/host/host.py",
        "            if self._must_offer:",
        "            if self._must_offer or self._version == 0:",
        "tests/simulation/test_simulated_database_losses.py::"
        "test_hosts_go_by_a_catalog_that_was_lost_and_do_not_ask_for_it_without_end",
    ),
)
