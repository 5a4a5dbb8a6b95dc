"""`emq topic set|pause|resume|drain PATTERN`: asked for, done to each topic that matches, and told for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from emq import App
from emq.observe.admin import Admin
from emq.runtime import errors
from emq.topics.model import Topic
from emq_cli import exit_codes, many_topics
from support.emq_shell import Shell, shell


@pytest.fixture
def emq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    made = shell(tmp_path, monkeypatch)
    topics = [f'[[topics]]\nname = "{name}"\nqps = 5.0\n' for name in ("mail", "shop-1", "shop-2", "shop-3")]
    Path("topics.toml").write_text("\n".join(topics))
    made("topic import topics.toml")
    return made


def values(emq: Shell, field: str) -> dict[str, Any]:
    return {topic["name"]: topic[field] for topic in emq.json("topic list")}


@pytest.mark.parametrize(
    ("command", "state"), [("pause", "paused"), ("drain", "draining"), ("resume", "active"), ("set", "")]
)
def test_nothing_happens_before_the_user_agrees(command: str, state: str, emq: Shell) -> None:
    before = emq("topic list --json")
    settings = " qps=9" if command == "set" else ""
    said = emq.refused(f"topic {command} shop-*{settings}", code=exit_codes.WRONG)
    assert "3 topics that match 'shop-*' (shop-1, shop-2, shop-3)?" in said
    assert emq("topic list --json") == before


def test_a_state_is_set_for_each_topic_that_matches(emq: Shell) -> None:
    assert emq("topic pause shop-* --yes") == "paused 3 topics that match 'shop-*'\n"
    assert values(emq, "state") == {"mail": "active", "shop-1": "paused", "shop-2": "paused", "shop-3": "paused"}
    assert emq("topic resume shop-1* -y") == "resumed 1 topic that matches 'shop-1*'\n"
    assert emq.json("topic drain shop-[23] -y") == {"topics": 2, "changed": 2, "failed": {}, "left": 0}
    assert values(emq, "state") == {"mail": "active", "shop-1": "active", "shop-2": "draining", "shop-3": "draining"}


def test_settings_are_set_for_each_topic_that_matches_and_attributes_stay(emq: Shell) -> None:
    emq("topic set shop-2 attributes.team=two")
    assert emq("topic set shop-* qps=9 attributes.shop=yes --yes").startswith("changed qps, shop of 3 topics")
    assert values(emq, "qps") == {"mail": 5, "shop-1": 9, "shop-2": 9, "shop-3": 9}
    assert emq.json("topic show shop-2")["options"]["attributes"] == {"team": "two", "shop": "yes"}
    assert emq.json("topic show shop-1")["options"]["attributes"] == {"shop": "yes"}


def test_a_plain_name_is_not_asked_about(emq: Shell) -> None:
    assert emq("topic pause mail") == "topic 'mail' is paused: it takes messages and starts none\n"
    assert "no topic 'shop'" in emq.refused("topic pause shop --yes", code=exit_codes.FAILED)


def test_a_pattern_that_no_topic_matches_is_told_with_store_and_database(emq: Shell) -> None:
    said = emq.refused("topic pause nothing-* --yes", code=exit_codes.FAILED)
    assert "no topic matches 'nothing-*' in the store and database sqlite:" in said


@pytest.mark.services
def test_the_failure_of_one_topic_hides_no_other(emq: Shell) -> None:
    emq("topic set shop-* push.url=https://shop.example -y")
    emq("topic create shop-0 --qps 5")
    assert emq("topic set shop-* push.timeout_s=3 -y", code=exit_codes.FAILED).startswith("changed push.timeout_s of 3")
    first, last = emq.error.splitlines()
    assert first == "topic 'shop-0': push.url is missing; give an http or https URL"
    assert last == "emq: 1 topic of 4 failed"
    told = emq.json("topic set shop-* push.timeout_s=4 --yes", code=exit_codes.FAILED)
    assert (told["changed"], [*told["failed"]]) == (3, ["shop-0"])


def test_what_suits_no_topic_is_a_wrong_value(emq: Shell) -> None:
    assert emq("topic set shop-* max_length=0 --yes", code=exit_codes.WRONG) == ""
    assert "no option 'qqs'" in emq.refused("topic set shop-* qqs=1 --yes", code=exit_codes.WRONG)


def test_no_more_than_some_failures_are_told_one_by_one(emq: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_topics, "TOLD", 1)
    emq("topic set shop-* max_length=0 --yes", code=exit_codes.WRONG)
    _, more, last = emq.error.splitlines()
    assert (more, last) == ("... and 2 more; --json tells all", "emq: 3 topics of 3 failed")


def test_a_server_out_of_reach_is_not_asked_for_each_topic(emq: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    update, asked = Admin.update, list[str]()

    async def fails(self: Admin, name: str, **changes: Any) -> Topic:
        asked.append(name)
        if name == "mail":
            return await update(self, name, **changes)
        raise errors.DatabaseUnavailable("the database does not answer; try again later")

    monkeypatch.setattr(Admin, "update", fails)
    monkeypatch.setattr(many_topics, "OUT_OF_REACH", 2)
    said = emq("topic set * max_attempts=3 -y", code=exit_codes.FAILED)
    assert said == "changed max_attempts of 1 topic that matches '*'\n"
    assert asked == ["mail", "shop-1", "shop-2"]
    assert emq.error.endswith(
        "2 topics of 4 failed; 1 topic stayed unchanged, since a server is out of reach; repeat the command later\n"
    )


async def test_the_names_of_many_topics_need_no_topics() -> None:
    async with App("memory:") as app:
        for name in ("a.one", "b.two", "a.three"):
            await app.create_topic(name, qps=1)
        assert await app.catalog.names("a.*") == ["a.one", "a.three"]
        assert await app.catalog.names() == ["a.one", "a.three", "b.two"]
