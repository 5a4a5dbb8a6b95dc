"""Mistakes in the push service, in the HTTP API, and in resource scheduling."""

from __future__ import annotations

from mutants.mutant import Mutant

PUBLISHING = "tests/unit/test_api_publishing.py"
ENDPOINTS = "tests/unit/test_api_endpoints.py"
WIRE = "tests/unit/test_push_wire.py"
SHARING = "tests/unit/test_api_sharing.py"
GATE = "tests/unit/test_pages_gate.py"
VERSIONS = "tests/unit/test_api_versions.py"
ENDS = "tests/integration/scheduling/test_pool_ends.py"
RECORDS = "tests/integration/scheduling/test_scheduling_records.py"
MOVES = "tests/integration/scheduling/test_pool_moves.py"

MUTANTS = (
    Mutant(
        "own-address-in-a-carrier",
        "I",
        "push connects to a public address of this machine that an IPv6 address carries",
        "services/emq_push/addresses.py",
        "if any(map(is_own, seen)) else None",
        "if is_own(found) else None",
        "tests/unit/test_push_addresses.py::test_the_addresses_of_this_machine_are_refused_also_if_they_are_public",
    ),
    Mutant(
        "accepted-without-a-trace",
        "L",
        "nothing names what is accepted and not sent, so a crash in between loses it",
        "services/emq_push/service/accepting.py",
        "            self._rows.add_batch(connection, self._new.batch)\n",
        "",
        f"{PUBLISHING}::test_a_crash_after_the_commit_loses_nothing",
    ),
    Mutant(
        "repeat-is-another-message",
        "D",
        "a repeat with the same Idempotency-Key makes another message",
        "services/emq_push/service/accepting.py",
        "if request.key and (repeat := self._repeats.get(place)) is not None:",
        "if (repeat := self._repeats.get(place)) is not None and place in self._new_repeats:",
        f"{PUBLISHING}::test_an_idempotency_key_makes_a_repeat_safe",
    ),
    Mutant(
        "key-of-another-tenant",
        "I",
        "a key of one tenant reaches another one",
        "services/emq_web/access.py",
        "if self.key.tenant and tenant is not None and tenant != self.key.tenant:",
        "if False:",
        f"{ENDPOINTS}::test_the_ids_of_another_tenant_do_not_exist",
    ),
    Mutant(
        "rest-of-an-answer-is-the-next-one",
        "L",
        "a delivery takes the rest of another delivery's answer for its own",
        "services/emq_push/wire.py",
        "if not is_whole or self._transport.get_write_buffer_size():",
        "if False:",
        f"{WIRE}::test_a_connection_that_says_more_or_less_than_one_answer_is_not_used_again",
    ),
    Mutant(
        "forgotten-comes-back",
        "I",
        "a message that was in its queue when its person was forgotten is tried again",
        "services/emq_push/service/erasing.py",
        "recalled = await self._recalled(await self._parts.read(read))",
        "recalled = await self._recalled({})",
        "tests/unit/test_push_erasing.py::"
        "test_a_message_that_waited_in_its_queue_when_its_person_was_forgotten_goes_after_its_attempt[schedule1]",
    ),
    Mutant(
        "body-before-the-key",
        "I",
        "the API keeps the body of a sender without a key",
        "services/emq_web/admission.py",
        "if account == STRANGERS and head.is_there and not",
        "if account is None and not",
        f"{SHARING}::test_a_body_without_a_key_is_not_kept",
    ),
    Mutant(
        "session-is-a-key",
        "I",
        "the API takes the cookie of a browser for a key",
        "services/emq_web/admission.py",
        "key = (keys.fresh(token) or await self._owner(keys.owner, token, scope)) if token else None",
        "key = (await keys.session(token) or await self._owner(keys.owner, token, scope)) if token else None",
        f"{GATE}::test_a_session_is_no_key_of_the_api",
    ),
    Mutant(
        "channels-of-nobody",
        "I",
        "an endpoint with channels gets messages of other channels",
        "services/emq_push/service/matching.py",
        "return any(each in some for each in others)",
        "return True",
        "tests/unit/test_api_channels.py::test_an_endpoint_with_channels_gets_only_messages_that_name_one",
    ),
    Mutant(
        "schemas-are-fetched",
        "I",
        "whoever stores a schema makes the API send requests to any address",
        "services/emq_push/service/payload_schemas.py",
        "retriever=refuse, ",
        "",
        "tests/unit/test_api_event_types.py::test_nothing_is_fetched_for_a_schema",
    ),
    Mutant(
        "version-is-not-looked-at",
        "I",
        "a change overwrites what somebody else has changed meanwhile",
        "services/emq_push/service/refusals.py",
        "if expected is not None and expected != found:",
        "if expected == 0 != found:",
        f"{VERSIONS}::test_an_endpoint_of_another_version_stays_as_it_is",
    ),
    Mutant(
        "two-hosts-are-one",
        "I",
        "of two Host or Authorization headers, a proxy and the API take different ones",
        "services/emq_web/connections.py",
        "if times > 1]:",
        "if times > 2]:",
        "tests/integration/test_api_pipelined.py::test_a_malformed_request_is_answered_behind_those_before_it",
    ),
    Mutant(
        "expired-in-the-store-tells-nobody",
        "L",
        "a task that expired in the store has no record, and its submitter no reply",
        "emq/dispatch/settler.py",
        "            group.owner.on_expired(m)\n",
        "            pass\n",
        f"{ENDS}::test_tasks_that_expired_in_the_store_delay_nothing_and_are_recorded_and_replied",
    ),
    Mutant(
        "pool-moves-while-its-tasks-run",
        "D",
        "a pool with a limit in flight moves at once, and what runs is cancelled and done again",
        "emq/host/letting_go.py",
        " or self._is_kept(g)",
        "",
        f"{MOVES}::test_a_limit_in_flight_holds_while_the_pool_moves[2.0-10.0]",
    ),
    Mutant(
        "running-replaces-the-end",
        "L",
        "a repeated record that an attempt runs replaces the record of its end",
        "services/emq_scheduling/records/ends.py",
        "WHERE emq_scheduling_tasks.outcome = 'running'",
        "WHERE emq_scheduling_tasks.outcome <> ''",
        f"{RECORDS}::test_writing_a_record_again_changes_nothing[sqlite]",
    ),
    Mutant(
        "results-after-the-lease",
        "D",
        "a call that ends after its host's lease has its result taken, though the next host does the task again",
        "services/emq_scheduling/hosting/scheduler.py",
        "if not self._holds() and not isinstance(failure, asyncio.CancelledError):",
        "if False:",
        "tests/unit/scheduling/test_scheduler.py::test_the_end_of_a_call_after_the_hosts_lease_is_refused[returns]",
    ),
    Mutant(
        "a-minute-of-sixty-cells",
        "Q",
        "a minute that begins within a second may hold more than the limit of a resource",
        "services/emq_scheduling/limits/limits.py",
        "return EvenMeter(limit.amount, period_s / cells, cells + 1)",
        "return EvenMeter(limit.amount, period_s / cells, cells)",
        "tests/unit/scheduling/test_windows.py::test_a_minute_holds_no_more_wherever_it_begins",
    ),
    Mutant(
        "a-minute-in-its-first-second",
        "P",
        "a backlog uses up a minute in its first second, and urgent tasks wait for the rest of it",
        "services/emq_scheduling/choice/spreads.py",
        "if isinstance(meter, EvenMeter) and (ahead_s := meter.evenness.wait_s(now)) > 0:",
        "if isinstance(meter, EvenMeter) and (ahead_s := 0.0) > 0:",
        "tests/unit/scheduling/test_windows.py::test_a_burst_of_chats_before_the_batch_does_not_make_later_ones_wait",
    ),
)
