"""The pages of pools in a real Chromium: an operator sees how a pool does, changes it live, and asks what if."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from emq_scheduling.model import Pool
from emq_scheduling.pools.catalog import PoolCatalog
from emq_scheduling.records.snapshots import Snapshots
from support import waiting
from support.browsing import CHECK, Board, shoot, until
from support.pool_board import OUT_OF_ORDER, pool_board

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page


@pytest.fixture
async def board(chromium: Browser) -> AsyncIterator[Board]:
    async with pool_board(chromium) as made:
        yield made
        assert made.complaints == [], "scripts, styles and requests all work under the content security policy"


async def stored(board: Board) -> Pool:
    return (await PoolCatalog(board.app.database, "online").get("sms")).pool


HEALTH = "tr:has(th:text-is('{}')) td[data-label=Health]"
CELLS = """(name) => {
  const first = (th) => th.childNodes[0].textContent.trim();
  const th = [...document.querySelectorAll("tbody th")].find((th) => first(th) === name);
  const cells = [...th.parentElement.querySelectorAll("td[data-label]")];
  return Object.fromEntries(cells.map((td) => [td.dataset.label, td.innerText.replace(/\\s+/g, " ").trim()]));
}"""


async def cells(page: Page, row: str) -> dict[str, str]:
    """Return the cells of a row of a table, by their heads; at once, since the page renews itself."""
    found: dict[str, str] = await page.evaluate(CELLS, row)
    return found


async def test_an_operator_sees_from_the_list_of_pools_what_is_wrong_and_why(board: Board) -> None:
    page = await board.signed_in(await board.key("admin"))
    await page.get_by_role("link", name="Pools").click()
    await until(page, "#pools", rf"Flowing: .* waiting, but {OUT_OF_ORDER} starts nothing")
    await page.get_by_role("link", name="sms").click()
    await until(page, "#verdict", rf"but {OUT_OF_ORDER} starts nothing")

    async def is_shut() -> bool:  # tasks that ran when it shut, and the one that tries whether it is well, are running
        broken = await cells(page, OUT_OF_ORDER)
        shown = re.search(r"SMPP bind refused: 0x0D.*for [\d.]+ s more", broken["Health"])
        return bool(shown) and broken["Running"] == "0"

    await waiting.until(is_shut)
    await until(page, HEALTH.format("Costa"), "fully used")
    account = await cells(page, "Costa")
    assert account["Health"] == "fully used messages a second"
    assert "40 of 40 messages a second" in account["Limits"]
    channel = await cells(page, "Costa A")
    assert channel["Health"] in ("fully used messages a second of Costa", "fully used messages a second")
    assert "of 2,000,000 messages a day" in account["Limits"]
    marketing, verification = await cells(page, "marketing"), await cells(page, "verification")
    assert int(marketing["Waiting"].replace(",", "")) > 500
    assert "bookshop" in marketing["Tenants"], "the tenant with the most waiting tasks is named"
    assert verification["At most"] == "5 s"
    assert verification["Late"] == "0"
    order = await page.locator("#types-table tbody th").all_inner_texts()
    assert [text.split()[0] for text in order] == ["verification", "notification", "marketing"]
    tree = await page.locator("#resources-table tbody th").evaluate_all(
        "cells => cells.map(c => [c.innerText.split('\\n')[0], c.className])"
    )
    assert tree[0] == ["Nordtel", "depth-0"]
    assert tree[1] == ["Nordtel 1", "depth-1"]
    await shoot(page, "pool-light")


async def test_the_page_renews_itself_and_says_when_its_figures_are_old(board: Board) -> None:
    page = await board.signed_in(await board.key("admin"))
    await page.goto(f"{board.base}/ui/pools/sms")
    await until(page, "#verdict", "Flowing")
    board.host.stop()
    await asyncio.sleep(1.5)
    snapshots = Snapshots(board.app.database, "online")
    last = await snapshots.load("sms")
    assert last is not None
    await snapshots.drop("sms")
    await until(page, "#verdict", "Unknown: no host has scheduled this pool yet")
    old = msgspec.structs.replace(last, state=msgspec.structs.replace(last.state, at=time.time() - 90))
    await snapshots.save(old)
    await until(page, "#verdict", r"Unknown: .* has been silent for")
    await until(page, ".notes", "The last figures are from")
    found = await cells(page, "Costa")
    assert (found["Health"], found["Running"], found["Starts"]) == ("\u2013", "\u2013", "\u2013")
    assert "40 messages a second" in found["Limits"]
    assert "of 40" not in found["Limits"], "no figure of the past is shown as now"
    await page.goto(f"{board.base}/ui/pools")
    await until(page, "#pools", "has been silent for")


async def test_a_limit_is_changed_live_after_a_confirmation(board: Board) -> None:
    page = await board.signed_in(await board.key("admin"))
    await page.goto(f"{board.base}/ui/pools/sms")
    await page.get_by_role("link", name="Change messages a second of Costa B").click()
    await until(page, "form", "The limits of Costa hold, too")
    await page.get_by_label("New limit, a second").fill("0.5")
    await page.keyboard.press("Enter")
    await until(page, "[role=alert]", "costs 1 of 'messages'")
    await page.get_by_label("New limit, a second").fill("12")
    await page.get_by_role("button", name="Go on").click()
    await until(page, "form", "From 20 to 12 messages a second")
    assert (await stored(board)).resources["Costa B"].limits[0].amount == 20, "nothing changes before it is confirmed"
    await page.get_by_role("button", name="Change the limit").click()
    await until(page, ".done", "The limit is changed")
    assert (await stored(board)).resources["Costa B"].limits[0].amount == 12
    await until(page, "tr:has-text('Costa B')", r"of 12 messages a second")
    [entry] = (await board.service.audit_log(1)).rows
    assert (entry.action, entry.target) == ("pool.changed", "sms")
    assert [*entry.changes["resources"]] == ["Costa B"]


async def test_a_resource_is_paused_and_resumed(board: Board) -> None:
    page = await board.signed_in(await board.key("admin"))
    await page.goto(f"{board.base}/ui/pools/sms")
    for button, paused, health in (("Pause", True, "paused"), ("Resume", False, "fully used|has room")):
        await page.get_by_role("link", name=f"{button} Nordtel", exact=True).click()
        await page.get_by_role("button", name=button).click()
        await until(page, ".done", f"{button}d")
        assert (await stored(board)).resources["Nordtel"].paused is paused
        await until(page, HEALTH.format("Nordtel"), health)
    await page.goto(f"{board.base}/ui/pools/sms/pause?resource=Costa")
    await until(page, "form", "Nothing more starts on the resources below it")


async def test_what_if_compares_waits_and_keeps_the_changes_together(board: Board) -> None:
    page = await board.signed_in(await board.key("admin"))
    await page.goto(f"{board.base}/ui/pools/sms")
    await page.get_by_role("link", name="What if").click()
    assert await page.locator("#waits-table").count() == 0, "nothing is forecast before a change"
    await page.get_by_label("Resource with all below it").select_option("Meridian")
    await page.get_by_role("button", name="See without it").click()
    await until(page, ".changes", "remove Meridian")
    assert (await cells(page, "marketing"))["Verdict"] == "worse"
    await page.get_by_label("Limit", exact=True).select_option(label="Costa B: 20 messages a second")
    await page.get_by_label("Units instead").fill("400")
    await page.keyboard.press("Enter")
    await until(page, ".changes", "limit Costa B messages=400/second")
    await page.get_by_label("Of", exact=True).select_option("Nordtel 1")
    await page.get_by_label("Its name").fill("Nordtel")
    await page.keyboard.press("Enter")
    await until(page, "[role=alert]", "exists already; choose another name")
    assert await page.locator(".changes li").count() == 2, "a wrong change leaves the others"
    await page.get_by_label("Its name").fill("Sud")
    await page.keyboard.press("Enter")
    await until(page, ".changes", "add Sud=copy-of:Nordtel 1")
    leave_out = page.get_by_role("link", name="Leave out remove Meridian")
    await leave_out.click()
    await leave_out.wait_for(state="detached")  # else the new page closes what the next click opens
    assert await page.locator(".changes li").count() == 2
    await page.locator("summary").click()
    await page.get_by_role("cell", name="100.0 %").first.wait_for()
    await shoot(page, "what-if")
    assert "Sud" not in (await stored(board)).resources, "nothing is changed"


async def test_the_keyboard_reaches_the_resources_and_keeps_its_place(board: Board) -> None:
    page = await board.signed_in(await board.key("admin"))
    await page.goto(f"{board.base}/ui/pools/sms")
    for name in ("Pause Nordtel 2", "Change messages a second of Costa A"):
        link = page.get_by_role("link", name=name)
        await link.focus()
        id_ = await page.evaluate("document.activeElement.id")
        await asyncio.sleep(3)  # the part is renewed meanwhile
        assert await page.evaluate("document.activeElement.id") == id_ != "", "renewing a part keeps the focus"
    await page.keyboard.press("Enter")
    await until(page, "h1", "messages of Costa A")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("phone", [False, True], ids=["wide", "phone"])
async def test_each_page_has_names_headings_contrast_and_fits_its_screen(board: Board, dark: bool, phone: bool) -> None:
    page = await board.signed_in(await board.key("admin"), dark=dark, phone=phone)
    for path, name in (
        ("pools", "pools"),
        ("pools/sms", "pool"),
        ("pools/sms/what-if", "what-if-empty"),
        ("pools/sms/what-if?change=remove+Meridian&change=pause+Costa&verb=remove&resource=x", "what-if"),
        ("pools/sms/limit?resource=Costa&limit=messages/second", "pool-limit"),
        ("pools/sms/pause?resource=Costa", "pool-pause"),
        ("pools/none", "pool-none"),
    ):
        await page.goto(f"{board.base}/ui/{path}")
        found: Any = await page.evaluate(CHECK)
        assert found == [], f"/ui/{path}"
        await shoot(page, f"{name}-{'dark' if dark else 'light'}-{'phone' if phone else 'wide'}")
    board.complaints[:] = [text for text in board.complaints if "404" not in text]
