"""How the command line looks and takes its arguments: narrow terminals, ids, topic options."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from emq.topics.model import Topic, TopicOptions
from emq_cli import exit_codes, output
from support.emq_shell import Shell

NAMES = ("a-tenant-with-a-longer-name-1", "short", "x" * 128)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 110])
@pytest.mark.parametrize("spare", [(), ("delayed", "claimed")])
def test_the_first_column_never_disappears(width: int, spare: tuple[str, ...]) -> None:
    columns = ("topic", "high", "mid", "low", "delayed", "claimed", "dead", "reason")
    rows = [(name, 1_000_000, 2, 3, 4, 5, 6, "connect timeout after ten seconds") for name in NAMES]
    file = io.StringIO()
    table = output.table("", columns, rows, right=columns[1:-1], spare=spare)
    Console(file=file, width=width, highlight=False).print(table)
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    shown = "".join("".join(lines).split())
    assert all(name[:12] in shown for name in NAMES)
    assert shown.count("1,000,000") == len(NAMES)


def test_a_table_that_fits_is_not_changed() -> None:
    file = io.StringIO()
    Console(file=file, width=60).print(output.table("", ("topic", "n"), [("a", 1), ("b", 20)], right=("n",)))
    assert file.getvalue().splitlines()[2:] == ["a        1", "b       20"]


def test_an_id_that_begins_with_a_hyphen_comes_after_two(emq: Shell) -> None:
    emq("topic create t --qps 1")
    for line in ("dead show t", "schedule show t", "schedule recall t", "trace --topic t"):
        assert "-own-id" in emq.refused(f"{line} -- -own-id", code=exit_codes.FAILED)


def test_topic_options_lists_every_field_with_its_meaning(emq: Shell) -> None:
    found = {option["name"]: option for option in emq.json("topic options")}
    settable = ("qps", "group_qps", "priorities", "kind", "slots")
    assert [*found] == [*settable, *TopicOptions.__struct_fields__]
    assert all(option["type"] and option["meaning"] for option in found.values())
    for name, option in found.items():
        unit = {"_s": "s", "ms": "ms"}.get(name[-2:])
        if unit is not None and name != "group_qps":
            assert option["unit"] == unit or name == "delay_levels", name
    defaults = TopicOptions()
    assert found["max_attempts"]["default"] == defaults.max_attempts
    assert found["backoff_s"]["default"] == [*defaults.backoff_s]
    assert found["group_qps"]["default"] == Topic("t", 1.0).group_qps
    shown = emq("topic options")
    assert all(name in shown for name in found)
    assert [o["name"] for o in emq.json("topic options max_*")] == [n for n in found if n.startswith("max_")]


@pytest.mark.parametrize("kind", ["log", "fixed_time"])
def test_topic_show_prints_every_option(kind: str, emq: Shell) -> None:
    emq(f"topic create t --qps 1 --kind {kind} --set max_payload=7 --set attributes.team=blue")
    lines = {line.split()[0]: line for line in emq("topic show t").splitlines() if line.strip()}
    assert {*TopicOptions.__struct_fields__} - {"attributes"} <= lines.keys()
    assert "blue" in lines["team"]
    assert lines["max_payload"].split()[1:] == ["7"]
    assert lines["jitter"].split()[1:] == ["0.1", "(default)"]


def test_an_unknown_option_lists_the_known_ones(emq: Shell) -> None:
    emq("topic create t --qps 1")
    for line in ("topic set t max_attemps=2", "topic create u --qps 1 --set max_attemps=2"):
        said = emq.refused(line, code=exit_codes.WRONG)
        assert "did you mean 'max_attempts'?" in said
        assert all(name in said for name in TopicOptions.__struct_fields__)
