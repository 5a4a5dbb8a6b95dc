"""Who may see which page, and that no other site can make a visitor's browser change anything."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from emq_push.service import keys
from emq_web.limits import Limits
from support import push_api
from support.push_api import Api

SAME_SITE = {"origin": push_api.URL, "sec-fetch-site": "same-origin"}


async def signed_in(api: Api, key: str) -> httpx.AsyncClient:
    """A browser that somebody signed in with."""
    http = httpx.AsyncClient(transport=api.http._transport, base_url=push_api.URL)
    answer = await http.post("/ui/sign-in", data={"key": key, "next": "/ui/hosts"}, headers=SAME_SITE)
    assert answer.status_code == 303, answer.text
    assert answer.headers["location"] == "/ui/hosts"
    return http


async def key_of(api: Api, role: str, tenant: str = "shop") -> str:
    if tenant:
        await api("PUT", f"/v1/tenants/{tenant}", {"qps": 10})
    _, key = await api.service.keys.create(role, "test", tenant=tenant)  # type: ignore[arg-type]
    return key


def proof_in(page: str) -> str:
    return re.search(r'name="csrf" value="(\w+)"', page)[1]  # type: ignore[index]


async def test_a_page_needs_a_session_and_leads_to_the_page_to_sign_in(api: Api) -> None:
    for path in ("/ui/", "/ui/hosts"):
        answer = await api.http.get(path)
        assert answer.status_code == 303
        assert answer.headers["location"] == f"/ui/sign-in?next={path}"
    part = await api.http.get("/ui/", headers={"hx-request": "true"})
    assert part.headers["hx-redirect"].startswith("/ui/sign-in"), "htmx leaves the page, too"
    assert (await api.http.get("/")).headers["location"] == "/ui/"


async def test_the_api_key_itself_is_no_session_and_the_cookie_is_hidden_from_scripts(api: Api) -> None:
    answer = await api.http.get("/ui/hosts", headers={"cookie": f"emq_session={api.admin}"})
    assert answer.status_code == 303
    signing = await api.http.post("/ui/sign-in", data={"key": api.admin}, headers=SAME_SITE)
    cookie = signing.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Max-Age=28800" in cookie
    assert api.admin not in cookie
    api.http.cookies.clear()
    over_https = {**SAME_SITE, "x-forwarded-proto": "https"}
    signing = await api.http.post("/ui/sign-in", data={"key": api.admin}, headers=over_https)
    assert "Secure" in signing.headers["set-cookie"]


async def test_a_session_ends_with_its_key_and_when_its_visitor_signs_out(api: Api) -> None:
    key, text = await api.service.keys.create("admin", "test")
    first, second = await signed_in(api, text), await signed_in(api, text)
    page = await first.get("/ui/hosts")
    assert page.status_code == 200
    out = await first.post("/ui/sign-out", data={"csrf": proof_in(page.text)}, headers=SAME_SITE)
    assert out.status_code == 303
    stolen = {"cookie": f"emq_session={dict(second.cookies).get('emq_session')}"}
    assert (await api.http.get("/ui/hosts", headers=stolen)).status_code == 200
    await api.service.keys.delete(key.id, "test")
    assert (await api.http.get("/ui/hosts", headers=stolen)).status_code == 303


async def test_a_session_lives_no_longer_than_its_key(api: Api) -> None:
    _, text = await api.service.keys.create("admin", "test", lifetime_s=600)
    http = await signed_in(api, text)
    session = await api.service.keys.session(http.cookies["emq_session"])
    assert session is not None
    assert session.expires_us <= api.service.parts.now_us() + 600_000_000


async def test_a_session_is_no_key_of_the_api(api: Api) -> None:
    http = await signed_in(api, await key_of(api, "manage"))
    cookie = http.cookies["emq_session"]
    await api("GET", "/v1/tenants/shop", key=cookie, status=401)
    await api("POST", "/v1/tenants/shop/messages", {"event_type": "a", "payload": 1}, key=cookie, status=401)
    await api("POST", "/v1/tenants/shop/tokens", {}, key=cookie, status=401)
    again = await api.http.post("/ui/sign-in", data={"key": cookie}, headers=SAME_SITE)
    assert again.status_code == 401, "and makes no other session"
    assert (await http.get("/ui/tenants/shop")).status_code == 200


async def test_the_name_of_a_key_makes_no_session(api: Api) -> None:
    admin = (await api("GET", "/v1/keys"))["data"][0]["id"]
    made = await api("POST", "/v1/keys", {"role": "admin", "name": f"signed in with {admin}"})
    answer = await api.http.get("/ui/hosts", headers={"cookie": f"emq_session={made['key']}"})
    assert answer.status_code == 303


async def test_a_key_has_few_sessions_and_one_more_ends_the_oldest(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MOST_SESSIONS", 2)
    first, second, third = [await signed_in(api, api.admin) for _ in range(3)]
    assert [(await http.get("/ui/hosts")).status_code for http in (first, second, third)] == [303, 200, 200]


async def test_a_link_with_a_key_does_not_take_the_place_of_a_session(api: Api) -> None:
    evil = await key_of(api, "manage", "evil")
    http = await signed_in(api, await key_of(api, "read"))
    before = http.cookies["emq_session"]
    page = await http.get("/ui/sign-in?next=/ui/tenants/shop")
    assert (page.status_code, page.headers["location"]) == (303, "/ui/tenants/shop"), "no form that a script sends"
    answer = await http.post("/ui/sign-in", data={"key": evil}, headers=SAME_SITE)
    assert answer.status_code == 409
    assert "Sign out first" in answer.text
    assert http.cookies["emq_session"] == before
    assert (await http.get("/ui/tenants/shop")).status_code == 200
    out = {"csrf": proof_in((await http.get("/ui/tenants/shop")).text)}
    await http.post("/ui/sign-out", data=out, headers=SAME_SITE)
    assert (await http.post("/ui/sign-in", data={"key": evil}, headers=SAME_SITE)).status_code == 303


async def test_pages_have_the_limits_of_the_api(api: Api) -> None:
    text = await key_of(api, "read")
    http = await signed_in(api, text)
    cookie = {"cookie": f"emq_session={http.cookies['emq_session']}"}
    async with push_api.another(api, Limits(requests_per_s=4)) as other:
        pages = [await other.http.get("/ui/tenants/shop", headers=cookie) for _ in range(8)]
        assert pages[0].status_code == 200
        assert pages[-1].status_code == 429
        await other("GET", "/v1/tenants/shop", key=text, status=429)
        await other("GET", "/v1/tenants/shop", status=200)


async def test_signing_in_is_limited_before_the_key_is_looked_up() -> None:
    async with push_api.opened() as api, push_api.another(api, Limits(sign_ins_at_once=3)) as other:
        tries = [await other.http.post("/ui/sign-in", data={"key": "emqk_x"}, headers=SAME_SITE) for _ in range(5)]
        assert [answer.status_code for answer in tries] == [401] * 3 + [429] * 2
        answer = await other.http.post("/ui/sign-in", data={"key": api.admin}, headers=SAME_SITE)
        assert answer.status_code == 429


async def test_strangers_are_counted_by_their_address() -> None:
    async with push_api.opened() as api, push_api.another(api, Limits(strangers_per_s=3)) as other:
        statuses = [(await other.http.get("/ui/sign-in")).status_code for _ in range(12)]
        assert 3 <= statuses.count(200) <= 6
        assert statuses[-1] == 429
        await other("GET", "/v1/tenants", status=200)


@pytest.mark.parametrize("role", ["read", "manage"])
async def test_a_tenant_sees_its_own_pages_only(api: Api, role: str) -> None:
    await api("PUT", "/v1/tenants/other", {"qps": 10})
    http = await signed_in(api, await key_of(api, role))
    assert (await http.get("/ui/")).headers["location"] == "/ui/tenants/shop"
    assert (await http.get("/ui/hosts")).status_code == 403
    assert (await http.get("/ui/tenants/other")).status_code == 404


async def test_a_key_that_only_publishes_and_a_wrong_key_do_not_sign_in(api: Api) -> None:
    for key, status, text in (
        (await key_of(api, "send"), 403, "may only publish"),
        ("emqk_wrong", 401, "unknown"),
        ("", 401, "unknown"),
    ):
        answer = await api.http.post("/ui/sign-in", data={"key": key}, headers=SAME_SITE)
        assert answer.status_code == status
        assert text in answer.text
        assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    ("headers", "proof"),
    [
        ({"origin": "https://evil.example"}, True),
        ({"sec-fetch-site": "cross-site"}, True),
        ({"origin": "null"}, True),
        (SAME_SITE, False),
    ],
    ids=["origin", "site", "hidden-origin", "no-proof"],
)
async def test_a_form_of_another_site_changes_nothing(api: Api, headers: dict[str, str], proof: bool) -> None:
    http = await signed_in(api, api.admin)
    page = await http.get("/ui/hosts")
    answer = await http.post("/ui/sign-out", data={"csrf": proof_in(page.text) if proof else "0"}, headers=headers)
    assert answer.status_code == 403
    assert (await http.get("/ui/hosts")).status_code == 200, "still signed in"


@pytest.mark.parametrize("after", ["//evil.example", "https://evil.example/ui/", "/ui/\\evil", "/v1/keys", ""])
async def test_signing_in_leads_to_no_other_site(api: Api, after: str) -> None:
    answer = await api.http.post("/ui/sign-in", data={"key": api.admin, "next": after}, headers=SAME_SITE)
    assert answer.headers["location"] == "/ui/"


async def test_pages_load_nothing_from_elsewhere_and_have_no_script_or_style_in_their_text(api: Api) -> None:
    http = await signed_in(api, api.admin)
    for path in ("/ui/", "/ui/hosts", "/ui/sign-in", "/ui/nothing-here"):
        page = await http.get(path)
        policy = page.headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert not re.search(r"<script(?![^>]* src=)|<style| style=| on\w+=|hx-on|https?://", page.text), path
        for asset in re.findall(r'(?:src|href)="(/ui/static/[^"]+)"', page.text):
            found = await http.get(asset)
            assert found.status_code == 200
            assert "immutable" in found.headers["cache-control"]
    assert (await http.get("/ui/static/..%2Frouter.py")).status_code == 404


async def test_pages_are_no_part_of_the_documented_api(api: Api) -> None:
    document: Any = await api("GET", "/v1/openapi.json")
    assert not [path for path in document["paths"] if path.startswith("/ui")]


async def test_a_reader_is_refused_every_change_whatever_its_browser_sends(api: Api) -> None:
    http = await signed_in(api, await key_of(api, "read"))
    proof = proof_in((await http.get("/ui/tenants/shop")).text)
    for path, form in (
        ("rate", {"qps": "1"}),
        ("pause", {"to": "pause"}),
        ("rate", {"endpoint": "ep_1", "qps": "1"}),
        ("deliveries/ep_1:m1/resend", {}),
        ("replay", {"states": "dead", "rate": "1"}),
        ("replays/rpl_1/cancel", {}),
    ):
        answer = await http.post(f"/ui/tenants/shop/{path}", data={"csrf": proof, **form}, headers=SAME_SITE)
        assert answer.status_code == 403, path
    assert (await api.app.catalog.get("shop")).qps == 10
    page = (await http.get("/ui/tenants/shop")).text
    assert "<button" in page
    assert re.findall(r'<a class="button" href="[^"]*/(?:rate|replay|pause)', page) == []


async def test_a_manager_changes_its_own_endpoints_and_never_its_own_cap_or_another_tenant(api: Api) -> None:
    await api("PUT", "/v1/tenants/other", {"qps": 10})
    http = await signed_in(api, await key_of(api, "manage"))
    page = (await http.get("/ui/tenants/shop")).text
    assert "/ui/tenants/shop/replay" in page
    assert 'href="/ui/tenants/shop/rate"' not in page
    for tenant, status in (("shop", 403), ("other", 404), ("nobody", 404)):
        form = {"csrf": proof_in(page), "qps": "99"}
        answer = await http.post(f"/ui/tenants/{tenant}/rate", data=form, headers=SAME_SITE)
        assert answer.status_code == status
    assert (await http.get("/ui/tenants/shop/deliveries/ep_1:m1")).status_code == 404
    assert (await api.app.catalog.get("shop")).qps == 10


async def test_what_tenants_and_endpoints_say_of_themselves_is_text_and_never_markup(api: Api) -> None:
    await api("PUT", "/v1/tenants/shop", {"qps": 10, "name": "<img src=x onerror=alert(1)>"})
    http = await signed_in(api, api.admin)
    for path in ("tenants/shop", "tenants", "tenants?find=<script>", "tenants/shop/rate?qps=<b>", "tenants/<b>"):
        page = (await http.get(f"/ui/{path}")).text
        assert not re.search(r"<img|<script>|<b>", page), path
