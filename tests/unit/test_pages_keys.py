"""The pages of keys and of the audit log: what they say, who sees them, and the end of a key."""

from __future__ import annotations

import html
import re

import pytest
from test_pages_families import text_of
from test_pages_gate import SAME_SITE, key_of, proof_in, signed_in

from emq_web.pages import key_pages
from support.push_api import Api


async def test_keys_are_shown_with_their_makers_their_use_and_their_end(api: Api) -> None:
    await api("PUT", "/v1/tenants/shop", {"qps": 1})
    made = await api("POST", "/v1/keys", {"role": "send", "tenant": "shop", "name": "<b>till</b>", "lifetime_s": 60})
    maker = (await api.listed("/v1/keys"))[0]["id"]
    http = await signed_in(api, api.admin)
    page = text_of((await http.get("/ui/keys")).text)
    assert re.search(rf"{made['id']} <b>till</b> send in shop {maker} \d+ s ago never 20", page)
    assert f"{maker} no name admin command line" in page
    assert "a session of this dashboard" in page
    await api("POST", "/v1/tenants/shop/messages", {"event_type": "a", "payload": 1}, key=made["key"])
    row = text_of((await http.get("/ui/keys?tenant=shop")).text).partition(made["id"])[2]
    assert "never" not in row
    assert "No key of “nobody”" in text_of((await http.get("/ui/keys?tenant=nobody")).text)
    assert api.admin not in (await http.get("/ui/keys")).text


async def test_a_key_is_deleted_in_two_steps_with_all_that_it_made(api: Api) -> None:
    maker = await api("POST", "/v1/keys", {"role": "admin", "name": "ops"})
    made = await api("POST", "/v1/keys", {"role": "admin"}, key=maker["key"])
    http = await signed_in(api, api.admin)
    path = f"/ui/keys/{maker['id']}/delete"
    asking = await http.get(path)
    assert "With it go 1 key or session that it made, and all that these made." in text_of(asking.text)
    assert "You are signed in" not in asking.text
    assert (await http.post(path, headers=SAME_SITE, data={"csrf": "x"})).status_code == 403
    assert len(await api.listed("/v1/keys")) == 4
    done = await http.post(path, headers=SAME_SITE, data={"csrf": proof_in(asking.text)})
    assert (done.status_code, done.headers["location"]) == (303, "/ui/keys?done=key_deleted")
    left = [each["id"] for each in await api.listed("/v1/keys")]
    assert not {maker["id"], made["id"]} & set(left)
    entry = (await api("GET", "/v1/audit-log"))["data"][0]
    assert (entry["action"], entry["changes"]["with"]) == ("key.deleted", [made["id"]])
    assert " signed in with " in entry["actor"]
    for missing in (maker["id"], "%00", "x"):
        assert (await http.get(f"/ui/keys/{missing}/delete")).status_code == 404
    mine = await http.get(f"/ui/keys/{left[0]}/delete")
    assert "You are signed in with it: you are signed out." in mine.text
    await http.post(f"/ui/keys/{left[0]}/delete", headers=SAME_SITE, data={"csrf": proof_in(mine.text)})
    assert (await http.get("/ui/keys")).headers["location"].startswith("/ui/sign-in")


@pytest.mark.parametrize("path", ["/ui/keys", "/ui/keys/x/delete", "/ui/audit-log"])
async def test_only_operators_see_these_pages(api: Api, path: str) -> None:
    http = await signed_in(api, await key_of(api, "manage"))
    assert (await http.get(path)).status_code == 403
    assert (await http.post("/ui/keys/x/delete", headers=SAME_SITE, data={})).status_code == 403
    assert "/ui/keys" not in (await http.get("/ui/tenants/shop")).text
    assert (await api.http.get(path)).headers["location"].startswith("/ui/sign-in")


async def test_changes_come_page_by_page_and_by_who_what_and_when(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_pages, "ROWS", 2)
    for number in range(3):
        await api("PUT", f"/v1/tenants/t{number}", {"qps": 1, "name": "<i>"})
    http = await signed_in(api, api.admin)
    seen, path = "", "/ui/audit-log?action=tenant."
    for _ in range(2):
        page = (await http.get(path)).text
        seen += text_of(page)
        more = re.search(r'href="(\?[^"]*cursor=[^"]+)"', page)
        path = f"/ui/audit-log{html.unescape(more[1])}" if more else ""
    assert path == ""
    assert [seen.count(f" t{number} ") for number in range(3)] == [1, 1, 1]
    assert '{"qps":1.0,"name":"<i>"' in seen.replace('"qps":1,', '"qps":1.0,')
    assert "session.began" not in seen
    assert "No change fits." in text_of((await http.get("/ui/audit-log?target=nobody")).text)
    assert "t1" in text_of((await http.get("/ui/audit-log?tenant=t1")).text)
    assert "No change fits." in (await http.get("/ui/audit-log?until=2020-01-01T00:00")).text
    wrong = await http.get("/ui/audit-log?since=soon")
    assert "'soon' is not a time" in html.unescape(wrong.text)
    assert "NUL" in (await http.get("/ui/audit-log?actor=%00")).text
    assert (await http.get("/ui/audit-log?cursor=nonsense")).status_code == 422
