"""The portal in a frame of a page of another site, in a real Chromium that blocks cookies of third parties."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from emq import App
from emq.runtime import settings
from emq.runtime.settings import Address
from emq_push.cli.pushing import with_push
from emq_push.service.service import PushService
from emq_web import serving
from support.browsing import CHECK, WIDE, Board, shoot
from support.http_receiver import HttpReceiver, Request
from support.push_api import Api, served

if TYPE_CHECKING:
    from playwright.async_api import Browser, FrameLocator, Page

LOGO = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 3"><rect width="9" height="3" fill="#7a1fa2"/></svg>'
LOOK = """
frame_origins = ["{origin}"]
name = "Parcels"
logo = "logo.svg"
font = "Georgia, serif"
[light]
accent = "#7a1fa2"
[dark]
accent = "#e0b0ff"
"""


class Platform:
    """The site of a platform, with the portal in a frame. For browsers, `localhost` and `127.0.0.1` are two sites.

    Attributes:
        frame: the address in the frame.
        origins: of the site that the portal knows, and of one that it does not.
    """

    def __init__(self, port: int) -> None:
        self.frame = ""
        self.origins = f"http://localhost:{port}", f"http://other.localhost:{port}"


@pytest.fixture
async def platform() -> AsyncIterator[Platform]:
    def page(_: Request) -> web.Response:
        text = f'<!doctype html><title>Platform</title><iframe src="{made.frame}" width="1200" height="800"></iframe>'
        return web.Response(text=text, content_type="text/html")

    async with HttpReceiver(page).running() as site:
        made = Platform(site.port)
        yield made


@pytest.fixture
async def board(chromium: Browser, platform: Platform, tmp_path: pathlib.Path) -> AsyncIterator[Board]:
    (tmp_path / "logo.svg").write_bytes(LOGO)
    look = tmp_path / "look.toml"
    look.write_text(LOOK.format(origin=platform.origins[0]))
    app = App(options=settings.merged(settings.Settings(store="memory:"), api_portal=str(look)))
    async with with_push(app), app, app.running() as host:
        service = await PushService.open(app)
        for tenant in ("acme", "globex"):
            await service.tenants.change(tenant, {"qps": 50}, "test", creates=True)
        async with serving.serving(app, Address("127.0.0.1", 0)) as where:
            yield Board(app, host, service, f"http://{where}", chromium)


@pytest.fixture
async def api(board: Board) -> AsyncIterator[Api]:
    async with served(board.app, board.service, await board.key("admin")) as made:
        yield made


async def link(board: Board, api: Api, tenant: str = "acme") -> str:
    """Make a link as the platform does; return its address."""
    answer = await api("POST", f"/v1/tenants/{tenant}/portal-links", {"name": "Ann"}, status=201)
    return f"{board.base}{answer['path']}"


async def visited(chromium: Browser, *, dark: bool = False) -> Page:
    """Return a page of a browser in which no other site gets cookies of a site, as people have it or will have it."""
    context = await chromium.new_context(viewport=WIDE, color_scheme="dark" if dark else "light")  # type: ignore[arg-type]
    page = await context.new_page()
    page.set_default_timeout(15_000)
    session = await context.new_cdp_session(page)
    rules = {"enableThirdPartyCookieRestriction": True}
    more = {"disableThirdPartyCookieMetadata": True, "disableThirdPartyCookieHeuristics": True}
    await session.send("Network.enable")
    await session.send("Network.setCookieControls", {**rules, **more})
    return page


def framed(page: Page) -> FrameLocator:
    return page.frame_locator("iframe")


async def test_a_tenant_works_in_a_frame_of_its_platform(
    chromium: Browser, board: Board, platform: Platform, api: Api
) -> None:
    platform.frame = await link(board, api)
    page = await visited(chromium)
    await page.goto(platform.origins[0])
    portal = framed(page)
    await portal.get_by_role("link", name="Add an endpoint").click()
    await portal.get_by_label("URL").fill("https://example.com/in")
    await portal.get_by_label("Name for people").fill("Orders")
    await portal.get_by_role("button", name="Add the endpoint").click()
    await portal.locator("#secret").wait_for()
    [endpoint] = (await board.service.endpoints.page("acme", 10)).rows
    assert endpoint.settings.description == "Orders"
    [cookie] = await page.context.cookies()
    assert cookie["name"] == "emq_framed"
    assert cookie["sameSite"] == "None"
    assert cookie["secure"]
    assert cookie["httpOnly"]
    assert cookie["partitionKey"]  # type: ignore[typeddict-item]
    alone = await page.context.new_page()
    await alone.goto(f"{board.base}/ui/tenants/acme")
    assert await alone.get_by_label("Key or token").count(), "the session is of the frame in this site alone"

    await shoot(page, "portal-framed")
    await portal.get_by_role("button", name="Sign out").click()
    await portal.get_by_label("Key or token").wait_for()
    assert await page.context.cookies() == []


async def test_a_new_link_replaces_the_session_of_a_frame_and_an_opened_one_does_not(
    chromium: Browser, board: Board, platform: Platform, api: Api
) -> None:
    page = await visited(chromium)
    for tenant in ("acme", "globex"):
        platform.frame = await link(board, api, tenant)
        await page.goto(platform.origins[0])
        await framed(page).get_by_role("heading", name=tenant).wait_for()
    await page.reload()
    await framed(page).get_by_role("alert").filter(has_text="opened before").wait_for()
    platform.frame = f"{board.base}/ui/sign-in#{api.admin}"
    await page.goto(platform.origins[0])
    await framed(page).get_by_role("alert").filter(has_text="not in a frame").wait_for()


async def test_a_site_that_is_not_named_cannot_frame_the_portal(
    chromium: Browser, board: Board, platform: Platform, api: Api
) -> None:
    platform.frame = await link(board, api)
    page = await visited(chromium)
    told: list[str] = []
    page.on("console", lambda message: told.append(message.text))
    await page.goto(platform.origins[1])
    assert any("frame-ancestors" in text for text in told), told
    assert await framed(page).get_by_text("Parcels").count() == 0
    assert await page.context.cookies() == []


@pytest.mark.parametrize("dark", [False, True])
async def test_the_pages_have_the_look_of_the_platform(
    chromium: Browser, board: Board, platform: Platform, api: Api, dark: bool
) -> None:
    page = await visited(chromium, dark=dark)
    await page.goto(await link(board, api))
    await page.get_by_role("button", name="Sign out").wait_for()
    assert await page.title() == "acme \u00b7 Parcels"
    logo = page.locator(".brand img")
    assert await page.get_by_role("link", name="Parcels").count() == 1
    assert await logo.evaluate("image => image.naturalWidth")
    colour = await page.get_by_role("link", name="Add an endpoint").evaluate(
        "a => getComputedStyle(document.documentElement).getPropertyValue('--accent')"
    )
    assert colour.strip() == ("#e0b0ff" if dark else "#7a1fa2")
    assert "Georgia" in await page.evaluate("getComputedStyle(document.body).fontFamily")
    assert await page.evaluate(CHECK) == []
    await shoot(page, f"portal-look-{'dark' if dark else 'light'}")


async def test_no_site_frames_the_pages_of_an_operator(board: Board, api: Api) -> None:
    key = await board.key("admin")
    same = {"origin": "http://api.test", "sec-fetch-site": "same-origin"}
    policies = {}
    for who, given in (("operator", key), ("tenant", await board.key("manage", "acme"))):
        api.http.cookies.clear()
        await api.http.post("/ui/sign-in", data={"key": given}, headers=same)
        page = await api.http.get("/ui/tenants/acme")
        assert page.status_code == 200
        policies[who] = page.headers["content-security-policy"].partition("frame-ancestors ")[2]
    assert policies["operator"] == "'none'"
    assert policies["tenant"].startswith("http://localhost:")
