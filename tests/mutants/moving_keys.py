"""Mistakes with keys that move between groups, and with groups that retire."""

from __future__ import annotations

from mutants.mutant import SIMULATION, Mutant

MUTANTS = (
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
        "queues-are-not-raised",
        "K",
        "the queues of a topic that grows go on taking what producers route by its former layout",
        "emq/topics/raised_layouts.py",
        "Trim(q, 0, epoch, layout=t.layout)",
        "Trim(q, 0, epoch)",
        SIMULATION,
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
