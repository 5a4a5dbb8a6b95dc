"""Entries in the audit log of the push service for changes of its endpoints' topics, by `emq topic` or in code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from emq.topics import asking, changing, families
from emq.topics.model import called
from emq.topics.secret_names import masked
from emq_cli.extras import needing

if TYPE_CHECKING:
    from emq import App
    from emq.topics.model import Topic

TENANT, URL = "tenant", "push.url"
TABLE = "emq_push_audit_log"
MOST = 200
"""Characters of an attribute's value that an entry has: some hold certificates."""


async def entry(app: App, topic: Topic, changes: Mapping[str, Any]) -> Callable[[sa.Connection], None] | None:
    """Return a function that writes the entry in the transaction of the change; None if the topic is not an endpoint's.

    Args:
        topic: as it is before the change.
        changes: the new values, as for `Catalog.update`.

    Raises:
        InvalidTopic: a setting is unknown, may not change, or has a value of a wrong type.
    """
    before = topic.options.attributes
    tenant = before.get(TENANT, "")
    if not tenant or URL not in before:
        return None
    if not await app.database.run(lambda c: sa.inspect(c).has_table(TABLE), read_only=True):
        return None  # the topic has such attributes, but there is no push service
    with needing("the audit log of the push service", "push"):
        from emq_push.records.endpoints import Endpoints, endpoint_of
        from emq_push.service.parts import Parts

    parts = Parts(app)
    changing.validate(called(topic.name), changes)
    changed = changing.merged(topic, changes)
    names = dict.fromkeys([*changes, *families.differing(changed, topic)])
    settings = {name: asking.value(changed, name) for name in names if name not in ("options", "attributes")}
    after = changed.options.attributes
    attributes = {name: after.get(name, "") for name in {**before, **after} if after.get(name) != before.get(name)}
    values = {name: text[:MOST] or None for name, text in masked(attributes).items()}

    def write(connection: sa.Connection) -> None:
        endpoint = endpoint_of(topic.name)
        if Endpoints(parts.environment).find(connection, tenant, endpoint) is not None:
            new = {**settings, **values}
            parts.audit(connection, app.operator, "endpoint.topic_changed", endpoint, tenant=tenant, changes=new)

    return write
