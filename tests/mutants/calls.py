"""Mistakes around the call of a handler: payloads that do not fit, middleware, dependencies."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "unknown-ids-acknowledge-a-batch",
        "L",
        "a PartialFailure with ids that are not in the batch acknowledges the messages that it does not name",
        "emq/dispatch/retry.py",
        "failures = {m.uid: failures.get(m.uid, unclear) for m in batch}",
        "pass",
        "tests/integration/test_odd_calls.py"
        "::test_a_partial_failure_with_an_id_of_another_kind_acknowledges_nothing_in_silence",
    ),
)
