"""What a change of an endpoint is, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from emq_push.records.endpoints import Endpoint
from emq_push.service.signing import Signing
from emq_push.service.topic_fields import TopicFields

NOT_GIVEN = TopicFields()


class Made(NamedTuple):
    """Attributes:
    secret: verifies deliveries; it is never shown again. Empty if none was made, and for ed25519, whose public key is
        in the endpoint.
    warnings: each a line for people.
    """

    endpoint: Endpoint
    secret: str
    warnings: Sequence[str] = ()


class Edit(NamedTuple):
    """A change of an endpoint, which begins again if others change the endpoint meanwhile.

    Attributes:
        action: as the audit log has it.
        shown: the change for the audit log.
        row: changes the row.
        fields: the given fields that only the topic keeps.
        sign: changes the secrets of the signatures.
        expected: `changed_us` of the version that is changed; None for any.
    """

    action: str
    shown: Mapping[str, Any]
    row: Callable[[Endpoint], Endpoint]
    fields: TopicFields = NOT_GIVEN
    sign: Callable[[str], Signing] = Signing
    expected: int | None = None
