"""The visitors of pages: sessions, rights of their roles, and the proof that a form comes from a page of ours.

Signing in with a key makes a session of the same role and tenant that lives for `SESSION_S` at most, in a cookie that
scripts cannot read. A link that the API made becomes such a session. Like a key it is random and hashed at rest, so any
worker can check it and nobody who reads the database can make one. A session ends with the key that it came from, and
the API does not take it for a key.

A visitor must sign out before signing in again: otherwise a link with somebody's key could move the visitor into
another tenant.

In a frame of a page of another site, browsers send no cookie of ours but one that belongs to our frames in that site
alone (CHIPS, `Partitioned`). There, a link replaces the session before it: the site, which `Look.frame_origins` must
allow, knows who its user is. A frame is for tenants; it shows nothing to an administrator.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

import fastapi
from starlette.requests import cookie_parser
from starlette.responses import Response

from emq_push.records.keys import Key
from emq_push.service.keys import LINK_PREFIX
from emq_push.service.service import PushService
from emq_push.service.tenancy import unknown
from emq_web.pages.rendering import PREFIX
from emq_web.problems import Problem

COOKIE = "emq_session"
FRAMED = "emq_framed"
"""The cookie of a session in a frame."""

MAX_FORM = 64 << 10
"""Most bytes of a form."""
MOST_FIELDS = 100


def session_of(path: str, headers: Mapping[bytes, bytes]) -> str:
    """Return the session that a request for a page brings; empty for none."""
    if not path.startswith(f"{PREFIX}/") or b"emq_" not in headers.get(b"cookie", b""):
        return ""
    return _session_in(cookie_parser(headers[b"cookie"].decode("latin-1")))


def _session_in(cookies: Mapping[str, str]) -> str:
    return cookies.get(COOKIE) or cookies.get(FRAMED, "")


class NotSignedIn(Exception):
    """Nobody is signed in, or the session has ended; send the browser to the page to sign in."""


class Visitor(NamedTuple):
    """Somebody who is signed in.

    Attributes:
        key: the session's.
        csrf: the proof that a form must carry.
    """

    key: Key
    csrf: str

    @property
    def role(self) -> str:
        return self.key.role

    @property
    def tenant(self) -> str:
        return self.key.tenant

    @property
    def sees_all(self) -> bool:
        return self.key.role == "admin"

    @property
    def may_manage(self) -> bool:
        """True if the visitor may change the tenants that he sees."""
        return self.key.role in ("admin", "manage")

    @property
    def title(self) -> str:
        return f"Signed in with {self.key.parent}, role {self.role}"

    @property
    def actor(self) -> str:
        """The visitor as the audit log names him."""
        return f"{self.key.id} signed in with {self.key.parent} {self.key.name}".rstrip()

    def check_sees(self, tenant: str) -> None:
        """Raise `NotFound` unless the visitor may see the tenant: the key of another one must not learn of it."""
        if not self.sees_all and tenant != self.tenant:
            raise unknown(tenant)

    def check_manages(self, tenant: str) -> None:
        """Raise unless the visitor may change the tenant's endpoints and deliveries."""
        self.check_sees(tenant)
        if not self.may_manage:
            raise Problem(403, "forbidden", f"a key of the role {self.role} changes nothing; sign in with role manage")

    def check_admin(self) -> None:
        """Raise unless the visitor may see and change everything."""
        if not self.sees_all:
            raise Problem(403, "forbidden", f"a key of the role {self.role} may not do this; sign in with role admin")


async def sign_in(service: PushService, text: str, *, framed: bool = False) -> str:
    """Return a session for the holder of this key or link.

    Raises:
        Problem: nobody has it, or its role sees nothing.
    """
    if (text := text.strip()).startswith(LINK_PREFIX):
        if opened := await service.keys.open_link(text):
            return opened
        raise Problem(401, "invalid_key", "This link was opened before, or has expired. Get a new one where it was.")
    key = await service.keys.owner(text)
    if key is None:
        raise Problem(401, "invalid_key", "This key is unknown, was deleted or has expired.")
    if key.role == "send":
        raise Problem(403, "forbidden", "This key may only publish. Sign in with a key of the role read or manage.")
    if key.role == "poll":
        raise Problem(
            403, "forbidden", "This key may only fetch messages. Sign in with a key of the role read or manage."
        )
    if key.role == "submit":
        raise Problem(403, "forbidden", "This key may only submit tasks. Sign in with a key of the role admin.")
    if framed and key.role == "admin":
        raise Problem(403, "forbidden", "An admin key works in a window of its own, not in a frame.")
    return await service.keys.begin_session(key)


