"""Mistakes of the HTTP API: who gets in, what one caller may take from the others, and what ends with a key."""

from __future__ import annotations

from mutants.mutant import Mutant

SHARING = "tests/unit/test_api_sharing.py"
ENDPOINTS = "tests/unit/test_api_endpoints.py"
KEYS = "tests/unit/test_api_keys.py"
GATE = "tests/unit/test_pages_gate.py"

MUTANTS = (
    Mutant(
        "body-before-the-key",
        "I",
        "the API keeps the body of a sender without a key",
        "emq/api/admission.py",
        "if account == STRANGERS and head.is_there and not",
        "if account is None and not",
        f"{SHARING}::test_a_body_without_a_key_is_not_kept",
    ),
    Mutant(
        "more-keys-get-more-requests",
        "I",
        "a tenant gets the requests of each key that it makes",
        "emq/api/admission.py",
        "account = key.tenant or (key.parent",
        "account = key.id or (key.parent",
        f"{SHARING}::test_a_tenant_gets_no_more_requests_by_making_keys",
    ),
    Mutant(
        "turns-are-not-shared",
        "I",
        "whoever comes first takes all turns of the API",
        "emq/api/admission.py",
        "async with self._turns.turn(account):",
        'async with self._turns.turn("all"):',
        f"{SHARING}::test_the_turns_of_a_tenant_that_hangs_are_not_those_of_others",
    ),
    Mutant(
        "wrong-keys-search-the-database",
        "I",
        "each wrong key costs a look in the database, however many come",
        "emq/api/admission.py",
        "self._unknown.check(address)  # before the look in the database",
        "pass",
        f"{SHARING}::test_wrong_keys_are_counted_before_the_look_in_the_database",
    ),
    Mutant(
        "strangers-connections-close-those-of-tenants",
        "I",
        "too many connections without a key close those of a tenant",
        "emq/api/connections.py",
        "largest = max(self._open.values(), key=len)",
        "largest = min(self._open.values(), key=len)",
        f"{SHARING}::test_who_opens_too_many_connections_loses_his_own",
    ),
    Mutant(
        "example-goes-to-all-endpoints",
        "I",
        "an example for one endpoint is delivered to all that want its event type",
        "emq/push/service/accepting.py",
        "        if request.only:\n",
        "        if not request.tenant:\n",
        f"{ENDPOINTS}::test_an_example_is_a_signed_delivery_to_its_endpoint_alone",
    ),
    Mutant(
        "made-keys-outlive-their-maker",
        "I",
        "a deleted key leaves the keys that its keys made",
        "emq/push/records/keys.py",
        "                generation += [key.id for key in rows]\n",
        "",
        f"{KEYS}::test_a_deleted_key_takes_all_that_it_made_with_it",
    ),
    Mutant(
        "deleted-key-makes-another",
        "I",
        "a key that was just deleted makes a key that nobody deletes",
        "emq/push/service/keys.py",
        "if key.parent and not self._rows.hold(connection, key.parent):",
        "if False:",
        f"{KEYS}::test_a_key_ends_with_its_maker_at_the_latest",
    ),
    Mutant(
        "session-is-a-key",
        "I",
        "the API takes the cookie of a browser for a key",
        "emq/api/admission.py",
        "key = await self._owner(keys.owner, token, address) if token else None",
        "key = await self._owner(keys.session, token, address) or await keys.owner(token) if token else None",
        f"{GATE}::test_a_session_is_no_key_of_the_api",
    ),
    Mutant(
        "link-swaps-the-session",
        "I",
        "a link with a key of somebody else takes the place of a session",
        "emq/api/pages/router.py",
        "    await gate.check_signed_out(request, service)\n",
        "",
        f"{GATE}::test_a_link_with_a_key_does_not_take_the_place_of_a_session",
    ),
    Mutant(
        "signing-in-is-not-limited",
        "I",
        "an address tries as many keys as it likes on the page to sign in",
        "emq/api/pages/router.py",
        '    cast("Rates", request.app.state.sign_ins).take(address_of(request.scope))\n',
        "",
        f"{GATE}::test_signing_in_is_limited_before_the_key_is_looked_up",
    ),
)
