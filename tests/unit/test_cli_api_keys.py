"""`emq api key`: make, list and delete bearer keys."""

from __future__ import annotations

from emq import App
from emq_push.service.service import PushService
from support.emq_shell import Shell, opened


def test_keys_are_listed_without_what_they_open_and_deleted(emq: Shell) -> None:
    text = emq("api key create --name ops").strip()
    emq("push tenant acme --qps 5")
    emq("api key create --role read --tenant acme --name portal")
    listed = emq("api key list")
    assert "ops" in listed
    assert "never" in listed
    assert text not in listed
    keys = emq.json("api key list")
    shown = [(key["role"], key["tenant"], key["name"]) for key in keys]
    assert shown == [("admin", "", "ops"), ("read", "acme", "portal")]
    assert [key["name"] for key in emq.json("api key list --tenant acme")] == ["portal"]
    assert emq(f"api key delete {keys[0]['id']} --yes").strip() == f"deleted {keys[0]['id']}"
    assert [key["name"] for key in emq.json("api key list")] == ["portal"]
    assert "these are the first" not in emq("api key list --limit 1")


def test_a_deleted_key_takes_what_it_made_with_it_unless_that_is_kept(emq: Shell) -> None:
    async def make(app: App) -> None:
        service = await PushService.open(app)
        top, _ = await service.keys.create("admin", "test", name="top")
        for name in ("one", "two"):
            key, _ = await service.keys.create("admin", "test", name=name, maker=top)
            await service.keys.create("admin", "test", name=f"of {name}", maker=key)
        await service.keys.begin_session(top)

    opened(make)
    keys = {key["name"]: key for key in emq.json("api key list") if key["kind"] == "key"}
    assert keys["one"]["made_by"] == keys["top"]["id"]
    assert emq(f"api key delete {keys['one']['id']} --keep-made --yes").strip() == f"deleted {keys['one']['id']}"
    left = emq.json("api key list")
    assert {(key["name"], key["kind"]) for key in left} == {
        *(("top", "key"), ("two", "key"), ("of one", "key"), ("of two", "key"), ("top", "session"))
    }
    said = emq(f"api key delete {keys['top']['id']} --yes").strip()
    assert said == f"deleted {keys['top']['id']}, and 3 keys that it made"
    assert emq.json("api key list") == []


def test_a_wrong_role_and_a_missing_tenant_are_named_with_what_is_right(emq: Shell) -> None:
    said = emq.refused("api key create --role nobody", code=2)
    assert "'--role': 'nobody' is not one of 'admin'" in said
    assert "(--tenant on the command line)" in emq.refused("api key create --role read")
    assert "takes no tenant; leave it out" in emq.refused("api key create --role submit --tenant acme")
    assert emq.refused("push tenant acme --qps -5") == "emq: qps = -5.0 must be above 0 and at most 1,000,000\n"


def test_an_unknown_key_and_a_missing_yes_are_named(emq: Shell) -> None:
    emq("api key create")
    assert "there is no key 'key_none'" in emq.refused("api key delete key_none --yes")
    assert "Add --yes" in emq.refused("api key delete key_none", code=2)
