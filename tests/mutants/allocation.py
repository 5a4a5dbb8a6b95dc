"""Mistakes in allocation: plans, handoff, membership, leases, leaders."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "all-groups-on-one-host",
        "I",
        "one host gets all groups",
        "emq/allocation/plan/plan.py",
        "owner = {**loads.owner, **alone}",
        "owner = dict.fromkeys({**loads.owner, **alone}, min(hosts))",
        "tests/property/test_plan_properties.py::test_weights_are_kept_to_within_the_bounds",
    ),
    Mutant(
        "lease-counts-from-the-answer",
        "O",
        "a lease is counted from the answer of the heartbeat, not from when it was sent",
        "emq/allocation/heartbeat.py",
        "if incarnation == self._incarnation:\n                        self._renew(sent_us)",
        "if incarnation == self._incarnation:\n                        self._renew(self._clock.passed_us())",
        "tests/unit/test_heartbeat.py::test_a_lease_counts_from_when_a_heartbeat_was_sent_and_ends_before_its_session",
    ),
    Mutant(
        "draining-is-not-awaited",
        "O",
        "a host takes a group that its former owner is still draining",
        "emq/allocation/records.py",
        "return self.generation >= generation and group not in self.draining",
        "return self.generation >= generation",
        "tests/unit/test_handoff.py::test_nobody_waits_for_hosts_that_are_gone_or_have_let_go",
    ),
    Mutant(
        "deposed-leader-writes",
        "O",
        "a plan comes into force over one that its leader has not seen",
        "emq/allocation/leader.py",
        "version = await self._tree.write(self._paths.serverlist, data, version)",
        "version = await self._tree.write(self._paths.serverlist, data, -1)",
        "tests/unit/test_cluster_membership.py::test_of_two_that_lead_at_once_only_one_puts_its_plan_into_force",
    ),
    Mutant(
        "moved-group-keeps-its-epoch",
        "O",
        "a group that moves keeps its epoch, so that nothing fences its former owner off",
        "emq/allocation/plan/drafting.py",
        "entry = Entry(generation, why.get(group",
        "entry = Entry(0 if place is None else place.entry.epoch, why.get(group",
        "tests/unit/test_handoff.py::"
        "test_a_group_that_stays_keeps_its_epoch_and_one_that_moves_waits_for_its_former_owner",
    ),
    Mutant(
        "every-new-entry-is-first",
        "Q",
        "a group that moves starts messages in the second in which its former owner did",
        "emq/allocation/plan/drafting.py",
        "formers, previous is not None and place is None)",
        "formers, True)",
        "tests/unit/test_handoff.py::test_only_a_group_that_the_plan_before_did_not_know_is_called_first",
    ),
    Mutant(
        "former-owner-is-not-awaited",
        "O",
        "a host takes a group as soon as the plan gives it, whoever still holds it",
        "emq/allocation/handoff.py",
        "all(has_released(former, group) for former in entry.after)",
        "True",
        "simulation",
    ),
)
