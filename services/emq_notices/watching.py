"""Watches an environment on the host that leads it, and publishes notices."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from emq.observe import snapshots
from emq.runtime import errors, pace
from emq_notices import judging
from emq_notices.judging import Key
from emq_notices.notice import TOPIC, Kind, Notice, time_of
from emq_notices.opening import News, Open
from emq_notices.told import Told

if TYPE_CHECKING:
    from emq.app import App
    from emq.topics.model import Topic

log = logging.getLogger(__name__)

LOOK_S = 10.0
"""Most seconds between two looks; fewer if a trouble need not last so long. Hosts look for troubles of their topics
every `lag_s`, a setting."""
SOON_S = 1.0
"""Seconds to the first look."""

AFTER = "notices.after_s"
DEFAULT_AFTER_S = 300.0

AUDITED = Key("audited", "")
"""Up to when changes of endpoints were told, in microseconds; kept beside what was told."""
MISSED_US = 3_600_000_000
"""Changes of the last hour are told by a host that comes to lead, if no other host has."""

_KINDS: dict[str, tuple[Kind, Kind]] = {
    judging.STUCK: ("topic.stuck", "topic.recovered"),
    judging.DEAD: ("topic.dead_letters", "topic.dead_letters"),
    judging.GONE: ("host.gone", "host.back"),
    judging.TROUBLED: ("host.troubled", "host.well"),
}
_ENDED = {
    judging.STUCK: "topic {} is in order again",
    judging.GONE: "host {} is back",
    judging.TROUBLED: "host {} is well again",
}


def after_s_of(topic: Topic) -> float:
    """Return how long a trouble must last, by the attribute of the topic of notices.

    Raises:
        ValueError: the attribute is no number of seconds from 1 to 86,400.
    """
    text = topic.options.attributes.get(AFTER, "") or f"{DEFAULT_AFTER_S:g}"
    try:
        after_s = float(text)
    except ValueError:
        after_s = float("nan")
    if not 1 <= after_s <= 86_400:
        raise ValueError(f"{AFTER} {text!r} must be a number of seconds from 1 to 86400")
    return after_s


class Watching:
    """Looks at all hosts while this one leads, and the topic of notices exists."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._told = Told(app.database, str(app.settings.environment))
        self._open: Open | None = None
        self._rest_s = SOON_S
        self._audited_us = 0

    async def run(self) -> None:
        """Look again and again. Ends by cancellation."""
        while True:
            await pace.rest(self._rest_s)
            self._rest_s = LOOK_S
            try:
                await self.look()
            except errors.EMQError as exc:
                log.info("notices wait: %s", exc)
            except Exception:
                log.exception("the look for notices failed; it comes again")

    async def look(self) -> None:
        """Tell what is new, if this host leads."""
        app = self._app
        topic = (await app.catalog.some([TOPIC])).get(TOPIC) if app.host and app.host.membership.leads else None
        if topic is None:
            self._open = None  # another host may tell meanwhile
            return
        if self._open is None:
            told, now_us = await self._told.load(), round(app.clock.now() * 1e6)
            self._audited_us = max(told.get(AUDITED, now_us), now_us - MISSED_US)
            if told.pop(AUDITED, None) is None:
                await self._told.save(AUDITED, now_us)
            self._open = Open(told, 0.0)
        with contextlib.suppress(ValueError):  # somebody has written the attribute past its check; the last one counts
            self._open.after_s = after_s_of(topic)
        self._rest_s = min(LOOK_S, max(SOON_S, self._open.after_s / 2))
        found = judging.judged(await snapshots.load(app))
        for news in self._open.news(found, app.clock.now()):
            await self._tell(self._open, news)
        await self._tell_changes()

    async def _tell(self, opened: Open, news: News) -> None:
        now_s = self._app.clock.now()
        if news.ended != "unseen":
            await publish(self._app, _notice(news, now_s))
        opened.note(news, now_s)
        await self._told.save(news.key, opened.told.get(news.key))

    async def _tell_changes(self) -> None:
        """Tell of endpoints that were disabled or enabled since the last look, by the audit log of the push service."""
        from emq_notices import endpoints

        for us, notice in await endpoints.changes(self._app, self._audited_us):
            await publish(self._app, notice)
            self._audited_us = us
            await self._told.save(AUDITED, us)


def _notice(news: News, now_s: float) -> Notice:
    key, trouble = news.key, news.trouble
    began, ended = _KINDS[key.kind]
    tenant = _tenant_of(key)
    if trouble is None:
        return Notice(
            type=ended, text=_ENDED[key.kind].format(key.subject), subject=key.subject, tenant=tenant, at=time_of(now_s)
        )
    return Notice(
        type=began,
        text=trouble.text,
        subject=key.subject,
        tenant=tenant,
        cause=trouble.cause,
        reason=trouble.reason,
        waiting=trouble.waiting,
        dead=trouble.dead,
        at=time_of(now_s),
        since="" if news.begun_s is None else time_of(news.begun_s),
    )


def _tenant_of(key: Key) -> str:
    tenant, between, _ = key.subject.rpartition(".ep_")
    return tenant if between and key.kind in (judging.STUCK, judging.DEAD) else ""


async def publish(app: App, notice: Notice) -> str:
    """Publish a notice; return the message's id.

    Raises:
        UnknownTopic: nobody has switched notices on: `emq notices on`.
        StoreUnavailable, StoreFull, DatabaseUnavailable: try again later.
    """
    headers = {"event-type": notice.type, "content-type": "application/json"}
    return await app.publish(TOPIC, msgspec.json.encode(notice), headers=headers)


@contextlib.asynccontextmanager
async def watch(app: App) -> AsyncIterator[None]:
    """Watch the environment for the length of a block, while the app is a host and leads. `emq up` and `emq host` do.

    Args:
        app: may be closed yet.
    """

    @app.on_startup(host_only=True)
    async def watching() -> AsyncIterator[None]:
        task = asyncio.create_task(Watching(app).run(), name="emq notices")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    yield
