"""Mistakes around the call of a handler: payloads that do not fit, middleware, dependencies."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "dependency-swallows-the-error",
        "L",
        "a dependency that swallows the handler's error makes the delivery a success",
        "emq/calls/dependencies.py",
        "        await close(*failure)\n        return False",
        "        return bool(await close(*failure))",
        "tests/unit/test_dependencies.py::test_an_error_of_the_handler_reaches_dependencies_and_goes_on",
    ),
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
    Mutant(
        "misfits-count-as-done",
        "X",
        "a batch with payloads that do not fit succeeds, and these are in no dead letter",
        "emq/calls/calling.py",
        "        raise errors.PartialFailure(misfits)",
        "        return None",
        "tests/unit/test_payloads.py::test_in_a_batch_only_the_misfits_fail",
    ),
    Mutant(
        "every-handler-has-a-wrapper",
        "A",
        "a handler of messages is called through EMQ's wrapper, although nothing asks for one",
        "emq/calls/plan.py",
        "return self == DIRECT",
        "return False",
        "tests/unit/test_payloads.py::test_without_annotation_or_with_message_the_handler_is_called_itself",
    ),
)
