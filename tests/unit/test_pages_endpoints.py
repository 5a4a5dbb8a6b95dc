"""The form of an endpoint with odd values: they are refused, and what nobody has typed stays as it is."""

from __future__ import annotations

import html
import re

import pytest
from test_pages_gate import SAME_SITE, key_of, proof_in, signed_in

from emq_push.records.poll_log import PollLog
from support import push_api
from support.push_api import Api

ENDPOINTS = "/v1/tenants/shop/endpoints"
URL = "https://93.184.216.34/hook"


async def test_an_edit_leaves_alone_what_nobody_has_typed(api: Api) -> None:
    http = await signed_in(api, await key_of(api, "manage"))
    exact = {"qps": 0.12345678, "timeout_s": 12.3456789, "description": " two  spaces "}
    made = await api("POST", ENDPOINTS, {"url": URL, **exact})
    path = f"/ui/tenants/shop/endpoints/{made['id']}/edit"
    page = (await http.get(path)).text
    typed = dict(re.findall(r'<input[^>]*name="(\w+)"[^>]*value="([^"]*)"', page))
    typed = {name: html.unescape(text).strip() for name, text in typed.items()}
    assert typed["qps"] == "0.12345678"
    done = await http.post(path, data=typed | {"event_types": "order.*"}, headers=SAME_SITE)
    assert done.status_code == 303
    after = await api("GET", f"{ENDPOINTS}/{made['id']}")
    assert after["event_types"] == ["order.*"]
    assert {name: after[name] for name in exact} == exact


@pytest.mark.parametrize(
    ("odd", "status"),
    [
        ({"version": "9" * 5_000}, 422),
        ({"version": "-1"}, 422),
        ({"csrf": "\u00e9"}, 403),
        ({f"field{number}": "" for number in range(200)}, 422),
        ({"qps": "nan"}, 422),
        ({"timeout_s": "inf"}, 422),
        ({"headers": "X-A: 1\n\0: 2"}, 422),
    ],
    ids=lambda odd: str(odd)[:20],
)
async def test_odd_values_are_refused_and_change_nothing(api: Api, odd: dict[str, str], status: int) -> None:
    http = await signed_in(api, await key_of(api, "manage"))
    made = await api("POST", ENDPOINTS, {"url": URL})
    path = f"/ui/tenants/shop/endpoints/{made['id']}/edit"
    page = (await http.get(path)).text
    version = re.search(r'name="version" value="(\d+)"', page)[1]  # type: ignore[index]
    typed = {"csrf": proof_in(page), "version": version, "url": URL, "timeout_s": "5", "description": "new"}
    assert (await http.post(path, data=typed | odd, headers=SAME_SITE)).status_code == status
    assert (await api("GET", f"{ENDPOINTS}/{made['id']}"))["description"] == ""


@pytest.mark.parametrize(
    "path",
    [
        "keys?tenant=%00",
        "tenants/%00",
        "tenants/shop/find?message=%00",
        "tenants/shop/find?endpoint=%00",
        "tenants/shop/endpoints/%00/edit",
        "tenants/shop/pause?endpoint=%00",
        "pools/%00",
        "event-types/%00",
        "event-types?find=%00",
    ],
)
async def test_a_nul_in_a_path_a_query_or_a_form_is_refused(fresh_postgres: str, path: str) -> None:
    async with push_api.opened("shop", database=fresh_postgres) as api:
        http = await signed_in(api, api.admin)
        assert (await http.get(f"/ui/{path}")).status_code == (422 if "?" in path else 404)
        typed = {"csrf": proof_in((await http.get("/ui/tenants/shop/endpoints/new")).text), "url": "\0", "to": "pause"}
        for posted in ("tenants/shop/endpoints/%00/delete", "tenants/shop/endpoints/new", "tenants/shop/pause"):
            answer = await http.post(f"/ui/{posted}", data=typed | {"endpoint": "\0"}, headers=SAME_SITE)
            assert answer.status_code == (404 if "%00" in posted else 422)
        for method, of in (("GET", ""), ("POST", "/messages"), ("POST", "/endpoints/x%00:rotate-secret")):
            await api(method, f"/v1/tenants/%00{of}", {} if method == "POST" else None, status=404)


async def test_a_strict_catalogue_refuses_other_types_in_the_form(api: Api) -> None:
    http = await signed_in(api, await key_of(api, "manage"))
    await api("PUT", "/v1/event-types/order.paid", {"description": "<b>Paid</b>"})
    await api("PATCH", "/v1/event-type-settings", {"check": "strict"})
    path = "/ui/tenants/shop/endpoints/new"
    page = (await http.get(path)).text
    assert "&lt;b&gt;Paid&lt;/b&gt;" in page
    typed = {"csrf": proof_in(page), "url": URL, "timeout_s": "5", "event_types": "order.paid own.type"}
    refused = await http.post(path, data=typed, headers=SAME_SITE)
    assert refused.status_code == 422
    assert "&#39;own.type&#39; is not in the catalogue" in refused.text
    made = await http.post(path, data=typed | {"event_types": "order.paid order.*"}, headers=SAME_SITE)
    assert made.status_code == 200
    [endpoint] = await api.listed(ENDPOINTS)
    assert endpoint["event_types"] == ["order.paid", "order.*"]


async def test_a_polling_endpoint_is_added_and_shows_what_waits_to_be_fetched(api: Api) -> None:
    http = await signed_in(api, await key_of(api, "manage"))
    page = (await http.get("/ui/tenants/shop/endpoints/new")).text
    typed = {"csrf": proof_in(page), "url": "poll:", "event_types": "*", "timeout_s": "10"}
    assert "poll: for messages that wait" in page
    assert (await http.post("/ui/tenants/shop/endpoints/new", data=typed, headers=SAME_SITE)).status_code == 200
    [made] = await api.listed(ENDPOINTS)
    log, service = PollLog(api.service.parts.environment), api.service
    await service.parts.write(lambda c: log.place(c, f"shop.{made['id']}", ["a", "b"], service.parts.now_us()))
    shown = (await http.get(f"/ui/tenants/shop/endpoints/{made['id']}")).text
    assert re.search(r"<dt>To fetch</dt><dd>2 .*the oldest came", shown)
    assert f"{ENDPOINTS}/{made['id']}/poll" in shown
    assert "<dd>poll:</dd>" in shown
    other = await api("POST", ENDPOINTS, {"url": URL})
    assert "To fetch" not in (await http.get(f"/ui/tenants/shop/endpoints/{other['id']}")).text


async def test_a_key_that_only_fetches_sees_no_page(api: Api) -> None:
    with pytest.raises(AssertionError, match="may only fetch"):
        await signed_in(api, await key_of(api, "poll"))
