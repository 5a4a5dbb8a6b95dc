"""The pages of families, for operators: what each gives to its topics, which are in trouble; its rate and its pause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from starlette.responses import Response

from emq.runtime import errors
from emq.topics.family_rows import AllFamilies, Stored
from emq.topics.model import State, Topic
from emq_web import family_desk
from emq_web.family_desk import FamilyDesk
from emq_web.pages import changes, first_screen, pool_pages
from emq_web.pages.changes import PAUSING, Change, is_pause, pause_change, rate_change, rate_in
from emq_web.pages.rendering import PREFIX, segment
from emq_web.pages.routing import AdminView, Screen, new_router

ROWS = 50
"""Families, or topics of one, on a page."""

router = new_router()


class FamilyRow(NamedTuple):
    """A family in the list.

    Attributes:
        stored: why it cannot be read, for one that a newer version has written.
        in_trouble: number of its topics that hosts name as in trouble.
    """

    name: str
    stored: Stored | str
    in_trouble: int


class TopicRow(NamedTuple):
    """A topic on the page of its family.

    Attributes:
        own: the settings that are its own, and their values.
        trouble: in words; empty if hosts know of none.
    """

    topic: Topic
    own: Mapping[str, str]
    trouble: str


@router.get("/families")
async def families(screen: AdminView, after: str = "") -> Response:
    there = await screen.service.parts.app.catalog.families.all()
    names, causes, rows = [name for name in there if name > after], await _causes(screen), list[FamilyRow]()
    while names and len(rows) <= ROWS:
        some, names = names[: ROWS + 1], names[ROWS + 1 :]
        stored = {name: _read(there, name) for name in some}
        readable = [found.family.topic for found in stored.values() if not isinstance(found, str)]
        of_pools = await pool_pages.pools_of(screen, readable)
        rows += [
            FamilyRow(name, stored[name], sum(topic.startswith(name[:-1]) for topic in causes))
            for name in some
            if name not in of_pools
        ]
    more = rows[ROWS - 1].name if len(rows) > ROWS else ""
    return screen.answer_either("families", rows=rows[:ROWS], after=after, next=more)


def _read(there: AllFamilies, name: str) -> Stored | str:
    """Return a family, or why it cannot be read: it must not keep the others from being shown."""
    try:
        return there[name]
    except errors.InvalidTopic as exc:
        return str(exc)


@router.get("/families/{family}")
async def family(family: str, screen: AdminView, find: str = "", after: str = "", done: str = "") -> Response:
    stored = await _desk(screen, family).get()
    catalog, start = screen.service.parts.app.catalog, family[:-1] + find.strip()[:200]
    names = await catalog.beginning(start, ROWS + 1, after)
    found, causes = await catalog.some(names[:ROWS]), await _causes(screen)
    rows = [
        TopicRow(found[name], _own(found[name]), causes.get(name, ""))
        for name in names[:ROWS]
        if name in found and found[name].family == family
    ]
    settings = {name: _shown(value) for name, value in family_desk.differing(stored.family).items() if name != "qps"}
    pool = (await pool_pages.pools_of(screen, [stored.family.topic])).get(family, "")
    context: dict[str, Any] = {"of": stored, "pool": pool, "settings": settings, "rows": rows, "find": find}
    more = names[ROWS - 1] if len(names) > ROWS else ""
    return screen.answer("family.html", **context, next=more, done=changes.DONE.get(done, ""))


@router.get("/families/{family}/rate")
async def ask_rate(family: str, screen: AdminView, qps: str = "") -> Response:
    stored = await _desk(screen, family).get()
    change = rate_change(f"Rate of {family}", stored.family.topic.qps, qps, " for each topic")
    change = change._replace(lines=[*change.lines, "Topics with a rate of their own keep it."])
    return _page(screen, stored, change)


@router.post("/families/{family}/rate")
async def set_rate(family: str, screen: AdminView) -> Response:
    form = await screen.form()
    await _desk(screen, family).change({"qps": rate_in(form.get("qps", ""))})
    return _back(screen, family, "family_rate")


@router.get("/families/{family}/pause")
async def ask_pause(family: str, screen: AdminView) -> Response:
    stored = await _desk(screen, family).get()
    is_paused = stored.family.topic.state is not State.ACTIVE
    resuming = ["All its topics start what waits. One that was paused by itself stays paused."]
    change = pause_change(family, is_paused, PAUSING, resuming)
    return _page(screen, stored, change)


@router.post("/families/{family}/pause")
async def set_paused(family: str, screen: AdminView) -> Response:
    paused = is_pause(await screen.form())
    await _desk(screen, family).set_state(State.PAUSED if paused else State.ACTIVE)
    return _back(screen, family, "family_paused" if paused else "family_resumed")


def _desk(screen: Screen, family: str) -> FamilyDesk:
    return FamilyDesk(screen.service.parts, family, screen.visitor.actor)


async def _causes(screen: Screen) -> dict[str, str]:
    """Return the topics that live hosts name as in trouble, with the cause in words."""
    seen = (await screen.service.hosts.now()).seen
    return {t.name: first_screen.CAUSES.get(t.cause, t.cause) for s in seen if s.live for t in s.host.troubled}


def _own(topic: Topic) -> dict[str, str]:
    settings = family_desk.topic_settings_of(topic)
    return {name: _shown(settings[name]) for name in topic.own if name in settings and name != "qps"}


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _page(screen: Screen, stored: Stored, change: Change) -> Response:
    home = f"{PREFIX}/families/{segment(stored.family.name)}"
    return screen.answer("change.html", of=stored.family, change=change, home=home, section="families")


def _back(screen: Screen, family: str, done: str) -> Response:
    return screen.go(f"/families/{segment(family)}?done={done}")
