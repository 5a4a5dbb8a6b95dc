"""Mistakes of the push service between a request and the queues of its endpoints."""

from __future__ import annotations

from mutants.mutant import Mutant

PUBLISHING = "tests/unit/test_api_publishing.py"
ENDPOINTS = "tests/unit/test_api_endpoints.py"
WIRE = "tests/unit/test_push_wire.py"
ATTEMPTS = "tests/integration/test_push_attempt_log.py"
PROXY = "tests/unit/test_push_proxy.py"

MUTANTS = (
    Mutant(
        "accepted-without-a-trace",
        "L",
        "nothing names what is accepted and not sent, so a crash in between loses it",
        "emq/push/service/accepting.py",
        "            self._rows.add_batch(connection, self._new.batch)\n",
        "",
        f"{PUBLISHING}::test_a_crash_after_the_commit_loses_nothing",
    ),
    Mutant(
        "failed-send-is-accepted",
        "L",
        "a request whose messages the store did not take is answered with 202",
        "emq/push/service/publishing.py",
        "if not any((request.tenant, receipt.id) in failed for receipt in answer):",
        "if True:",
        f"{PUBLISHING}::test_a_store_that_fails_answers_503_and_a_repeat_sends",
    ),
    Mutant(
        "sent-is-not-forgotten",
        "D",
        "what was sent is sent again by the next look for what a crash has left",
        "emq/push/service/accepting.py",
        "self._rows.forget_batches(connection, list(self._sent))",
        "pass",
        f"{PUBLISHING}::test_what_was_sent_is_forgotten_by_the_next_transaction",
    ),
    Mutant(
        "repeat-is-another-message",
        "D",
        "a repeat with the same Idempotency-Key makes another message",
        "emq/push/service/accepting.py",
        "if request.key and (repeat := self._repeats.get(place)) is not None:",
        "if (repeat := self._repeats.get(place)) is not None and place in self._new_repeats:",
        f"{PUBLISHING}::test_an_idempotency_key_makes_a_repeat_safe",
    ),
    Mutant(
        "plan-is-never-read-again",
        "I",
        "a process does not see a change of endpoints that another process has made",
        "emq/push/service/plans.py",
        "if plan is None or plan.tenant.changed_us != changed_us:",
        "if plan is None:",
        f"{PUBLISHING}::test_a_change_of_endpoints_is_seen_by_the_next_message_on_every_worker",
    ),
    Mutant(
        "key-of-another-tenant",
        "I",
        "a key of one tenant reaches another one",
        "emq/api/access.py",
        "if self.key.tenant and tenant is not None and tenant != self.key.tenant:",
        "if False:",
        f"{ENDPOINTS}::test_the_ids_of_another_tenant_do_not_exist",
    ),
    Mutant(
        "rest-of-an-answer-is-the-next-one",
        "L",
        "a delivery takes the rest of another delivery's answer for its own",
        "emq/push/wire.py",
        "if not is_whole or self._transport.get_write_buffer_size():",
        "if False:",
        f"{WIRE}::test_a_connection_that_says_more_or_less_than_one_answer_is_not_used_again",
    ),
    Mutant(
        "answer-before-the-question",
        "L",
        "an answer that nobody asked for counts as that of the next delivery",
        "emq/push/wire.py",
        "self._is_stray = self._answered is None",
        "self._is_stray = False",
        f"{WIRE}::test_a_connection_that_says_something_while_idle_is_not_used_again",
    ),
    Mutant(
        "older-attempt-undoes-a-newer-one",
        "L",
        "the record of an older attempt makes a delivered message pending",
        "emq/push/records/sql/sqlite/deliveries_follow.sql",
        "AND (d.state = 'pending' AND d.attempts <= made.attempts OR made.state = 'delivered')",
        "",
        f"{ATTEMPTS}::test_an_older_attempt_changes_no_newer_state",
    ),
    Mutant(
        "waiting-loses-its-records",
        "L",
        "the records of a message leave at the end of their time although it still waits",
        "emq/push/records/messages.py",
        "stay = set(connection.execute(waiting).scalars())",
        "stay: set[str] = set()",
        f"{PUBLISHING}::test_what_still_waits_is_kept_beyond_its_time_and_a_day_longer",
    ),
    Mutant(
        "past-the-proxy",
        "I",
        "deliveries go out directly although there is a proxy",
        "emq/push/http.py",
        "proxy=None if proxy is None else proxy.url,",
        "proxy=None,",
        f"{PROXY}::test_deliveries_go_through_the_proxy_and_no_name_is_looked_up_here",
    ),
    Mutant(
        "address-through-the-proxy",
        "I",
        "the proxy is asked for an address that push does not connect to",
        "emq/push/http.py",
        'self._addresses.check_literal(url.host or "")',
        "pass",
        f"{PROXY}::test_an_address_in_a_url_is_refused_before_the_proxy_is_asked",
    ),
    Mutant(
        "proxy-fault-charged",
        "X",
        "a proxy that is down uses up the attempts of all messages",
        "emq/push/verdict.py",
        "isinstance(exc, NoNameServer | ProxyFailed)",
        "isinstance(exc, NoNameServer)",
        f"{PROXY}::test_a_proxy_that_is_down_is_our_own_fault",
    ),
    Mutant(
        "agreed-rate-forgotten",
        "Q",
        "a later change of qps forgets the rate that the endpoint allowed",
        "emq/push/service/endpoint_topics.py",
        ", allowed_rates.most_qps(attributes))",
        ")",
        "tests/unit/test_push_handshakes.py::test_an_endpoint_agrees_and_its_rate_binds_whatever_is_changed_later",
    ),
    Mutant(
        "pause-of-a-tenant-misses-endpoints",
        "I",
        "endpoints of a paused tenant get deliveries",
        "emq/push/service/endpoints.py",
        "if topic.qps == qps and is_held:",
        "if topic.qps == qps:",
        "tests/unit/test_push_pauses.py::test_nothing_is_delivered_while_a_tenant_is_paused_and_everything_afterwards",
    ),
)
