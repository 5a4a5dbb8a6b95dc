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
        "last-attempt-in-a-batch",
        "X",
        "a message that expires before its next attempt shares its last one with others",
        "services/emq_push/batches.py",
        "    return message.expires_us <= now_us + wait_s * 1e6",
        "    return message.expires_us <= now_us",
        "tests/unit/test_push_batches.py::test_a_message_at_its_last_attempt_is_alone_also_if_it_expires_before_the_next",
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
        "failed-send-is-accepted",
        "L",
        "a request whose messages the store did not take is answered with 202",
        "services/emq_push/service/publishing.py",
        "if not any((request.tenant, receipt.id) in failed for receipt in answer):",
        "if True:",
        f"{PUBLISHING}::test_a_store_that_fails_answers_503_and_a_repeat_sends",
    ),
    Mutant(
        "sent-is-not-forgotten",
        "D",
        "what was sent is sent again by the next look for what a crash has left",
        "services/emq_push/service/accepting.py",
        "self._rows.forget_batches(connection, list(self._sent))",
        "pass",
        f"{PUBLISHING}::test_what_was_sent_is_forgotten_by_the_next_transaction",
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
        "token-server-inside",
        "I",
        "a tenant lets hosts ask a server inside the network of their operator for tokens",
        "services/emq_push/service/endpoints.py",
        "if found.oauth2 is not None and fields.auth is not None:",
        "if False:",
        f"{FIELDS}::test_a_token_server_that_is_inside_is_refused_at_a_change_too",
    ),
    Mutant(
        "former-credentials-stay",
        "I",
        "an endpoint gets the credentials of the type of authentication that was set before",
        "services/emq_push/service/topic_fields.py",
        "            _drop_auth(found)\n",
        "            pass\n",
        f"{FIELDS}::test_another_type_of_authentication_leaves_nothing_of_the_one_before",
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
        "answer-before-the-question",
        "L",
        "an answer that nobody asked for counts as that of the next delivery",
        "services/emq_push/wire.py",
        "self._is_stray = self._answered is None",
        "self._is_stray = False",
        f"{WIRE}::test_a_connection_that_says_something_while_idle_is_not_used_again",
    ),
    Mutant(
        "connections-begin-all-at-once",
        "I",
        "a crowd of new connections holds up the messages of all other endpoints",
        "services/emq_push/turns.py",
        "if self._step is None:",
        "if True:",
        f"{TURNS}::test_many_connections_at_once_begin_one_after_the_other",
    ),
    Mutant(
        "tls-holds-connections",
        "I",
        "an endpoint that does not end TLS holds files of the host and the rest of its requests",
        "services/emq_push/http.py",
        "transport.abort()",
        "pass",
        f"{WIRE_ENDS}::test_an_endpoint_that_ends_nothing_holds_no_connection",
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
        "past-the-proxy",
        "I",
        "deliveries go out directly although there is a proxy",
        "services/emq_push/http.py",
        "proxy=None if proxy is None else proxy.url,\n            proxy_headers=None if",
        "proxy=None,\n            proxy_headers=None if",
        f"{PROXY}::test_deliveries_go_through_the_proxy_and_no_name_is_looked_up_here",
    ),
    Mutant(
        "address-through-the-proxy",
        "I",
        "the proxy is asked for an address that push does not connect to",
        "services/emq_push/http.py",
        'self._addresses.check_literal(url.host or "")\n        headers, _',
        "headers, _",
        f"{PROXY}::test_an_address_in_a_url_is_refused_before_the_proxy_is_asked",
    ),
    Mutant(
        "pause-of-a-tenant-misses-endpoints",
        "I",
        "endpoints of a paused tenant get deliveries",
        "services/emq_push/service/tenants.py",
        "            return [tenant, *endpoints]\n",
        "            return [tenant, *list(endpoints)[:1]]\n",
        "tests/unit/test_push_pauses.py::test_a_crash_leaves_all_endpoints_paused_or_none[5]",
    ),
)
