"""Mistakes of the HTTP API: who gets in, what one caller may take from the others, and what ends with a key."""

from __future__ import annotations

from mutants.mutant import Mutant

SHARING = "tests/unit/test_api_sharing.py"
ENDPOINTS = "tests/unit/test_api_endpoints.py"

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
        "account = key.tenant or key.id",
        "account = key.id",
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
)
