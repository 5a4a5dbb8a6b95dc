"""What a change of an endpoint is, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from emq_push.records.endpoints import Endpoint
from emq_push.service.refusals import Conflict
from emq_push.service.signing import Signing
from emq_push.service.topic_fields import TopicFields

MOST = 100
"""Most endpoints of a tenant."""
NOT_GIVEN = TopicFields()


class Start(NamedTuple):
    """What an endpoint that had another sender has from the start.

    Attributes:
        former: an older secret that receivers may still check; empty for none.
        former_until_us: until then, deliveries are signed with the older secret, too.
        disabled: why it gets nothing yet; empty if it does.
    """

    former: str = ""
    former_until_us: int = 0
    disabled: str = ""

    def shown(self) -> dict[str, Any]:
        """Return this as the audit log has it, without the secret."""
        former = {"former_secret": "given"} if self.former else {}
        return former | ({"disabled": self.disabled} if self.disabled else {})


NEW = Start()


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


def check_room(tenant: str, count: int) -> None:
    """Raise `Conflict` if a tenant with this number of endpoints may have no other."""
    if count >= MOST:
        raise Conflict("too_many_endpoints", f"tenant {tenant!r} has {MOST} endpoints, which is the most")
