"""Entries in the audit log of the push service for what `emq topic` changes of its endpoints' topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from emq.topics.secret_names import masked
from emq_cli.extras import needing

if TYPE_CHECKING:
    from emq import App
    from emq.topics.model import Topic

TENANT, URL = "tenant", "push.url"
TABLE = "emq_push_audit_log"
MOST = 200
"""Characters of an attribute's value that an entry has: some hold certificates."""


async def entry(
    opened: App, topic: Topic, settings: Mapping[str, Any], attributes: Mapping[str, str]
) -> Callable[[sa.Connection], None] | None:
    """Return a function that writes the entry in the transaction of the change; None if the topic is not an endpoint's.

    Args:
        topic: as it is before the change.
        settings: the new values of options.
        attributes: the new values of attributes; an empty text removes one.
    """
    tenant = topic.options.attributes.get(TENANT, "")
    if not tenant or URL not in topic.options.attributes:
        return None
    if not await opened.database.run(lambda c: sa.inspect(c).has_table(TABLE), read_only=True):
        return None  # the topic has such attributes, but there is no push service
    with needing("the audit log of the push service", "push"):
        from emq_push.cli.push import ACTOR
        from emq_push.records.endpoints import Endpoints, endpoint_of
        from emq_push.service.parts import Parts

    parts = Parts(opened)
    values = {name: text[:MOST] or None for name, text in masked(attributes).items()}

    def write(connection: sa.Connection) -> None:
        endpoint = endpoint_of(topic.name)
        if Endpoints(parts.environment).find(connection, tenant, endpoint) is not None:
            changes = {**settings, **values}
            parts.audit(connection, ACTOR, "endpoint.topic_changed", endpoint, tenant=tenant, changes=changes)

    return write
