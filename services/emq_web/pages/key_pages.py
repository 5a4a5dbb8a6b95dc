"""The pages of keys and of the audit log, for operators: who may do what, who has done what, and an end of a key."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from starlette.responses import Response

from emq.runtime import plurals
from emq_push.records.audit_log import AuditFilter, Entry
from emq_push.records.keys import Key
from emq_push.service.refusals import Invalid
from emq_web.pages import changes
from emq_web.pages.changes import Change
from emq_web.pages.rendering import PREFIX, segment
from emq_web.pages.routing import AdminView, new_router

ROWS = 50
"""Keys, or entries of the audit log, on a page."""
LONGEST_CHANGES = 500
"""Most characters of the new values that a row of the audit log shows."""
_UTC = datetime.UTC

router = new_router()


class KeyRow(NamedTuple):
    """A key in the list.

    Attributes:
        maker: the key that made it; None if it is gone, or somebody at the command line made this one.
        has_ended: nobody can use it any more.
    """

    key: Key
    maker: Key | None
    has_ended: bool


class EntryRow(NamedTuple):
    """A change in the list, with its new values as JSON."""

    entry: Entry
    changes: str


@router.get("/keys")
async def keys(screen: AdminView, tenant: str = "", cursor: str = "", done: str = "") -> Response:
    tenant = tenant.strip()[:64]
    page = await screen.service.keys.page(ROWS, cursor, tenant or None)
    makers = await screen.service.keys.some({key.parent for key in page.rows if key.parent})
    now_us = screen.service.parts.now_us()
    rows = [KeyRow(key, makers.get(key.parent), 0 < key.expires_us <= now_us) for key in page.rows]
    context: dict[str, Any] = {"rows": rows, "tenant": tenant, "next": page.next, "mine": screen.visitor.key}
    return screen.answer("keys.html", done=changes.DONE.get(done, ""), **context)


@router.get("/keys/{key}/delete")
async def ask_delete(key: str, screen: AdminView) -> Response:
    found = await screen.service.keys.get(key)
    made = await screen.service.keys.made_by(key, ROWS)
    lines = [f"{found.name or 'It has no name'}: role {found.role}{f' of {found.tenant}' if found.tenant else ''}."]
    if found.kind == "session":
        lines.append("Whoever is signed in with this session is signed out.")
    else:
        lines.append("Whoever uses it is refused from then on.")
    if made:
        count = plurals.count(len(made), "key or session", "keys or sessions")
        count += " or more" if len(made) == ROWS else ""
        lines.append(f"With it go {count} that it made, and all that these made.")
    if key in (screen.visitor.key.id, screen.visitor.key.parent):
        lines.append("You are signed in with it: you are signed out.")
    title = f"Delete {'session' if found.kind == 'session' else 'key'} {key}"
    change = Change(title, "delete", lines, "Delete", confirms=True, grave=True)
    places = {"home": f"{PREFIX}/keys/{segment(key)}", "back": f"{PREFIX}/keys", "section": "keys"}
    return screen.answer("change.html", of={"name": key}, change=change, **places)


@router.post("/keys/{key}/delete")
async def delete(key: str, screen: AdminView) -> Response:
    await screen.form()
    await screen.service.keys.delete(key, screen.visitor.actor)
    return screen.go("/keys?done=key_deleted")


@router.get("/audit-log")
async def audit_log(
    screen: AdminView,
    tenant: str = "",
    actor: str = "",
    action: str = "",
    target: str = "",
    since: str = "",
    until: str = "",
    cursor: str = "",
) -> Response:
    asked = {"tenant": tenant, "actor": actor, "action": action, "target": target, "since": since, "until": until}
    asked = {name: value.strip()[:200] for name, value in asked.items()}
    wrong, rows, more = "", list[EntryRow](), ""
    try:
        page = await screen.service.audit_log(ROWS, cursor, _filter(asked))
    except Invalid as exc:
        wrong = str(exc)
        asked |= {"since": "", "until": ""}
    else:
        rows, more = [_row(entry) for entry in page.rows], page.next
    given = {name: value for name, value in asked.items() if value}
    context: dict[str, Any] = {"rows": rows, "asked": asked, "given": given, "next": more, "wrong": wrong}
    return screen.answer("audit_log.html", **context)


def _filter(asked: Mapping[str, str]) -> AuditFilter:
    """Return the filter that somebody has typed. Raises `Invalid`."""
    since_us, until_us = _us(asked["since"], 0), _us(asked["until"], 1 << 62)
    return AuditFilter(asked["tenant"] or None, asked["actor"], asked["action"], asked["target"], since_us, until_us)


def _us(text: str, default: int) -> int:
    """Return a time in UTC as a browser sends it, in microseconds since the epoch. Raises `Invalid`."""
    if not text:
        return default
    try:
        return int(datetime.datetime.fromisoformat(text).replace(tzinfo=_UTC).timestamp()) * 1_000_000
    except (ValueError, OverflowError):
        raise Invalid("invalid_request", f"{text[:40]!r} is not a time, such as 2026-11-26T07:30") from None


def _row(entry: Entry) -> EntryRow:
    text = msgspec.json.encode(entry.changes).decode() if entry.changes else ""
    return EntryRow(entry, text if len(text) <= LONGEST_CHANGES else f"{text[:LONGEST_CHANGES]} ...")
