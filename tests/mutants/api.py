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
        "session-is-a-key",
        "I",
        "the API takes the cookie of a browser for a key",
        "services/emq_web/admission.py",
        "key = (keys.fresh(token) or await self._owner(keys.owner, token, scope)) if token else None",
        "key = (await keys.session(token) or await self._owner(keys.owner, token, scope)) if token else None",
        f"{GATE}::test_a_session_is_no_key_of_the_api",
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
)
