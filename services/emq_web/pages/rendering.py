"""Makes the pages: templates, their filters, the files that pages load, and the headers of every answer."""

from __future__ import annotations

import hashlib
import pathlib
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import fastapi
import jinja2
import msgspec
from starlette.responses import HTMLResponse, Response

from emq.runtime import durations
from emq_push.records.attempts import Attempt
from emq_push.records.deliveries import Delivery
from emq_web.pages.looks import Look

PREFIX = "/ui"
"""Path below which all pages are."""

UNKNOWN = "\u2013"
"""A dash, for unknown values."""

_HERE = pathlib.Path(__file__).parent

_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".txt": "text/plain",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors "
)

HEADERS = {
    "Content-Security-Policy": f"{_POLICY}'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Files:
    """The scripts, styles and licences beside the templates, with the digests by which browsers may keep them."""

    def __init__(self, more: Mapping[str, bytes]) -> None:
        own = {file.name: file.read_bytes() for file in (_HERE / "static").iterdir() if file.suffix in _TYPES}
        self._files = {**own, **more}
        self._tags = {name: hashlib.sha256(body).hexdigest()[:16] for name, body in self._files.items()}

    def url(self, name: str) -> str:
        """Return the path of a file; it changes with the file's content."""
        return f"{PREFIX}/static/{name}?{self._tags[name]}"

    def answer(self, name: str) -> Response:
        """Return a file; 404 for any other name."""
        if name not in self._files:
            return Response("no such file", 404, media_type="text/plain", headers=HEADERS)
        headers = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
        return Response(self._files[name], media_type=_TYPES[pathlib.Path(name).suffix], headers=headers)


class Pages:
    """Renders templates.

    Args:
        environment: "online" or "sandbox", which every page shows.
    """

    def __init__(self, environment: str, files: Files, look: Look) -> None:
        self._framed = {**HEADERS, "Content-Security-Policy": _POLICY + (" ".join(look.frame_origins) or "'none'")}
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals.update(prefix=PREFIX, environment=environment, file=files.url, look=look)
        self._templates.filters.update(number=number, rate=rate, span=span, wait=wait, when=when, ago=ago)
        self._templates.filters.update(segment=segment, json=json, answer=answer)

    def answer(self, request: fastapi.Request, template: str, status: int = 200, /, **context: Any) -> HTMLResponse:
        """Return a page, or a part of one for htmx.

        Args:
            context: names for the template; `visitor` is None for a page before signing in.
        """
        text = self._templates.get_template(template).render(now_s=time.time(), **context)
        visitor = context["visitor"]
        return HTMLResponse(text, status, headers=HEADERS if visitor and visitor.sees_all else self._framed)


def redirect(request: fastapi.Request, path: str, headers: Mapping[str, str] | None = None) -> Response:
    """Send the browser to another page, also from within htmx."""
    name = "HX-Redirect" if request.headers.get("hx-request") == "true" else "Location"
    status = 200 if name == "HX-Redirect" else 303
    return Response(status_code=status, headers={**HEADERS, name: path, **(headers or {})})


def number(value: float | None) -> str:
    """Return 12,345, or 3.5 where the fraction matters; a dash if unknown."""
    if value is None:
        return UNKNOWN
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def rate(value: float | None) -> str:
    """Return a rate with its unit."""
    return UNKNOWN if value is None else f"{number(value)}/s"


def span(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else durations.brief(seconds)


def wait(seconds: float | None) -> str:
    """Return a wait to the millisecond; a dash if unknown."""
    return UNKNOWN if seconds is None else durations.brief(round(seconds, 3))


def when(us: int) -> str:
    """Return a time in UTC, to the second; a dash for 0."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(us / 1e6)) if us else UNKNOWN


def ago(us: float, now_s: float) -> str:
    return f"{durations.brief(round(max(0.0, now_s - us / 1e6)))} ago" if us else UNKNOWN


def answer(of: Delivery | Attempt) -> str:
    """Return the status of the last answer with the reason of the failure, which mostly begins with the status."""
    if not of.status or of.reason.startswith((f"HTTP {of.status}", str(of.status))):
        return of.reason or UNKNOWN
    return f"{of.status} {of.reason}".rstrip()


def json(value: object) -> str:
    """Return JSON for an attribute of an element."""
    return msgspec.json.encode(value).decode()


def segment(text: str) -> str:
    """Return a name as one segment of a path."""
    return quote(text, safe="")
