"""The API: families."""

from __future__ import annotations

import asyncio
from typing import Any, get_type_hints

import pytest

from emq import App
from emq.runtime import errors
from emq.topics.families import BOUNDS, Bounds
from emq.topics.model import State
from emq.topics.option_types import FamilyArguments
from emq_web.family_desk import SETTINGS
from support import push_api
from support.push_api import Api

ORDERS = "/v1/families/orders.*"
BODY = {"name": "orders.*", "qps": 50, "priorities": ["high", "low"], "max_topics": 5000}
FORCED = "/v1/families/orders.*?force=true"


async def made(api: Api, *topics: str, **settings: Any) -> str:
    """Create the family, and topics of it by a publish to each; return its ETag."""
    await api("POST", "/v1/families", {**BODY, **settings}, status=201)
    for topic in topics:
        await api.app.publish(topic, b"")
    return str((await api.raw("GET", ORDERS)).headers["etag"])


async def entries(api: Api) -> list[tuple[str, Any]]:
    """Return what the audit log has of the family, the oldest first."""
    found = await api.listed("/v1/audit-log")
    return [(each["action"], each["changes"]) for each in reversed(found) if each["target"] == "orders.*"]


async def test_a_family_is_created_shown_changed_and_deleted(api: Api) -> None:
    response = await api.raw("POST", "/v1/families", BODY)
    answer = response.json()
    assert response.status_code == 201
    assert response.headers["etag"] == f'"{answer["version"]}"'
    assert (answer["name"], answer["state"], answer["topics"]) == ("orders.*", "active", 0)
    assert {**BODY, "max_attempts": 16, "idle_s": 300, "name_length": 64}.items() <= {
        "name": "orders.*", **answer["settings"],
    }.items()  # fmt: skip
    assert (await api("GET", ORDERS)) == answer
    await api.app.publish("orders.acme", b"")
    changed = await api("PATCH", ORDERS, {"qps": 80, "max_topics": 7})
    assert (changed["topics"], changed["settings"]["max_topics"]) == (1, 7)
    assert (await api.app.catalog.get("orders.acme")).qps == 80
    assert (await api("DELETE", ORDERS, status=409))["code"] == "family_in_use"
    await api("DELETE", FORCED, status=204)
    assert (await api("GET", ORDERS, status=404))["code"] == "unknown_family"
    with pytest.raises(errors.UnknownTopic):
        await api.app.catalog.get("orders.acme")


async def test_what_the_api_creates_is_the_family_that_code_declares(api: Api) -> None:
    await made(api)
    given: Any = {"qps": 50, "priorities": ["high", "low"]}
    app = App()
    app.family("orders.*", bounds=Bounds(max_topics=5000), **given)
    [declared] = app.declared
    assert await api.app.families.create(declared.family) == (await api.app.families.get("orders.*")).family


async def test_a_creation_may_be_repeated_but_not_with_other_settings(api: Api) -> None:
    await made(api)
    assert (await api("POST", "/v1/families", BODY, status=201))["topics"] == 0
    problem = await api("POST", "/v1/families", {**BODY, "qps": 51}, status=409)
    assert problem["code"] == "family_exists"
    assert "PATCH" in problem["detail"]
    assert [action for action, _ in await entries(api)] == ["family.created"]


async def test_families_are_listed_by_name_and_page(api: Api) -> None:
    names = ["b*", "a.*", "b.c*", "B*", "z*"]
    for name in names:
        await api("POST", "/v1/families", {"name": name, "qps": 1})
    assert [each["name"] for each in await api.listed("/v1/families", limit=2)] == sorted(names)
    for query in ("cursor=xx", "limit=0", "state=paused"):
        await api("GET", f"/v1/families?{query}", status=422)


@pytest.mark.parametrize(
    ("action", "state", "entry"),
    [
        ("pause", State.PAUSED, "family.paused"),
        ("drain", State.DRAINING, "family.drained"),
        ("resume", State.ACTIVE, "family.resumed"),
    ],
)
async def test_an_action_changes_the_family_with_its_topics_once(
    api: Api, action: str, state: State, entry: str
) -> None:
    await made(api, "orders.a", "orders.b")
    await api.app.families.set("orders.*", {"state": State.PAUSED if action != "pause" else State.ACTIVE})
    for _ in range(2):
        answer = await api("POST", f"{ORDERS}:{action}", status=200)
        assert (answer["state"], answer["topics"]) == (state.value, 2)
    assert {topic.state for topic in await api.app.catalog.list()} == {state}
    assert (await entries(api))[1:] == [(entry, {})]


