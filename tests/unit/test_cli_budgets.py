"""Budgets on the command line: topics that share the qps of another topic."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from emq import App
from emq.database import host_stats
from emq.host import statistics
from emq_cli import exit_codes
from support.emq_shell import Shell, opened


def test_a_budget_is_named_shown_and_kept_while_topics_name_it(emq: Shell) -> None:
    emq("topic create tenant --qps 100")
    emq("topic create orders --qps 100 --set budget=tenant --set share=3")
    shown = emq.json("topic show orders")
    assert (shown["options"]["budget"], shown["options"]["share"], shown["held_by"]) == ("tenant", 3, "")
    assert "budget" in emq("topic show orders")
    assert emq.json("topic set orders share=0.5")["options"]["share"] == 0.5
    assert "budget may not change from 'tenant'" in emq.refused("topic set orders budget=none")
    said = emq.refused("topic create x --qps 1 --set budget=tenat", code=exit_codes.FAILED)
    assert "no topic 'tenat' to be its budget" in said
    said = emq.refused("topic delete tenant --yes --force", code=exit_codes.FAILED)
    assert "is the budget of 1 topic ('orders'); delete that one first" in said
    emq("publish tenant x")  # it is open
    emq("topic delete orders --yes")
    emq("topic delete tenant --yes --force")


def test_a_file_may_name_topics_before_their_budgets(emq: Shell) -> None:
    emq("topic create tenant --qps 100")
    emq("topic create orders --qps 10 --set budget=tenant")
    text = emq("topic export")
    assert text.index("orders") < text.index('name = "tenant"')
    for name in ("orders", "tenant"):
        emq(f"topic delete {name} --yes")
    Path("topics.toml").write_text(text)
    emq("topic import topics.toml")
    assert emq("topic export") == text


def test_commands_say_which_budget_holds_a_topic(emq: Shell) -> None:
    emq("topic create tenant --qps 1")
    emq("topic create orders --qps 100 --set budget=tenant")

    async def save(made: App) -> None:
        busy = statistics.TopicStatistics("orders", 100, "active", 2, 1.0, 0, {"mid": 7}, 0, held_by="tenant")
        host = statistics.HostStatistics("h1", 0, store_unreachable="")
        host = msgspec.structs.replace(host, store_unreachable=None, busiest=(busy,))
        text = msgspec.json.encode(host).decode()
        await host_stats.save(made.database, "online", "h1", text, int(time.time() * 1000))

    opened(save)
    assert "held by its budget tenant" in " ".join(emq("stats").split())
    assert emq.json("stats")["topics"][0]["held_by"] == "tenant"
    rows = {row["topic"]: row for row in emq.json("top --count 1")["topics"]}
    assert (rows["orders"]["held_by"], rows["tenant"]["held_by"]) == ("tenant", "")
    assert "held by tenant" in " ".join(emq("top --count 1").split())
    assert "by its budget tenant" in " ".join(emq("topic show orders").split())
    assert emq.json("topic show orders")["held_by"] == "tenant"
    assert "by its budget" not in emq("topic show tenant")
