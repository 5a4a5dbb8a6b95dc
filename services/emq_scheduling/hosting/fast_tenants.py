"""Gives the topics of fast tenants more groups, and takes them back; see `emq_scheduling.topics`."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from emq.runtime import errors
from emq.topics.model import Topic
from emq_scheduling import topics
from emq_scheduling.model import Pool

if TYPE_CHECKING:
    from emq.app import App


class FastTenants:
    """The tenants of one pool whose tasks come nearly as fast as one group delivers them.

    Their topics get a qps of their own. It is taken back once a tenant was not fast for `topics.FAST_IDLE_S`, since a
    topic with a setting of its own keeps its row while it sleeps.

    Args:
        known: the topics in which tasks of the pool wait, as a former host has left them.
    """

    def __init__(self, app: App, known: Iterable[Topic]) -> None:
        self._app = app
        self._looked_s = time.monotonic()
        self._came: Counter[str] = Counter()
        self._fast_s = {topic.name: self._looked_s for topic in known if "qps" in topic.own and _has_tenant(topic)}

    def came(self, topic: str) -> None:
        """Count a task that was delivered."""
        self._came[topic] += 1

    async def look(self, pool: Pool, gains: Mapping[str, float], known: Mapping[str, Topic]) -> None:
        """Let topics follow what came since the last look: call this about once a second.

        Args:
            gains: as for `topics.ensure`.
            known: the topics of this host, by name.
        """
        now_s = time.monotonic()
        came, self._came = self._came, Counter()
        least, self._looked_s = topics.FAST * topics.GROUP_QPS * (now_s - self._looked_s), now_s
        for name in [name for name, count in came.items() if count >= least]:
            topic, kind = known.get(name), topics.parsed(name)[1]
            if topic is not None and _has_tenant(topic) and kind in pool.types:
                self._fast_s[name] = now_s
                if topic.qps < 0.7 * (qps := topics.fast_qps(pool, kind, gains.get(kind, 1.0))):
                    await self._change(name, qps)
        for name in [name for name, at_s in self._fast_s.items() if now_s > at_s + topics.FAST_IDLE_S]:
            await self._change(name, None)
            del self._fast_s[name]

    async def _change(self, name: str, qps: float | None) -> None:
        """Give a topic its own qps; None to give it that of its family."""
        with contextlib.suppress(errors.UnknownTopic):  # it sleeps, or was deleted
            if qps is None:
                await self._app.admin.inherit(name, ["qps"])
            else:
                await self._app.admin.update(name, qps=qps)


def _has_tenant(topic: Topic) -> bool:
    return bool(topics.parsed(topic.name)[2])
