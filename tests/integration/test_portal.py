"""A tenant serves itself in the portal, in a real Chromium: adds an endpoint, sees why it fails, mends it."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from msgspec import Raw
from standardwebhooks import Webhook

from emq import App
from emq.runtime import settings
from emq.runtime.settings import Address
from emq_push.cli.pushing import with_push
from emq_push.service.incoming import Incoming
from emq_push.service.service import PushService
from emq_web import serving
from support import waiting
from support.browsing import CHECK, Board, shoot, until
from support.http_receiver import HttpReceiver, Request

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page


def answers(request: Request) -> web.Response | int:
    return web.Response(status=500, text="the ledger is locked") if request.path == "/broken" else 200


@pytest.fixture
async def receiver() -> AsyncIterator[HttpReceiver]:
    async with HttpReceiver(answers).running() as made:
        yield made


@pytest.fixture
async def board(chromium: Browser, receiver: HttpReceiver) -> AsyncIterator[Board]:
    wanted = settings.Settings(store="memory:", push_allow="127.0.0.1", secret_key="")
    app = App(options=settings.merged(wanted))
    async with with_push(app), app, app.running() as host:
        service = await PushService.open(app)
        for tenant in ("acme", "globex"):
            await service.tenants.change(tenant, {"qps": 50}, "test", creates=True)
        async with serving.serving(app, Address("127.0.0.1", 0)) as where:
            made = Board(app, host, service, f"http://{where}", chromium)
            yield made
            assert made.complaints == []


async def added(board: Board, page: Page, url: str, name: str = "Orders", **more: str) -> str:
    """Add an endpoint; return its secret. The page shows it."""
    await page.goto(f"{board.base}/ui/tenants/acme")
    await page.get_by_role("link", name="Add an endpoint").click()
    await page.get_by_label("URL").fill(url)
    await page.get_by_label("Name for people").fill(name)
    for label, text in more.items():
        await page.get_by_label(label).fill(text)
    await page.get_by_role("button", name="Add the endpoint").click()
    await until(page, "h1", name)
    return await page.locator("#secret").inner_text()


async def test_a_tenant_adds_an_endpoint_sees_why_it_fails_and_mends_it(board: Board, receiver: HttpReceiver) -> None:
    page = await board.signed_in(await board.key("manage", "acme"))
    secret = await added(board, page, receiver.url("/broken"), Headers="X-Shop: 17\nX-Former: 1")
    assert secret.startswith("whsec_")
    await shoot(page, "portal-secret")
    await page.get_by_role("link", name="To the endpoint").click()
    await page.get_by_label("Try it").fill("order.paid")
    await shoot(page, "portal-endpoint")
    await page.get_by_role("button", name="Send an example").click()
    await until(page, ".done", "on its way")
    await until_shown(page, "#attempts-table", r"500[\s\S]*the ledger is locked")
    await shoot(page, "portal-attempt")

    await page.goto(f"{board.base}/ui/tenants/acme")
    await page.get_by_role("link", name="Find\u2026").click()
    await page.get_by_label("Status of the last answer").fill("500")
    await page.get_by_label("Event types").fill("order.*")
    await page.keyboard.press("Enter")
    await until(page, "#deliveries-table", "order.paid")
    assert await page.locator("#deliveries-table tbody tr").count() == 1
    await shoot(page, "portal-find")
    await page.get_by_label("Status of the last answer").fill("")
    await board.service.publishing.publish(
        "acme", [Incoming("order.kept", Raw(b"{}"), key="customer-5")], is_single=True
    )
    await page.get_by_label("Event types").fill("")
    await page.get_by_label("Key of the message").fill("customer-5")
    await page.get_by_role("button", name="Find").click()
    await until(page, "#deliveries-table", "order.kept")
    assert await page.locator("#deliveries-table tbody tr").count() == 1
    await page.get_by_label("Status of the last answer").fill("404")
    await page.get_by_role("button", name="Find").click()
    await until(page, "main", "No delivery")

    await page.goto(f"{board.base}/ui/tenants/acme")
    await page.get_by_role("link", name="Orders", exact=True).click()
    await page.get_by_role("link", name="Change\u2026").click()
    assert await page.get_by_label("Headers").input_value() == "", "values are not shown again"
    await until(page, "#headers-hint", "X-Shop")
    await page.get_by_label("URL").fill(receiver.url("/mended"))
    await page.get_by_label("Headers").fill("X-Former:\nX-New: 18")
    await page.get_by_role("button", name="Save").click()
    await until(page, ".done", "is changed")
    await page.get_by_role("button", name="Send an example").click()
    await waiting.until(lambda: any(request.path == "/mended" for request in receiver.requests))
    last = next(request for request in receiver.requests if request.path == "/mended")
    headers = {name: value for name, value in last.headers.items() if name.startswith("x-")}
    assert headers == {"x-shop": "17", "x-new": "18"}, "a line changes its own header"
    Webhook(secret).verify(last.body, last.headers)
    await until_shown(page, "#attempts-table", "200")

    actions = [entry.action for entry in (await board.service.audit_log(20)).rows]
    assert actions.count("endpoint.created") == actions.count("endpoint.changed") == 1


async def until_shown(page: Page, selector: str, text: str) -> None:
    """Load the page again until an element shows a text that matches."""
    for _ in range(50):
        await page.reload()
        if await page.locator(selector).filter(has_text=re.compile(text)).count():
            return
    raise AssertionError(await page.locator("main").inner_text())


async def test_a_tenant_chooses_event_types_from_the_catalogue(board: Board, receiver: HttpReceiver) -> None:
    example = {"order": 17, "amount": 120}
    schema = {"type": "object", "required": ["order"]}
    types: dict[str, dict[str, Any]] = {
        "order.paid": {"description": "A customer has paid.", "schemas": {"1": schema}, "example": example},
        "order.sent": {"description": "The parcel is on its way."},
        "order.old": {"archived": True},
        "invoice.due": {},
    }
    for name, given in types.items():
        await board.service.event_types.change(name, given, "test", creates=True)
    page = await board.signed_in(await board.key("manage", "acme"))
    await page.goto(f"{board.base}/ui/tenants/acme/endpoints/new")
    await page.get_by_label("URL").fill(receiver.url("/hook"))
    await page.get_by_text("Choose from 3 in the catalogue").click()
    await page.get_by_label("Search the catalogue").fill("PARCEL")
    assert await page.locator("#types li:visible").all_inner_texts() == [
        await page.locator("#types li").filter(has_text="order.sent").inner_text()
    ]
    await page.keyboard.press("Enter")
    await page.get_by_label("order.sent The parcel").check()
    field = page.get_by_label("Event types", exact=True)
    assert await field.input_value() == "order.sent", "a type that is chosen replaces all"
    await page.get_by_label("Search the catalogue").fill("nothing like it")
    await until(page, ".picker .empty", "No event type")
    await page.get_by_label("Search the catalogue").fill("")
    await page.get_by_label("order.paid A customer").check()
    await field.fill(f"{await field.input_value()} invoice.* own.type")
    await page.get_by_label("order.sent The parcel").uncheck()
    assert await field.input_value() == "order.paid invoice.* own.type"
    assert await page.evaluate(CHECK) == []
    await shoot(page, "portal-event-types")
    await page.get_by_label("Channels").fill("eu us")
    await page.get_by_role("button", name="Add the endpoint").click()
    await page.get_by_role("link", name="To the endpoint").click()
    await until(page, "dl.facts", r"order\.paid, invoice\.\*, own\.type[\s\S]*eu, us")
    await page.get_by_role("button", name="Send an example").click()
    await waiting.until(lambda: bool(receiver.requests))
    assert json.loads(receiver.requests[0].body) == example

    await page.goto(f"{board.base}/ui/event-types")
    assert "order.old" not in await page.locator("main").inner_text()
    assert await page.evaluate(CHECK) == []
    await page.get_by_role("link", name="order.paid").click()
    await until(page, "#example", '"amount": 120')
    await until(page, "#schema-1", '"required"')
    assert await page.evaluate(CHECK) == []
    await shoot(page, "portal-event-type")
    phone = await board.signed_in(await board.key("admin"), phone=True, dark=True)
    for path in ("/ui/event-types", "/ui/event-types/order.paid", "/ui/tenants/acme/endpoints/new"):
        await phone.goto(f"{board.base}{path}")
        if path.endswith("new"):
            await phone.get_by_text("Choose from 3 in the catalogue").click()
        assert await phone.evaluate(CHECK) == []
        await shoot(phone, f"phone{path.replace('/', '-')}")
    await phone.goto(f"{board.base}/ui/event-types")
    await until(phone, "main", r"order\.old\s+archived")


async def test_a_template_is_tried_before_it_is_saved(board: Board, receiver: HttpReceiver) -> None:
    example = {"order": {"number": 17}, "amount": 120}
    await board.service.event_types.change("order.paid", {"example": example}, "test", creates=True)
    page = await board.signed_in(await board.key("manage", "acme"))
    await page.goto(f"{board.base}/ui/tenants/acme/endpoints/new")
    await page.get_by_label("URL").fill(receiver.url("/chat"))
    await page.get_by_label("Event types", exact=True).fill("order.paid")
    field, try_it = page.get_by_label("Template of the payload"), page.get_by_role("button", name="Preview the payload")
    for text, wrong in (("[1]", "is not a JSON object"), ('{"a.$": "$.nobody"}', r"has nothing at '\$\.nobody'")):
        await field.fill(text)
        await try_it.click()
        await until(page, ".wrong", wrong)
        assert await field.input_value() == text
    await field.fill('{"text": "An order was paid", "number.$": "$.order.number"}')
    await try_it.click()
    await until(page, "#preview", '"number": 17')
    assert await page.evaluate(CHECK) == []
    await shoot(page, "portal-template")
    assert not (await board.service.endpoints.page("acme", 10)).rows, "a preview saves nothing"
    await page.get_by_role("button", name="Add the endpoint").click()
    await page.get_by_role("link", name="To the endpoint").click()
    await until(page, "dl.facts", "by a template")
    await page.get_by_role("button", name="Send an example").click()
    await waiting.until(lambda: bool(receiver.requests))
    assert json.loads(receiver.requests[0].body) == {"text": "An order was paid", "number": 17}
    [endpoint] = (await board.service.endpoints.page("acme", 10)).rows
    await page.goto(f"{board.base}/ui/tenants/acme/endpoints/{endpoint.id}/edit")
    await page.get_by_label("Template of the payload").fill('{"all.$": "$"}')
    await page.get_by_role("button", name="Save").click()
    await until(page, ".done", "is changed")
    assert (await board.service.endpoints.get("acme", endpoint.id)).template == {"all.$": "$"}
    board.complaints[:] = [text for text in board.complaints if "422" not in text]


async def test_a_new_secret_is_shown_once_and_the_old_one_signs_for_the_hours_asked(
    board: Board, receiver: HttpReceiver
) -> None:
    page = await board.signed_in(await board.key("manage", "acme"))
    old = await added(board, page, receiver.url("/"))
    await page.get_by_role("link", name="To the endpoint").click()
    await page.get_by_role("link", name="New secret\u2026").click()
    await page.get_by_label("Hours with both signatures").fill("100000")
    await page.get_by_role("button", name="Go on").click()
    await until(page, ".wrong", "from 0 to 720, not '100000'")
    await page.get_by_label("Hours with both signatures").fill("2")
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Make a new secret").click()
    new = await page.locator("#secret").inner_text()
    assert new != old
    await page.get_by_role("link", name="To the endpoint").click()
    assert new not in await page.content()
    await until(page, ".facts", "Old secret ends")
    await page.get_by_role("button", name="Send an example").click()
    [request] = await receiver.got(1)
    for secret in (old, new):
        Webhook(secret).verify(request.body, request.headers)


async def test_an_endpoint_is_deleted_after_a_confirmation_and_enabled_again(
    board: Board, receiver: HttpReceiver
) -> None:
    page = await board.signed_in(await board.key("manage", "acme"))
    await added(board, page, receiver.url("/"))
    await page.get_by_role("link", name="To the endpoint").click()
    [endpoint] = (await board.service.endpoints.page("acme", 10)).rows
    await board.service.endpoints.set_disabled("acme", endpoint.id, "410 Gone", "test")
    await page.reload()
    await until(page, "main", "Disabled: 410 Gone")
    await page.get_by_role("link", name="Enable\u2026").click()
    await page.get_by_role("button", name="Enable").click()
    await until(page, ".done", "Enabled")
    await page.get_by_role("link", name="Delete\u2026").click()
    await until(page, "form", "Deliveries that wait are cancelled")
    assert (await board.service.endpoints.page("acme", 10)).rows, "nothing happens before the confirmation"
    await page.get_by_role("button", name="Delete").click()
    await until(page, ".done", "is deleted")
    assert not (await board.service.endpoints.page("acme", 10)).rows


WRONG = {
    "URL": ("ftp://example.com/in", "http"),
    "Event types": ("order.* bad!type", "event_types"),
    "Headers": ("X-A: 1\nno colon", "Line 2 of the headers is not like: Name: value"),
    "Rate, a second": ("0", "qps"),
    "Seconds for an answer": ("100000", "timeout_s"),
}


@pytest.mark.parametrize("label", WRONG)
async def test_a_wrong_field_is_named_and_what_was_typed_stays(
    board: Board, receiver: HttpReceiver, label: str
) -> None:
    page = await board.signed_in(await board.key("manage", "acme"))
    await page.goto(f"{board.base}/ui/tenants/acme/endpoints/new")
    await page.get_by_label("URL").fill(receiver.url("/"))
    await page.get_by_label("Name for people").fill("Orders")
    await page.get_by_label(label).fill(WRONG[label][0])
    await page.get_by_role("button", name="Add the endpoint").click()
    await until(page, ".wrong", WRONG[label][1])
    assert await page.get_by_label("Name for people").input_value() == "Orders"
    assert await page.get_by_label(label).input_value() == WRONG[label][0]
    assert not (await board.service.endpoints.page("acme", 10)).rows
    board.complaints[:] = [text for text in board.complaints if "422" not in text]


async def test_a_form_that_is_older_than_another_change_changes_nothing(board: Board, receiver: HttpReceiver) -> None:
    page = await board.signed_in(await board.key("manage", "acme"))
    await added(board, page, receiver.url("/"))
    await page.get_by_role("link", name="To the endpoint").click()
    await page.get_by_role("link", name="Change\u2026").click()
    [endpoint] = (await board.service.endpoints.page("acme", 10)).rows
    await board.service.endpoints.change("acme", endpoint.id, {"description": "Invoices"}, "test")
    await page.get_by_label("Name for people").fill("Bills")
    await page.get_by_role("button", name="Save").click()
    await until(page, ".wrong", "was changed meanwhile")
    [endpoint] = (await board.service.endpoints.page("acme", 10)).rows
    assert endpoint.settings.description == "Invoices"
    board.complaints[:] = [text for text in board.complaints if "422" not in text]


@pytest.mark.parametrize(("role", "tenant"), [("read", "acme"), ("manage", "globex")])
async def test_others_change_nothing(board: Board, receiver: HttpReceiver, role: str, tenant: str) -> None:
    made = await board.signed_in(await board.key("manage", "acme"))
    await added(board, made, receiver.url("/"))
    [endpoint] = (await board.service.endpoints.page("acme", 10)).rows
    page = await board.signed_in(await board.key(role, tenant))
    here = f"{board.base}/ui/tenants/acme/endpoints"
    reads = role == "read"
    found = await page.goto(f"{here}/{endpoint.id}")
    assert found is not None
    assert found.status == (200 if reads else 404)
    if reads:
        assert await page.locator("main .actions").count() == 0
    csrf = await page.locator("input[name=csrf]").first.get_attribute("value")
    for path in ("new", *(f"{endpoint.id}/{name}" for name in ("edit", "secret", "delete", "enable", "example"))):
        for method in ("GET", "POST"):
            if (method, path.rpartition("/")[2]) == ("GET", "example"):
                continue
            form: Any = {"csrf": csrf, "url": receiver.url("/other"), "hours": "0", "timeout_s": "5"}
            answer = await page.request.fetch(f"{here}/{path}", method=method, form=form if method == "POST" else None)
            assert answer.status == (403 if reads else 404), (method, path)
    assert (await board.service.endpoints.page("acme", 10)).rows == [endpoint]
    board.complaints[:] = [text for text in board.complaints if "404" not in text]


FINDS = {
    "message": ("msg_nobody", "No delivery"),
    "key": ("customer-0", "No delivery"),
    "status": ("7", "A status is a number from 100 to 599, not '7'"),
    "state": ("asleep", "'asleep' is not a state"),
    "since": ("yesterday", "'yesterday' is not a time"),
    "endpoint": ("ep_nobody", "No delivery"),
}


@pytest.mark.parametrize("name", FINDS)
async def test_a_search_that_finds_nothing_or_makes_no_sense_says_so(board: Board, name: str) -> None:
    page = await board.signed_in(await board.key("read", "acme"))
    await page.goto(f"{board.base}/ui/tenants/acme/find?{name}={FINDS[name][0]}")
    await until(page, "main", FINDS[name][1])
    board.complaints[:] = [text for text in board.complaints if "does not conform" not in text]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("phone", [False, True], ids=["wide", "phone"])
async def test_each_page_is_accessible(board: Board, receiver: HttpReceiver, dark: bool, phone: bool) -> None:
    page = await board.signed_in(await board.key("manage", "acme"), dark=dark, phone=phone)
    await added(board, page, receiver.url("/"))
    assert await page.evaluate(CHECK) == []
    [endpoint] = (await board.service.endpoints.page("acme", 10)).rows
    steps = [f"endpoints/{endpoint.id}/{name}" for name in ("edit", "secret", "delete", "enable")]
    for path in ("endpoints/new", f"endpoints/{endpoint.id}", *steps, "find?status=500"):
        await page.goto(f"{board.base}/ui/tenants/acme/{path}")
        assert await page.evaluate(CHECK) == [], path
        kind = f"{'dark' if dark else 'light'}-{'phone' if phone else 'wide'}"
        await shoot(page, f"portal-{re.split('[_?]', path.rpartition('/')[2])[0]}-{kind}")
