"""Mistakes with keys that move between groups, and with groups that retire."""

from __future__ import annotations

from mutants.mutant import SIMULATION, Mutant

MUTANTS = (
    Mutant(
        "entry-leaves-both-lanes",
        "L",
        "an entry of a key that moved leaves its lane though the other one did not take it",
        "emq/fetcher/forwarder.py",
        "entry.added = None if isinstance(answer, FAILURES) else entry.taken or answer is True",
        "entry.added = None if isinstance(answer, FAILURES) else True",
        "tests/unit/test_forwarding.py::test_an_entry_stays_whose_other_lane_is_sealed",
    ),
    Mutant(
        "gate-opens-too-early",
        "K",
        "a key's new group starts its messages while its old group still holds some",
        "emq/topics/key_layouts.py",
        "return group == beside or group >= self._topic.groups or self.passed.get(group, -1) >= layout",
        "return True",
        "tests/unit/test_layouts.py::test_a_message_waits_for_each_former_group_of_its_key",
    ),
    Mutant(
        "group-passes-what-runs",
        "K",
        "a group counts as past an earlier layout while messages of it run",
        "emq/host/passage_loop.py",
        "if oldest <= number:",
        "if oldest < 0:",
        "tests/integration/test_moving_keys.py::"
        "test_keys_keep_their_order_while_their_topic_grows_and_shrinks[window-0]",
    ),
    Mutant(
        "group-passes-what-is-unread",
        "K",
        "a group counts as past an earlier layout before its queues are read up to it",
        "emq/host/passage_loop.py",
        "self._unread.clear_until(each.queue, number) < each.upto",
        "self._unread.clear_until(each.queue, number) < 0",
        "tests/integration/test_moving_keys.py::"
        "test_what_no_host_has_read_yet_goes_before_what_is_published_after_the_change",
    ),
    Mutant(
        "groups-wait-for-each-other",
        "L",
        "a group whose buffers are full of held messages never passes a layout, and others wait for it for ever",
        "emq/host/passage_loop.py",
        "await self._unread.look(unread)",
        "await self._unread.look([])",
        "tests/integration/test_moving_keys.py::"
        "test_keys_with_a_long_backlog_wait_for_no_ring_of_groups_after_several_changes",
    ),
    Mutant(
        "catching-up-opens-what-is-deleted",
        "L",
        "queues of a topic that is being deleted take messages again, which go with the topic",
        "emq/topics/forgotten_layouts.py",
        "if not first.sealed:",
        "if True:",
        "tests/contract/test_restored_catalogs.py::test_a_topic_that_is_being_deleted_stays_sealed[memory]",
    ),
    Mutant(
        "forgotten-layout-stays-forgotten",
        "L",
        "messages of a layout that a restored catalog has forgotten stand still for ever",
        "emq/topics/changing.py",
        "if topic.layout >= layout:",
        "if topic.layout < layout:",
        "tests/integration/test_moving_keys.py::"
        "test_keys_of_a_layout_that_a_restored_catalog_has_forgotten_are_delivered",
    ),
    Mutant(
        "look-ahead-passes-over-a-layout",
        "K",
        "a group counts as past an earlier layout though a message of it lies behind newer ones",
        "emq/host/unread_layouts.py",
        "m.group <= part.number",
        "m.group < part.number",
        "tests/unit/test_unread_layouts.py::test_a_look_ahead_stops_at_a_message_of_the_layout_or_of_an_older_one",
    ),
    Mutant(
        "stale-owner-notes-a-passage",
        "K",
        "a stale owner says that a group has passed, whose newer owner still holds old messages",
        "emq/host/passage_loop.py",
        "return [p for group, p in passed if group.name in owned and not group.lost]",
        "return [p for group, p in passed]",
        "tests/integration/test_moving_keys.py::"
        "test_a_host_that_lost_a_group_unawares_does_not_say_what_the_group_has_passed",
    ),
    Mutant(
        "queues-are-not-raised",
        "K",
        "the queues of a topic that grows go on taking what producers route by its former layout",
        "emq/topics/raised_layouts.py",
        "Trim(q, 0, epoch, layout=t.layout)",
        "Trim(q, 0, epoch)",
        SIMULATION,
    ),
    Mutant(
        "layout-is-forgotten-early",
        "K",
        "an earlier layout is dropped from the topic when one of its groups has passed",
        "emq/host/passage_loop.py",
        "if all(gate.is_past(group, layout.number) for group in range(layout.groups))",
        "if any(gate.is_past(group, layout.number) for group in range(layout.groups))",
        "tests/integration/test_moving_keys.py::"
        "test_keys_keep_their_order_while_their_topic_grows_and_shrinks[window-0]",
    ),
    Mutant(
        "retired-groups-go-at-once",
        "L",
        "retired groups are dropped while a store that loses its last second would forget their seals",
        "emq/host/retirement.py",
        "return now_s - stable.since_s >= self._stable_s",
        "return True",
        "tests/integration/test_lost_seals.py::test_a_group_is_dropped_only_after_its_seals_have_held",
    ),
    Mutant(
        "sealing-trusts-old-checkpoints",
        "L",
        "a queue is emptied and sealed by a checkpoint of what its store has forgotten",
        "emq/offsets/sealing.py",
        "seal=True, mark=mark)",
        "seal=True)",
        "tests/unit/test_sealing.py::test_only_what_is_certainly_finished_is_dropped",
    ),
)
