"""Mistakes around the call of a handler: payloads that do not fit, middleware, dependencies."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "handler-empties-the-engines-batch",
        "L",
        "a batch handler gets the dispatcher's own list, and messages that it takes out are never settled",
        "emq/dispatch/dispatcher.py",
        "await handler([*batch])",
        "await handler(batch)",
        "tests/integration/test_odd_failures.py::test_a_handler_that_empties_its_batch_has_handled_the_batch",
    ),
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
        "generators-count-as-done",
        "L",
        "a plain handler that returns a generator, whose code never runs, has succeeded",
        "emq/calls/calling.py",
        "    if inspect.isgenerator(result) or inspect.isasyncgen(result):\n",
        "    if False:\n",
        "tests/integration/test_odd_calls.py::test_a_handler_that_returns_a_generator_has_failed",
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
        "misfits-are-tried-again-with-their-batch",
        "X",
        "in a batch that fails, payloads that do not fit are tried again with the others",
        "emq/calls/calling.py",
        "{**_failures(failure, fitting), **misfits}",
        "_failures(failure, messages)",
        "tests/unit/test_payloads.py::test_a_batch_that_fails_keeps_its_misfits_dead",
    ),
    Mutant(
        "deep-payloads-are-tried-again",
        "X",
        "a payload that is nested too deeply is tried again until its attempts are used up",
        "emq/calls/decoding.py",
        "        except RecursionError:\n",
        "        except KeyError:\n",
        "tests/unit/test_payloads.py::test_a_payload_that_does_not_fit_is_rejected_with_the_field_and_the_type",
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
