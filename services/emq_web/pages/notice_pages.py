"""The page of notices, for operators: what is wrong now, and since when somebody was told of it."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from starlette.responses import Response

from emq_notices import judging
from emq_notices.judging import DEAD, GONE, TROUBLED, Key, Trouble
from emq_notices.notice import TOPIC
from emq_notices.told import Told
from emq_notices.watching import AUDITED, DEFAULT_AFTER_S, after_s_of
from emq_push.records.endpoints import tenant_of
from emq_web.pages.rendering import segment
from emq_web.pages.routing import AdminView, new_router

SHOWN = 200
"""Most troubles on the page, those told first."""

router = new_router()


class Row(NamedTuple):
    """A trouble.

    Attributes:
        text: the line that the notice has; shorter for a trouble that was told and that nobody names now.
        path: of the page that tells more, below `PREFIX`.
        is_told: a notice was published, and none yet that it has ended.
        since_us: when it began; None if it was not told, and for dead letters.
    """

    text: str
    path: str
    is_told: bool
    since_us: int | None


@router.get("/notices")
async def notices(screen: AdminView) -> Response:
    app = screen.service.parts.app
    topic = (await app.catalog.some([TOPIC])).get(TOPIC)
    told = await Told(app.database, str(app.settings.environment)).load() if topic else {}
    told.pop(AUDITED, None)
    troubles = judging.judged((await screen.service.hosts.now()).seen).troubles
    rows = [_row(key, troubles.get(key), told.get(key)) for key in sorted({**told, **troubles})]
    rows.sort(key=lambda row: (not row.is_told, row.since_us or 0))
    after_s = DEFAULT_AFTER_S
    with contextlib.suppress(ValueError):  # somebody has written the attribute past its check
        after_s = after_s_of(topic) if topic else after_s
    return screen.answer_either(
        "notices", rows=rows[:SHOWN], more=len(rows) - SHOWN, is_on=bool(topic), after_s=after_s
    )


def _row(key: Key, trouble: Trouble | None, told: int | None) -> Row:
    kind, subject = key
    is_host = kind in (GONE, TROUBLED)
    words = f"host {subject}" if is_host else f"topic {subject}"
    text = trouble.text if trouble else f"{words}: nobody names it now; it has ended if that lasts for a minute"
    path = "hosts" if is_host else f"tenants/{segment(tenant_of(subject))}"
    return Row(text, path, told is not None, None if told is None or kind == DEAD else told * 1000)
