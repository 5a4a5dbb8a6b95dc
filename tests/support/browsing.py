"""Pages of an app in a real browser: keys, sessions, and what the browser complains of."""

from __future__ import annotations

import os
import pathlib
import re
from typing import TYPE_CHECKING, Any

from emq import App
from emq.host.host import Host
from emq_push.service.service import PushService

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

WIDE = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
SHOTS = os.environ.get("PAGE_SHOTS")
"""A directory for pictures of the pages; none are made without it."""
CHECK = (pathlib.Path(__file__).parent / "accessibility.js").read_text()
"""Returns a line for each fault of a page."""


class Board:
    """Attributes:
    base: URL of the pages.
    complaints: what browsers have said of scripts, of the content security policy, and of failed requests.
    """

    def __init__(self, app: App, host: Host, service: PushService, base: str, browser: Browser) -> None:
        self.app = app
        self.host = host
        self.service = service
        self.base = base
        self._browser = browser
        self.complaints: list[str] = []

    async def key(self, role: Any, tenant: str = "") -> str:
        return (await self.service.keys.create(role, "test", tenant=tenant))[1]

    async def signed_in(self, key: str, *, dark: bool = False, phone: bool = False) -> Page:
        """Return a page of a new browser session in which somebody has signed in by typing the key."""
        context = await self._browser.new_context(
            color_scheme="dark" if dark else "light",
            viewport=PHONE if phone else WIDE,  # type: ignore[arg-type]
            has_touch=phone,
        )
        page = await context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda message: self._told(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("requestfailed", lambda request: self._failed(request.url, request.failure))
        await page.goto(f"{self.base}/")
        await page.get_by_label("Key or token").fill(key)
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Sign out").wait_for()
        return page

    def _told(self, text: str) -> None:
        if "Autofocus processing was blocked" not in text:  # the test typed before the browser had chosen the field
            self.complaints.append(text)

    def _failed(self, url: str, failure: str | None) -> None:
        if failure != "net::ERR_ABORTED":  # the browser left the page meanwhile
            self.complaints.append(f"{url}: {failure}")


async def shoot(page: Page, name: str) -> None:
    """Keep a picture of the page, if somebody wants pictures."""
    if SHOTS:
        await page.screenshot(path=pathlib.Path(SHOTS) / f"{name}.png", full_page=True)


async def until(page: Page, selector: str, text: str) -> None:
    """Wait until an element shows a text that matches, without loading the page again."""
    await page.locator(selector).filter(has_text=re.compile(text)).first.wait_for()
