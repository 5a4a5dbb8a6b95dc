"""Mistakes of the HTTP API: who gets in, what one caller may take from the others, and what ends with a key."""

from __future__ import annotations

from mutants.mutant import Mutant

SHARING = "tests/unit/test_api_sharing.py"
KEYS = "tests/unit/test_api_keys.py"
GATE = "tests/unit/test_pages_gate.py"
VERSIONS = "tests/unit/test_api_versions.py"

MUTANTS = (
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
        "strangers-share-nothing",
        "I",
        "the slow forms of one address take the turns of all visitors without a key",
        "services/emq_web/admission.py",
        "share, holder = self._of_strangers, address_of(scope)",
        "share, holder = self._of_strangers, account",
        f"{SHARING}::test_slow_forms_of_an_address_hold_up_no_visitor_of_another_one_and_no_key",
    ),
    Mutant(
        "more-keys-get-more-requests",
        "I",
        "a tenant gets the requests of each key that it makes",
        "services/emq_push/records/keys.py",
        "return self.tenant or (self.parent",
        "return self.id or (self.parent",
        f"{SHARING}::test_a_tenant_gets_no_more_requests_by_making_keys",
    ),
    Mutant(
        "wrong-keys-search-the-database",
        "I",
        "each wrong key costs a look in the database, however many come",
        "services/emq_web/admission.py",
        "self._unknown.check(address)  # before the look in the database",
        "pass",
        f"{SHARING}::test_wrong_keys_are_counted_before_the_look_in_the_database",
    ),
    Mutant(
        "made-keys-outlive-their-maker",
        "I",
        "a deleted key leaves the keys that its keys made",
        "services/emq_push/records/keys.py",
        "                generation += [key.id for key in made]\n",
        "",
        f"{KEYS}::test_a_deleted_key_takes_all_that_it_made_with_it",
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
        "link-swaps-the-session",
        "I",
        "a link with a key of somebody else takes the place of a session",
        "services/emq_web/pages/router.py",
        "    await gate.check_signed_out(request, service)\n",
        "",
        f"{GATE}::test_a_link_with_a_key_does_not_take_the_place_of_a_session",
    ),
    Mutant(
        "signing-in-is-not-limited",
        "I",
        "an address tries as many keys as it likes on the page to sign in",
        "services/emq_web/pages/router.py",
        '    cast("Rates", request.app.state.sign_ins).take(address_of(request.scope))\n',
        "",
        f"{GATE}::test_signing_in_is_limited_before_the_key_is_looked_up",
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
        "tests/integration/test_api_live.py::test_what_is_no_request_of_http_is_a_problem",
    ),
    Mutant(
        "a-refusal-overtakes-answers",
        "I",
        "a request that nobody can read is refused before the answers to those ahead of it on its connection",
        "services/emq_web/connections.py",
        "        is_last = not self.pipeline\n",
        "        is_last = True\n",
        "tests/integration/test_api_pipelined.py::test_a_refusal_waits_for_the_slow_answers_before_it",
    ),
    Mutant(
        "database-is-for-everybody",
        "I",
        "everybody on the machine reads the secrets in emq.db",
        "emq/runtime/private_files.py",
        "MODE = 0o600\n",
        "MODE = 0o644\n",
        "tests/unit/test_private_files.py::test_the_files_of_a_store_and_its_catalog_are_private",
    ),
)