async def test_null_gives_a_setting_its_default_again_and_none_means_never(api: Api) -> None:
    await made(api, max_attempts=3, idle_s="none", ttl_s=9, attributes={"a": "b"})
    assert (await api.app.families.get("orders.*")).family.topic.options.idle_s is None
    assert (await api("GET", ORDERS))["settings"]["idle_s"] == "none"
    nulls = dict.fromkeys(("max_attempts", "idle_s", "ttl_s", "attributes", "max_topics", "group_qps"))
    found = (await api("PATCH", ORDERS, nulls))["settings"]
    assert {name: found[name] for name in nulls} == {
        "max_attempts": 16, "idle_s": 300, "ttl_s": None, "attributes": {}, "max_topics": 100_000, "group_qps": 50,
    }  # fmt: skip
    assert (await api("PATCH", ORDERS, {"idle_s": "none"}))["settings"]["idle_s"] == "none"


async def test_a_patch_of_attributes_leaves_those_that_it_does_not_name(api: Api) -> None:
    await made(api, attributes={"a": "1", "b": "2"})
    found = (await api("PATCH", ORDERS, {"attributes": {"b": None, "c": "3"}}))["settings"]
    assert found["attributes"] == {"a": "1", "c": "3"}
    await api("PATCH", ORDERS, {"attributes": {"c": 3}}, status=422)


async def test_settings_as_they_are_shown_change_nothing(api: Api) -> None:
    tag = await made(api, idle_s="none")
    settings = (await api("GET", ORDERS))["settings"]
    fixed = ("priorities", "kind", "slots")
    same = {name: value for name, value in settings.items() if name not in fixed}
    answer = await api.raw("PATCH", ORDERS, same)
    assert (answer.status_code, answer.headers["etag"]) == (200, tag)
    assert [action for action, _ in await entries(api)] == ["family.created"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", ORDERS, {"qps": 1}),
        ("POST", f"{ORDERS}:pause", None),
        ("POST", f"{ORDERS}:resume", None),
        ("POST", f"{ORDERS}:drain", None),
        ("DELETE", ORDERS, None),
        ("DELETE", FORCED, None),
    ],
)
async def test_a_change_of_another_version_is_refused(api: Api, method: str, path: str, body: Any) -> None:
    tag = await made(api, "orders.acme")
    await api.app.families.set("orders.*", {"qps": 60})
    before = await api.app.families.get("orders.*")
    for match in (tag, '"0"', '"1"'):
        problem = await api(method, path, body, headers={"If-Match": match}, status=412)
        assert problem["code"] == "other_version"
    await api(method, path, body, headers={"If-Match": "x"}, status=422)
    assert await api.app.families.get("orders.*") == before
    assert await api.app.catalog.list()
    [(_, created)] = await entries(api)
    assert created["qps"] == 50
    now = (await api.raw("GET", ORDERS)).headers["etag"]
    response = await api.raw(method, path, body, headers={"If-Match": now})
    assert response.status_code < 300 or response.json()["code"] == "family_in_use"


async def test_of_changes_of_one_version_at_the_same_time_one_is_made(api: Api) -> None:
    tag = await made(api)
    asked = [api.raw("PATCH", ORDERS, {"qps": 60 + n}, headers={"If-Match": tag}) for n in range(5)]
    assert sorted(each.status_code for each in await asyncio.gather(*asked)) == [200, 412, 412, 412, 412]
    assert [action for action, _ in await entries(api)] == ["family.created", "family.changed"]


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"qps": 0}, "qps"),
    ({"qps": "10"}, "qps"),
    ({"qps": None}, "qps"),
    ({"colour": "red"}, "'colour'"),
    ({"state": "paused"}, "'state'"),
    ({"max_attempts": 0}, "max_attempts"),
    ({"max_attempts": 1.5}, "max_attempts"),
    ({"pacing": "quick"}, "window"),
    ({"durability": "maybe"}, "fsynced"),
    ({"backoff_s": "10"}, "backoff_s"),
    ({"idle_s": "never"}, "idle_s"),
    ({"idle_s": 1}, "idle_s"),
    ({"max_topics": -1}, "max_topics"),
    ({"name_length": 0}, "name_length"),
    ({"alphabet": ""}, "alphabet"),
    ({"alphabet": "z-a"}, "z-a"),
    ({"attributes": {"push.secret": "***"}}, "push.secret"),
    ({"attributes": {"push.url": "ftp://x"}}, "ftp"),
    ({"fold_lua": "return x", "fold": "lua", "merge": "key", "kind": "priority", "priorities": None}, "lua_folds"),
)


@pytest.mark.parametrize(("body", "word"), WRONG)
async def test_a_wrong_value_is_named_and_changes_nothing(api: Api, body: Any, word: str) -> None:
    problem = await api("POST", "/v1/families", {**BODY, **body}, status=422)
    assert problem["code"] == "invalid_request"
    assert word in problem["detail"]
    assert await api.listed("/v1/families") == []
    await made(api)
    problem = await api("PATCH", ORDERS, body, status=422)
    assert ("kind may not change" if "kind" in body else word) in problem["detail"]
    assert [action for action, _ in await entries(api)] == ["family.created"]


