"""The pages in a real Chromium: an operator and tenants sign in, watch, replay, change rates and pause."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from emq.database import host_stats
from emq.observe import snapshots
from emq.topics.families import Bounds, Family, asked
from emq.topics.model import State, Topic, TopicOptions
from emq_notices import judging
from emq_notices.notice import TOPIC
from emq_notices.told import Told
from support.browsing import CHECK, shoot, until
from support.dashboard import Dashboard, dashboard

if TYPE_CHECKING:
    from playwright.async_api import Browser


@pytest.fixture
async def board(chromium: Browser) -> AsyncIterator[Dashboard]:
    async with dashboard(chromium) as made:
        yield made
        assert made.complaints == [], "scripts, styles and requests all work under the content security policy"


SERIES = "echarts.getInstanceByDom(document.getElementById('rate-chart')).getOption().series"


async def test_an_operator_sees_what_is_wrong_and_goes_from_there_to_the_tenant(board: Dashboard) -> None:
    page = await board.signed_in(await board.key("admin"))
    await until(page, "#verdict", "Flowing: .* but 1 tenant cannot keep up")
    places = dict(
        zip(
            await page.locator("dt").all_inner_texts(),
            await page.locator("dd:not(.hint)").all_inner_texts(),
            strict=True,
        )
    )
    assert places["Parked"] == "40"
    assert places["Dead"] == "12"
    assert int(places["Held by rate"].replace(",", "")) > 3_000
    [needy] = await page.locator("tbody tr").all_inner_texts()
    assert "acme" in needy
    assert "endpoint out of order" in needy
    assert "502 Bad Gateway" in needy
    assert "and 2 more of its endpoints" in needy
    assert "globex" not in await page.content(), "who is well is not here"
    await shoot(page, "dashboard-light")
    await page.get_by_role("link", name="acme").click()
    await until(page, "h1", "Acme Corporation")
    await page.get_by_role("link", name="Hosts").click()
    await until(page, "#hosts", "100.0 %")
    await shoot(page, "dashboard-hosts")


async def test_the_first_screen_renews_itself_and_says_when_it_knows_nothing(board: Dashboard) -> None:
    page = await board.signed_in(await board.key("admin"))
    await until(page, "#verdict", "Flowing")
    statistics, snapshot = board.app.database, await host_stats.load(board.app.database, "online")
    board.host.stop()
    await asyncio.sleep(1.5)
    [(host, text, at_ms)] = snapshot
    await host_stats.save(statistics, "online", host, text, at_ms - 60_000)
    await until(page, "#verdict", "Unknown: no host has reported for")
    assert await page.locator(".places, dd:not(.hint)").first.inner_text() == "\u2013", (
        "no figure of the past is shown as now"
    )
    live = page.get_by_role("button", name="Live")
    await live.click()
    assert await live.get_attribute("aria-pressed") == "false"
    await host_stats.drop(statistics, "online", host)
    await asyncio.sleep(3)
    await until(page, "#verdict", "Unknown")  # the page is not live
    await live.click()
    await until(page, "#verdict", "Not flowing: no host runs")


async def test_a_tenants_rate_is_drawn_against_its_cap_each_second(board: Dashboard) -> None:
    page = await board.signed_in(await board.key("read", "acme"))
    await page.wait_for_url("**/ui/tenants/acme")
    await until(page, "#rate", r"\b30 of 50 a second")
    counts: list[int] = []
    async with asyncio.timeout(15):
        while len(counts) < 5:
            await asyncio.sleep(0.5)
            drawn = await page.evaluate(SERIES)
            counts = [n for n in drawn[0]["data"] if n is not None]
    assert set(counts[1:]) == {30}, "the endpoint's rate, exactly, in each second"
    assert drawn[1]["data"] == [50] * 60
    pixels = await page.evaluate(
        "(() => { const c = document.querySelector('#rate-chart canvas');"
        " return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v) => v); })()"
    )
    assert pixels, "the chart is painted"


async def test_a_tenant_sees_its_backlog_endpoints_deliveries_and_attempts(board: Dashboard) -> None:
    page = await board.signed_in(await board.key("read", "acme"), dark=True)
    await page.wait_for_url("**/ui/tenants/acme")
    rows = await page.locator("#backlog tbody tr").all_inner_texts()
    assert [row.split("\n")[0] for row in rows] == ["Orders", "Billing", "Legacy"]
    assert "out of order 502 Bad Gateway" in rows[2]
    await until(page, ".facts", "Priority mid")
    await shoot(page, "tenant-dark")
    await page.get_by_role("link", name="dead", exact=True).click()
    await page.get_by_role("link", name="m00111").click()
    attempts = await page.locator("tbody tr").all_inner_texts()
    assert len(attempts) == 3
    assert "no answer within 10 s" in attempts[0]
    assert "the ledger is locked" in attempts[2]
    for name in ("Send it again", "Replay\u2026", "Change the rate\u2026"):
        assert await page.get_by_text(name).count() == 0, "a reader changes nothing"


async def test_a_tenant_changes_a_rate_pauses_and_resumes_an_endpoint(board: Dashboard) -> None:
    page = await board.signed_in(await board.key("manage", "acme"))
    topic = f"acme.{board.endpoints['Orders']}"
    await page.locator("#backlog tr", has_text="Orders").get_by_role("link", name="Rate").click()
    await page.get_by_label("New rate, a second").fill("20")
    await page.keyboard.press("Enter")
    await until(page, "h1", "Rate of Orders")
    await until(page, "form", "From 30 to 20 a second")
    assert (await board.app.catalog.get(topic)).qps == 30, "nothing is changed before the confirmation"
    await shoot(page, "rate-confirm")
    await page.get_by_role("button", name="Change the rate").click()
    await until(page, ".done", "The rate is changed")
    assert (await board.app.catalog.get(topic)).qps == 20
    await until(page, "#rate", r"\b20 of 50 a second")
    for button, state, text in (("Pause", State.PAUSED, "paused"), ("Resume", State.ACTIVE, "rate")):
        await page.locator("#backlog tr", has_text="Orders").get_by_role("link", name=button).click()
        await page.get_by_role("button", name=button).click()
        await until(page, ".done", button)
        assert (await board.app.catalog.get(topic)).state is state
        await until(page, "#backlog tr:has-text('Orders')", text)
    actions = [entry.action for entry in (await board.service.audit_log(20)).rows]
    assert {"endpoint.changed", "endpoint.paused", "endpoint.resumed"} <= {*actions}


async def test_a_wrong_rate_is_named_and_an_operator_changes_a_tenants_rate(board: Dashboard) -> None:
    page = await board.signed_in(await board.key("admin"))
    await page.goto(f"{board.base}/ui/tenants/globex/rate?qps=-3")
    await until(page, "[role=alert]", "A rate is a number above 0")
    await page.get_by_label("New rate, a second").fill("25")
    await page.get_by_role("button", name="Go on").click()
    await page.get_by_role("button", name="Change the rate").click()
    await until(page, ".done", "The rate is changed")
    assert (await board.service.tenants.get("globex")).settings.qps == 25


async def test_dead_letters_are_replayed_after_a_look_at_how_many(board: Dashboard) -> None:
    page = await board.signed_in(await board.key("manage", "acme"))
    await page.get_by_role("link", name="Replay").click()
    await page.get_by_label("Event types").fill("order.*")
    await page.get_by_role("button", name="Count them").click()
    await until(page, "[role=alert]", "No delivery fits")
    await page.get_by_label("Event types").fill("invoice.*")
    await page.get_by_label("Put back, a second").fill("6")
    await page.get_by_role("button", name="Count them").click()
    await until(page, "form", "12 deliveries will be sent again")
    await until(page, "form", "about 2 s, at 6 a second")
    await shoot(page, "replay-preview")
    await page.get_by_role("button", name="Replay them").click()
    await until(page, ".done", "The replay begins")
    await until(page, "#replays", "of 12")


async def test_one_delivery_is_sent_again(board: Dashboard) -> None:
    page = await board.signed_in(await board.key("manage", "acme"))
    id_ = f"{board.endpoints['Billing']}:m00111"
    await page.goto(f"{board.base}/ui/tenants/acme/deliveries/{id_}")
    await shoot(page, "delivery")
    await page.get_by_role("button", name="Send it again").click()
    await until(page, ".done", "waits again")
    assert (
        await board.service.parts.read(
            lambda c: c.exec_driver_sql("select state from emq_push_deliveries where message = 'm00111'").scalar()
        )
    ) == "pending"


async def test_an_operator_finds_a_tenant_and_sees_a_topic_without_one(board: Dashboard) -> None:
    await board.app.create_topic("plain", 10)
    page = await board.signed_in(await board.key("admin"))
    await page.get_by_role("link", name="Tenants").click()
    await page.get_by_label("Begins with").fill("glo")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**find=glo")
    assert await page.locator("tbody th").all_inner_texts() == ["globex"]
    await page.goto(f"{board.base}/ui/tenants/plain")
    await until(page, "h1", "plain")
    await page.get_by_role("link", name="Pause\u2026").click()
    await page.get_by_role("button", name="Pause").click()
    await until(page, "h1", "paused")
    assert (await board.app.catalog.get("plain")).state is State.PAUSED


async def test_an_operator_goes_from_a_family_to_a_topic_and_pauses_them_all(board: Dashboard) -> None:
    await families(board)
    page = await board.signed_in(await board.key("admin"))
    await page.get_by_role("link", name="Families").click()
    await until(page, "#families", r"orders\.\*[\s\S]*50/s[\s\S]*3 of 5,000")
    await page.get_by_role("link", name="orders.*").click()
    await until(page, "#topics-table", r"initech[\s\S]*500/s its own")
    await page.get_by_label("Begins with").fill("ac")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**find=ac")
    assert await page.locator("#topics-table tbody th").all_inner_texts() == ["orders.acme"]
    await page.get_by_role("link", name="Pause\u2026").click()
    await page.get_by_role("button", name="Pause").click()
    await until(page, "h1", "paused")
    assert (await board.app.catalog.get("orders.acme")).state is State.PAUSED
    await page.get_by_role("link", name="orders.acme").click()
    await page.get_by_role("link", name="orders.*").click()
    await until(page, "h1", "orders")


async def test_an_operator_sees_what_is_told_and_what_is_not_yet(board: Dashboard) -> None:
    page = await board.signed_in(await board.key("admin"))
    await page.get_by_role("link", name="Notices").click()
    await until(page, "#notices", r"notices are off[\s\S]*12 dead letters\s*no")
    topic = Topic(TOPIC, 10.0, options=TopicOptions(attributes={"notices.after_s": "120"}))
    await board.app.admin.create([topic])
    told = Told(board.app.database, "online")
    dead = next(key for key in judging.judged(await snapshots.load(board.app)).troubles if key.kind == judging.DEAD)
    await told.save(dead, 12)
    await told.save(judging.Key(judging.GONE, "h7"), round(board.app.clock.now() * 1000) - 180_000)
    await until(page, "#notices", r"2 min is told[\s\S]*12 dead letters\s*told[\s\S]*host h7[\s\S]*told\s*3\.\d+ min")
    await until(page, "#notices", r"[\d,]+ messages wait; more waits[\s\S]*not yet")
    await page.get_by_role("link", name="host h7").click()
    await until(page, "h1", "Hosts")


async def families(board: Dashboard) -> None:
    """Make two families, one with three topics."""
    orders = {"qps": 50.0, "priorities": ("high", "low"), "max_attempts": 5}
    for name, given, bounds in (("orders.*", orders, Bounds(max_topics=5_000)), ("mail.*", {"qps": 2.5}, Bounds())):
        await board.app.families.create(Family(asked(name, given), bounds))
    for name in ("acme", "globex", "initech"):
        await board.app.publish(f"orders.{name}", b"x")
    await board.app.admin.update("orders.initech", qps=500.0, handler_timeout_s=20.0)


async def test_the_link_of_a_portal_signs_in_and_leaves_no_token_in_the_address(board: Dashboard) -> None:
    page = await board.signed_in(await board.key("admin"))
    await page.get_by_role("button", name="Sign out").click()
    await page.get_by_label("Key or token").wait_for()
    token = await board.key("read", "globex")
    await page.goto("about:blank")
    await page.goto(f"{board.base}/ui/sign-in#{token}")
    await page.wait_for_url("**/ui/tenants/globex")
    assert token not in await page.evaluate("document.cookie + location.href + document.referrer")


async def test_the_keyboard_reaches_everything_in_order_and_the_focus_shows(board: Dashboard) -> None:
    page = await board.signed_in(await board.key("admin"))
    await until(page, "#verdict", "Flowing")
    reached = []
    for _ in range(13):
        await page.keyboard.press("Tab")
        reached.append(await page.evaluate("document.activeElement.innerText.trim().split('\\n')[0]"))
        outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none"
    places = ["Now", "Tenants", "Event types", "Families", "Pools", "Hosts", "Notices", "Keys", "Changes"]
    assert reached[:12] == ["Skip to the content", "EMQ", *places, "Live"]
    for id_ in ("needy-table", "needy-1"):
        await page.locator(f"#{id_}").focus()
        await asyncio.sleep(3)  # the part is renewed meanwhile
        assert await page.evaluate("document.activeElement.id") == id_, "renewing a part keeps the focus"
    await page.keyboard.press("Enter")
    await until(page, "h1", "Acme Corporation")


async def test_an_operator_finds_who_changed_what_and_ends_a_key(board: Dashboard) -> None:
    maker, text = await board.service.keys.create("admin", "test", name="ops")
    page = await board.signed_in(text)
    made, _ = await board.service.keys.create("manage", "test", tenant="acme", name="portal", maker=maker)
    await page.get_by_role("link", name="Keys").click()
    row = await page.locator("#keys-table tr", has_text=made.id).inner_text()
    assert re.search(rf"portal\s+manage in acme\s+{maker.id}\s+ops\s.* ago\s+never\s+never", row)
    await page.get_by_role("link", name=f"Delete {made.id}").click()
    await until(page, "form.card", "Whoever uses it is refused from then on")
    await page.get_by_role("link", name="Leave it as it is").click()
    await page.get_by_label("Of the tenant").fill("acme")
    await page.keyboard.press("Enter")
    await page.get_by_role("link", name=f"Delete {made.id}").click()
    await page.get_by_role("button", name="Delete").click()
    await until(page, "[role=status]", "Deleted")
    assert made.id not in await page.content()
    await page.get_by_role("link", name="Changes").click()
    await until(page, "#audit-table", "key.created")
    await page.get_by_label("What", exact=True).fill("key.del")
    await page.get_by_label("From (UTC)").fill("2020-01-01T00:00")
    await page.keyboard.press("Enter")
    await until(page, "#audit-table tr", made.id)
    assert await page.locator("#audit-table tbody tr").count() == 1
    await shoot(page, "audit-log-found")
    await page.get_by_label("Before (UTC)").fill("2020-01-01T00:00")
    await page.get_by_role("button", name="Find").click()
    await until(page, ".empty", "No change fits")
    await page.get_by_role("link", name="Show all").click()
    await until(page, "#audit-table", "key.created")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("phone", [False, True], ids=["wide", "phone"])
async def test_each_page_has_names_headings_contrast_and_fits_its_screen(
    board: Dashboard, dark: bool, phone: bool
) -> None:
    page = await board.signed_in(await board.key("admin"), dark=dark, phone=phone)
    [key, *_] = [each.id for each in (await board.service.keys.page(10)).rows]
    await families(board)
    paid = {"description": "Paid", "schemas": {"1": {}, "2": {}}, "example": 17}
    await board.service.event_types.change("order.paid", paid, "test", creates=True)
    billing = board.endpoints["Billing"]
    for path in (
        *("", "hosts", "tenants", "tenants/acme", "tenants/acme/replay", "tenants/nobody", "notices"),
        *(f"tenants/acme/rate?endpoint={billing}", f"tenants/acme/deliveries/{billing}:m00111", "sign-in"),
        *("keys", f"keys/{key}/delete", "audit-log", "audit-log?actor=nobody", "audit-log?since=soon"),
        *("event-types", "event-types/order.paid", "event-types?find=none"),
        *("families", "families/orders.%2A", "families/mail.%2A", "families/orders.%2A/rate?qps=7"),
    ):
        await page.goto(f"{board.base}/ui/{path}")
        found: Any = await page.evaluate(CHECK)
        assert found == [], f"/ui/{path}"
        name = re.sub(r"(?<!log)\?.*|:.*|ep_\w*|%2A", "", path.rpartition("/")[2]) or ("delivery" if path else "now")
        await shoot(page, f"{name}-{'dark' if dark else 'light'}-{'phone' if phone else 'wide'}")
    board.complaints[:] = [text for text in board.complaints if "404" not in text]