async def check_signed_out(request: fastapi.Request, service: PushService) -> None:
    """Raise `Problem` if somebody is signed in: another key must not replace the session unseen."""
    if is_framed(request) and COOKIE not in request.cookies:
        return
    try:
        visitor = await visitor_of(request, service)
    except NotSignedIn:
        return
    text = f"{visitor.title}. Sign out first; then sign in with another key."
    raise Problem(409, "signed_in", text)


async def visitor_of(request: fastapi.Request, service: PushService) -> Visitor:
    """Return who sends this request. Raises `NotSignedIn`."""
    session = _session_in(request.cookies)
    key = await service.keys.session(session) if session else None
    if key is None:
        raise NotSignedIn
    return Visitor(key, _proof(session))


async def form_of(request: fastapi.Request, visitor: Visitor | None) -> dict[str, str]:
    """Return the fields of a posted form; of a repeated field the last value.

    Args:
        visitor: must have got the form from us; None for the form to sign in.

    Raises:
        Problem: the form comes from elsewhere, or is none.
    """
    if not _is_ours(request):
        raise Problem(403, "forbidden", "This form was sent from another site. Send it from a page of this one.")
    kind = request.headers.get("content-type", "").partition(";")[0]
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM:
            raise Problem(413, "", "The form is too large.")
    if kind != "application/x-www-form-urlencoded":
        raise Problem(415, "", "Send a form.")
    try:
        fields = dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:
        raise Problem(422, "", f"The form has more than {MOST_FIELDS} fields.") from None
    check_text(fields.values())
    if visitor is not None and not hmac.compare_digest(fields.get("csrf", "").encode(), visitor.csrf.encode()):
        raise Problem(403, "forbidden", "This page is out of date. Load it again, then repeat what you did.")
    return fields


def check_text(given: Iterable[str]) -> None:
    """Raise `Problem` if a value has a NUL character, which PostgreSQL refuses in texts."""
    if any("\0" in each for each in given):
        raise Problem(422, "", "A value has a NUL character. Remove it.")


def inner_path(text: str) -> str:
    """Return a path to go to after signing in: the given one if it is a page of ours, else the first page."""
    return text if text.startswith(f"{PREFIX}/") and "\\" not in text and text.isprintable() else f"{PREFIX}/"


def is_secure(request: fastapi.Request) -> bool:
    """Return True if the browser came by HTTPS, here or to a proxy in front."""
    return "https" in (request.url.scheme, request.headers.get("x-forwarded-proto", ""))


def is_framed(request: fastapi.Request) -> bool:
    """Return True if the browser shows its answer in a frame."""
    return request.headers.get("sec-fetch-dest") in ("iframe", "frame")


def keep(request: fastapi.Request, answer: Response, session: str, life_s: float) -> None:
    """Let the browser keep a session for so many seconds; 0 deletes it."""
    framed = is_framed(request)
    answer.set_cookie(
        FRAMED if framed else COOKIE,
        session,
        max_age=round(life_s),
        path=PREFIX,
        secure=framed or is_secure(request),
        httponly=True,
        samesite="none" if framed else "lax",
    )
    if framed:  # Starlette knows the attribute from Python 3.14 on
        answer.raw_headers[-1] = (b"set-cookie", answer.raw_headers[-1][1] + b"; Partitioned")


def _is_ours(request: fastapi.Request) -> bool:
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None and site not in ("same-origin", "none"):
        return False
    return origin is None or urlsplit(origin).netloc == request.headers.get("host", "")


def _proof(session: str) -> str:
    return hmac.new(session.encode(), b"form", hashlib.sha256).hexdigest()