@pytest.mark.parametrize(
    "body",
    [{"name": "other.*"}, {"priorities": ["one"]}, {"priorities": None}, {"kind": "priority"}, {"slots": 4},
     {"merge": "key"}, {"budget": "total"}],
)  # fmt: skip
async def test_a_setting_that_never_changes_is_refused(api: Api, body: dict[str, Any]) -> None:
    await made(api)
    [name] = body
    assert f"{name} may not change" in (await api("PATCH", ORDERS, body, status=422))["detail"]


@pytest.mark.parametrize("name", ["orders", "*", "or*ders.*", "orders.?*", "a b*", "{x}*", "x" * 128 + "*", "ü" * 70])
async def test_a_name_that_is_no_prefix_is_refused(api: Api, name: str) -> None:
    await api("POST", "/v1/families", {"name": name, "qps": 1}, status=422)
    for method, path in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", ":pause")):
        where = f"/v1/families/{name.replace('?', '%3F')}{path}"
        await api(method, where, {} if method == "PATCH" else None, status=422)


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ([BODY], 422, "the family"),
        ({"qps": 1}, 422, "'name'"),
        ({"name": "a*"}, 422, "'qps'"),
        ({"name": 5, "qps": 1}, 422, "name"),
        ({**BODY, "budget": "nothing"}, 422, "nothing"),
    ],
)
async def test_a_body_that_is_no_family_is_refused(api: Api, body: Any, status: int, text: str) -> None:
    assert text in (await api("POST", "/v1/families", body, status=status))["detail"]
    if isinstance(body, list):
        await made(api)
        await api("PATCH", ORDERS, body, status=422)


async def test_a_family_that_is_not_there_is_not_found(api: Api) -> None:
    for method, path, body in (
        ("GET", ORDERS, None),
        ("PATCH", ORDERS, {"qps": 1}),
        ("PATCH", ORDERS, {"attributes": {}}),
        ("DELETE", ORDERS, None),
        ("DELETE", FORCED, None),
        ("POST", f"{ORDERS}:pause", None),
    ):
        problem = await api(method, path, body, status=404)
        assert (problem["code"], "'orders.*'" in problem["detail"]) == ("unknown_family", True)
    assert await entries(api) == []


@pytest.mark.parametrize("role", ["read", "send", "manage", "submit", ""])
async def test_only_operators_reach_families(api: Api, role: str) -> None:
    await made(api)
    await api("PUT", "/v1/tenants/acme", {"qps": 1})
    key = await api.key_of(role, "" if role == "submit" else "acme") if role else ""
    for method, path, body in (
        ("GET", "/v1/families", None),
        ("POST", "/v1/families", BODY),
        ("GET", ORDERS, None),
        ("PATCH", ORDERS, {"qps": 1}),
        ("DELETE", ORDERS, None),
        ("POST", f"{ORDERS}:pause", None),
        ("POST", f"{ORDERS}:resume", None),
        ("POST", f"{ORDERS}:drain", None),
    ):
        await api(method, path, body, key=key, status=403 if role else 401)
    assert len(await entries(api)) == 1


async def test_the_audit_log_has_what_a_change_changed_and_no_secret() -> None:
    async with push_api.opened(secret_key="k" * 43 + "=") as api:
        secret = {"push.url": "https://hooks.example/in", "push.headers.X-Key": "hidden"}
        await made(api, "orders.acme", attributes=secret)
        shown = (await api("GET", ORDERS))["settings"]["attributes"]
        assert shown == {**secret, "push.headers.X-Key": "***"}
        await api("PATCH", ORDERS, {"attributes": {**shown, "a": "b"}})
        stored = (await api.app.families.get("orders.*")).family.topic.options.attributes
        assert stored["push.headers.X-Key"] not in ("hidden", "***")
        assert (await api.app.catalog.get("orders.acme")).options.attributes == stored
        await api("DELETE", FORCED, status=204)
        assert await entries(api) == [
            ("family.created", {"qps": 50, "priorities": ["high", "low"], "attributes": shown, "max_topics": 5000}),
            ("family.changed", {"attributes": {**shown, "a": "b"}}),
            ("family.changed", {"max_topics": 0}),
            ("family.deleted", {}),
        ]


async def test_a_family_whose_topic_is_a_budget_stays(api: Api) -> None:
    await made(api, "orders.total")
    await api.app.create_topic("shop", 1, budget="orders.total")
    assert (await api("DELETE", FORCED, status=409))["code"] == "family_in_use"
    assert (await api("GET", ORDERS))["settings"]["max_topics"] == 5000


def test_code_and_api_take_the_same_settings() -> None:
    assert {"name", *get_type_hints(FamilyArguments), *BOUNDS} == set(SETTINGS.__struct_fields__)
