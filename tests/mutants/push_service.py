"""Mistakes of the push service between a request and the queues of its endpoints."""

from __future__ import annotations

from mutants.mutant import Mutant

PUBLISHING = "tests/unit/test_api_publishing.py"
ENDPOINTS = "tests/unit/test_api_endpoints.py"
FIELDS = "tests/unit/test_api_endpoint_fields.py"
WIRE_ENDS = "tests/unit/test_push_wire_ends.py"
WIRE = "tests/unit/test_push_wire.py"
TURNS = "tests/unit/test_push_turns.py"
PROXY = "tests/unit/test_push_proxy.py"

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
)
