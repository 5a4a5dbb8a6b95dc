"""What the pages of families say, who sees them, and what they change."""

from __future__ import annotations

import html
import re

from test_pages_first_screen import topic
from test_pages_gate import SAME_SITE, key_of, proof_in, signed_in

from emq.topics.model import State
from emq_web.pages import family_pages
from emq_web.pages.rendering import UNKNOWN
from support import push_hosts
from support.pools import POOL
from support.push_api import Api

ORDERS = {"name": "orders.*", "qps": 50, "priorities": ["high", "low"], "max_attempts": 5, "max_topics": 200}
AT = "/ui/families/orders.%2A"


def text_of(page: str) -> str:
    """Return what a page's main part says, without tags."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page.partition("<main")[2])).split())


async def test_the_list_and_the_page_of_a_family_tell_what_it_gives_and_which_topics_differ(api: Api) -> None:
    http = await signed_in(api, api.admin)
    assert "No family yet." in (await http.get("/ui/families")).text
    await api("POST", "/v1/families", ORDERS, status=201)
    empty = text_of((await http.get(AT)).text)
    assert "None is awake. The first publish to a name below orders. makes one." in empty
    for name in ("acme", "initech"):
        await api.app.publish(f"orders.{name}", b"x")
    await api.app.admin.update("orders.acme", qps=500.0, handler_timeout_s=9.0)
    await api.app.create_topic("orders", qps=1)
    assert "orders.* active 50/s 2 of 200 0" in text_of((await http.get("/ui/families")).text)
    page = text_of((await http.get(AT)).text)
    assert "Rate of each topic 50/s Topics awake 2 of at most 200" in page
    assert "priorities high, low max_attempts 5 max_topics 200 All other settings are the defaults." in page
    assert f"orders.acme active 500/s its own handler_timeout_s 9.0 {UNKNOWN}" in page
    assert f"orders.initech active 50/s {UNKNOWN} {UNKNOWN}" in page
    found = text_of((await http.get(f"{AT}?find=ini")).text)
    assert "orders.initech" in found
    assert "orders.acme" not in found
    assert "None begins with “orders.x”." in text_of((await http.get(f"{AT}?find=x")).text)
    assert "A topic of the family" in (await http.get("/ui/tenants/orders.acme")).text


async def test_a_family_that_cannot_be_read_keeps_no_other_from_the_list(api: Api) -> None:
    for name in ("mail.*", "orders.*", "sms.*"):
        await api("POST", "/v1/families", {"name": name, "qps": 1}, status=201)
    broken = "UPDATE emq_families SET body = '{' WHERE name = 'orders.*'"
    await api.app.database.run(lambda c: c.exec_driver_sql(broken))
    page = text_of((await (await signed_in(api, api.admin)).get("/ui/families")).text)
    assert "mail.* active 1/s" in page
    assert "orders.* family 'orders.*' cannot be read from the catalog" in page
    assert "sms.* active 1/s" in page


async def test_families_and_their_topics_come_page_by_page(api: Api) -> None:
    for i in range(family_pages.ROWS + 1):
        await api("POST", "/v1/families", {"name": f"f{i:02}.*", "qps": 1}, status=201)
        await api.app.publish(f"f00.t{i:02}", b"x")
    http = await signed_in(api, api.admin)
    for path, last, rest in (("/ui/families", "f49.*", "f50.*"), ("/ui/families/f00.%2A", "f00.t49", "f00.t50")):
        first = (await http.get(path)).text
        assert last in text_of(first)
        assert rest not in text_of(first)
        more = html.unescape(re.search(r'href="(\?[^"]*after=[^"]+)"', first)[1])  # type: ignore[index]
        second = text_of((await http.get(path + more)).text)
        assert rest in second
        assert last not in second


async def test_a_change_says_what_it_does_before_an_operator_makes_it_and_is_audited(api: Api) -> None:
    await api("POST", "/v1/families", ORDERS, status=201)
    await api.app.publish("orders.acme", b"x")
    http = await signed_in(api, api.admin)
    assert "at most 1,000,000, not '-3'" in html.unescape((await http.get(f"{AT}/rate?qps=-3")).text)
    sure = (await http.get(f"{AT}/rate?qps=70")).text
    assert "From 50 to 70 a second for each topic" in sure
    data = {"qps": "70", "csrf": proof_in(sure)}
    assert (await http.post(f"{AT}/rate", data={"qps": "70"}, headers=SAME_SITE)).status_code == 403
    done = await http.post(f"{AT}/rate", data=data, headers=SAME_SITE)
    assert "The rate is changed" in (await http.get(done.headers["location"])).text
    assert (await api.app.catalog.get("orders.acme")).qps == 70.0
    for to, state in (("pause", State.PAUSED), ("resume", State.ACTIVE)):
        sure = (await http.get(f"{AT}/pause")).text
        assert f'name="to" value="{to}"' in sure
        await http.post(f"{AT}/pause", data={"to": to, "csrf": proof_in(sure)}, headers=SAME_SITE)
        assert (await api.app.catalog.get("orders.acme")).state is state
    actions = [entry["action"] for entry in (await api("GET", "/v1/audit-log"))["data"]]
    assert actions[:3] == ["family.resumed", "family.paused", "family.changed"]


async def test_topics_in_trouble_are_counted_and_named_with_the_cause(api: Api) -> None:
    await api("POST", "/v1/families", ORDERS, status=201)
    for name in ("orders.acme", "orders.initech"):
        await api.app.publish(name, b"x")
    await push_hosts.save(api.app, troubled=(topic("orders.acme"), topic("other.acme", "dead")), in_trouble=2)
    http = await signed_in(api, api.admin)
    assert "orders.* active 50/s 2 of 200 1" in text_of((await http.get("/ui/families")).text)
    assert f"orders.acme active 50/s {UNKNOWN} gets more than its rate" in text_of((await http.get(AT)).text)


async def test_the_families_of_a_pool_belong_to_its_page(api: Api) -> None:
    await api("POST", "/v1/families", ORDERS, status=201)
    await api("PUT", "/v1/pools/sms", POOL, status=201)
    await api("POST", "/v1/pools/sms/tasks", {"type": "marketing", "payload": 1, "tenant": "acme"})
    http = await signed_in(api, api.admin)
    there = (await http.get("/ui/families")).text
    assert re.findall(r'href="/ui/families/([^"]+)"', there) == ["orders.%2A"]
    for name in ("sms.%2A", "sms.marketing.%2A"):
        page = (await http.get(f"/ui/families/{name}")).text
        assert ('href="/ui/pools/sms"' in page, "Pause…" in page) == (True, False), name
    assert "sms.marketing.acme" in page


async def test_pages_of_families_are_for_operators(api: Api) -> None:
    await api("POST", "/v1/families", ORDERS, status=201)
    manager = await signed_in(api, await key_of(api, "manage"))
    for path in ("/ui/families", AT, f"{AT}/rate", f"{AT}/pause"):
        assert (await manager.get(path)).status_code in (403, 404), path
    http = await signed_in(api, api.admin)
    assert (await http.get("/ui/families/nothing.%2A")).status_code == 404
    assert (await http.get("/ui/families/%3Cb%3E")).status_code in (404, 422)
