"""The operators' view of the cluster: hosts, the plan, and the life of one message."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable

from emq.observe.snapshots import AgedSnapshot
from emq.runtime import errors
from emq.topics.buckets import is_bucket
from emq_clients.push.answers import Plan, PlannedHost
from emq_push.records import deliveries, endpoints
from emq_push.service.host_facts import HostView
from emq_push.service.parts import Parts
from emq_push.service.reading import delivery_id, unknown_delivery
from emq_push.service.refusals import Conflict, NotFound, TryAgain
from emq_trace import cluster_view, lookup
from emq_trace.cluster_view import View
from emq_trace.lookup import Trace

OPEN_S = 5.0
"""Most seconds that a look at the plan waits for the servers of the cluster."""

ALONE = ("memory", "sqlite")
"""Schemes of stores from which one host alone consumes."""


class ClusterService:
    """Looks at hosts, the plan and messages. Changes nothing."""

    def __init__(self, parts: Parts, hosts: HostView) -> None:
        self._parts = parts
        self._hosts = hosts

    async def hosts(self) -> list[AgedSnapshot]:
        """Return the hosts heard of within the last hour, by name. Raises `DatabaseUnavailable`."""
        return (await self._hosts.now()).seen

    async def plan(self) -> Plan:
        """Return the plan.

        Raises:
            Conflict: one host alone consumes from this store, so there is no plan.
            TryAgain: no server of the cluster answers.
        """
        app = self._parts.app
        options = app.settings
        alone = options.database_is_private or options.store.partition(":")[0] in ALONE
        if not options.cluster and alone:
            raise Conflict("no_plan", "one host alone consumes from this store, so there is no plan")
        try:
            async with cluster_view.opened(app.coordination(), "no server of the cluster", OPEN_S) as tree:
                return summary_of(await cluster_view.read(tree, options.environment))
        except errors.ClusterUnavailable as exc:
            raise TryAgain("unavailable", "the servers of the cluster do not answer") from exc

    async def trace(self, message: str, topic: str = "") -> Trace:
        """Return the life of a message, its place and why it waits.

        Args:
            message: its id.
            topic: needed if no trail is kept.

        Raises:
            NotFound: there is no such topic, nothing is known of the message, or the message is in several topics.
        """
        app = self._parts.app
        if not topic and not app.settings.trail:
            raise NotFound("no_trail", "no trail is kept, so the search needs a topic: add it", "topic")
        hosts = [seen.host for seen in await self.hosts() if seen.live]
        try:
            found = await lookup.look_up(app, message, topic or None, hosts)
        except errors.UnknownTopic as exc:
            raise NotFound("unknown_topic", f"there is no topic {topic[:128]!r}", "topic") from exc
        except errors.EMQError as exc:
            if type(exc) is not errors.EMQError:
                raise
            # The search found the id in no topic, or in several.
            raise NotFound("unknown_message", str(exc).replace("--topic", "topic")) from exc
        if found.is_unknown:
            raise NotFound("unknown_message", f"nothing is known of message {message[:200]!r}")
        return found

    async def trace_delivery(self, tenant: str, id_: str) -> Trace:
        """Return the life of a delivery. Raises `NotFound`."""
        endpoint, message = delivery_id(id_)
        rows = deliveries.Deliveries(self._parts.environment)
        if await self._parts.read(lambda c: rows.get(c, tenant, endpoint, message)) is None:
            raise unknown_delivery(id_)
        return await self.trace(message, endpoints.topic_of(tenant, endpoint))


def summary_of(view: View) -> Plan:
    """Return the plan of a cluster, counted; without the groups in buckets, which take a look at every topic."""
    record = view.record
    groups, buckets = _parted(view.groups)
    hosts = []
    for host in view.hosts:
        its_groups, its_buckets = _parted(view.of(host))
        drained = host in view.orders and view.orders[host].drain
        hosts.append(PlannedHost(host, len(its_groups), host in view.members, drained, len(its_buckets)))
    return Plan(
        view.generation,
        None if record is None else datetime.datetime.fromtimestamp(record.planned_s, datetime.UTC),
        "" if record is None else record.leader,
        view.leader,
        len(groups),
        dict(Counter(view.holding(group).value for group in groups)),
        hosts,
        len(buckets),
        dict(Counter(view.holding(bucket).value for bucket in buckets)),
    )


def _parted(entries: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the groups and the buckets among entries of the plan."""
    groups: list[str] = []
    buckets: list[str] = []
    for entry in entries:
        (buckets if is_bucket(entry) else groups).append(entry)
    return groups, buckets
