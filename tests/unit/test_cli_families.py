"""`emq topic` below a family."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from emq import App
from emq.runtime import errors
from support.emq_shell import Shell, opened


def test_a_topic_created_without_settings_has_all_those_of_its_family(emq: Shell) -> None:
    emq("family create orders.* --qps 7 --priorities high,low --set max_attempts=3")
    emq("topic create orders.a")
    [topic] = emq.json("topic list")
    assert (topic["qps"], topic["priorities"], topic["options"]["max_attempts"]) == (7, ["high", "low"], 3)
    assert (topic["family"], topic["own"]) == ("orders.*", [])


@pytest.mark.parametrize(
    "line",
    [
        *("family create q.* --qps 5 --set " + pair for pair in ("foo=1", "foo", "qps=1", "max_attempts=x")),
        *("family create q.* --qps 5 --set " + pair for pair in ("max_topics=x", "idle_s=1", "fold_lua=@nowhere")),
        *("family create q.* --qps 5 --set " + pair for pair in ("delay_levels=a", "attributes=a", "budget=nowhere")),
        "family create q.* --qps 0",
        "family create q.* --qps 5 --url nonsense",
        "family create q.* --qps 5 --set push.batch=1",
        *("family set r.* " + pair for pair in ("foo=1", "priorities=a", "max_attempts=0", "merge=key", "name=a")),
        *("family set r.* " + pair for pair in ("push.batch=1", "budget=q", "max_topics=-1")),
    ],
)
def test_an_error_of_emq_family_is_about_the_family(emq: Shell, line: str) -> None:
    emq("family create r.* --qps 7")
    text = emq.refused(line)
    assert re.match(r"emq: family '[qr]\.\*'", text), text


@pytest.mark.parametrize(
    "table",
    [
        "qps = 0",
        'qps = "x"',
        "",
        "qps = 5\nfoo = 1",
        "qps = 5\nidle_s = 1",
        'qps = 5\npriorities = ["a", "a"]',
        'qps = 5\n[families."q.*".options]\nfoo = 1',
        'qps = 5\n[families."q.*".options]\nmax_attempts = 0',
        'qps = 5\n[families."q.*".options]\nbudget = "none"',
        'qps = 5\n[families."q.*".options.attributes]\n"push.url" = "nonsense"',
        'qps = 5\n[families."q.*".options.attributes]\n"push.url" = "http://example.com/"\n"push.secret" = "***"',
    ],
)
def test_an_error_in_a_file_of_families_is_about_the_family(emq: Shell, table: str) -> None:
    Path("families.toml").write_text(f'[families."q.*"]\n{table}\n')
    text = emq.refused("topic import families.toml")
    assert text.startswith("emq: family 'q.*'"), text
    assert "'qps', 'group_qps'" not in text


def test_emq_topic_set_takes_a_pattern_and_no_family(emq: Shell) -> None:
    emq("family create r.* --qps 7")
    assert emq.refused("topic set r.* foo=1 --yes").startswith("emq: topic 'r.*' has no option 'foo'")
    assert emq.refused("topic set r.* priorities=a --yes").startswith("emq: topic 'r.*': priorities may not change")


def test_idle_s_is_an_option_of_families_and_topics_and_a_list_tells_which_topics_sleep(emq: Shell) -> None:
    emq("family create orders.* --qps 7")
    emq("family create mail.* --qps 7 --set idle_s=none")
    idle = {one["name"]: one["options"]["idle_s"] for one in emq.json("family list")}
    assert idle == {"orders.*": 300, "mail.*": None}
    emq("topic create orders.a --qps 9")
    emq("topic create plain --qps 9 --set idle_s=60")

    async def sleep(app: App) -> set[str]:
        versions = await app.catalog.families.versions(["orders.a", "plain"])
        return await app.catalog.families.sleep(versions, lambda *_: None)

    assert opened(sleep) == {"orders.a", "plain"}
    assert [line.split()[-2:] for line in emq("topic list").splitlines()[2:]] == [
        ["asleep", "orders.*"],
        ["asleep", "-"],
    ]
    emq("topic pause plain")
    assert "paused, asleep" in emq("topic show plain")
    emq("topic export -o topics.toml")
    emq("topic import topics.toml")
    assert "paused, asleep" in emq("topic list")
    assert "0 of at most 100,000 awake" in emq("family show orders.*")


def test_a_change_of_a_topic_that_its_family_has_not_made_yet_names_the_remedy(emq: Shell) -> None:
    emq("family create orders.* --qps 7")
    told = emq.refused("topic set orders.acme qps=500")
    assert "a publish makes it in family 'orders.*'; to give it other settings: emq topic create orders.acme" in told
    emq("topic create orders.acme --qps 500")
    assert emq.json("topic list")[0]["own"] == ["qps"]


@pytest.mark.parametrize("name", ["a b", "", "a" * 300, "orders.*", "a?", "[a", "a/b", "a{b", "sandbox:a"])
def test_names_are_checked_alike_in_library_and_command_line(emq: Shell, name: str) -> None:
    emq("topic create there --qps 1")
    with pytest.raises(errors.InvalidTopic) as caught:
        opened(lambda app: app.create_topic(name, qps=1))
    assert emq.refused("topic create --qps 1 --", name, code=2) == f"emq: {caught.value}\n"
    assert [topic["name"] for topic in emq.json("topic list")] == ["there"]
