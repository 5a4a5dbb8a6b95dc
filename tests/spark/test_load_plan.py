"""Plans of loads: what is wrong is named by key and value, with what would be right; the examples are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from emq.runtime import errors

pytest.importorskip("numpy")
pytest.importorskip("pyarrow")

from emq_spark.load import plan_file

PLANS = sorted((Path(plan_file.__file__).parent / "plans").glob("*.toml"))

GOOD = """
duration_s = 60
[[tenants]]
name = "shop-{n}"
count = 3
qps = 20.0
"""


def test_there_are_examples() -> None:
    assert len(PLANS) >= 4


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_the_examples_are_right(path: Path) -> None:
    plan = plan_file.read(path)
    assert plan.name == path.stem
    assert plan.tenants or plan.replay


def test_a_plan_that_says_little_has_defaults() -> None:
    [tenants] = plan_file.parse(GOOD).tenants
    assert [tenants.topic_name(n) for n in (1, 3)] == ["shop-1", "shop-3"]
    assert tenants.topic.topic("shop-1", 8.0).qps == 10.0


def test_options_of_a_topic_may_count_on_the_priorities_of_its_table() -> None:
    more = "priorities = { a = 1, b = 2 }\ntopic = { options = { priority_policy = 'weighted', weights = [2, 1] } }"
    [tenants] = plan_file.parse(GOOD + more).tenants
    assert tenants.topic.topic("shop-1", 1.0, tuple(tenants.priorities)).priorities == ("a", "b")


WRONG = {
    "durations_s = 60": ["'durations_s'", "did you mean 'duration_s'?"],
    GOOD + "zip = 1": ["'tenants[0].zip'", "zipf"],
    GOOD + "zipf = 9.0": ["tenants[0].zipf = 9.0", "from 0 to 5"],
    GOOD.replace("20.0", "'fast'"): ["tenants[0].qps = 'fast'", "Expected `float`"],
    GOOD.replace("20.0", "-1"): ["tenants[0].qps = -1", "above 0"],
    GOOD.replace("60", "inf"): ["duration_s = inf", "above 0"],
    GOOD.replace("20.0", "1" + "0" * 400): ["tenants[0].qps = 1000", "above 0"],
    GOOD.replace("qps = 20.0", ""): ["'tenants[0].qps' is missing"],
    GOOD.replace("3", "0"): ["tenants[0].count = 0", "from 1 to 1,000,000"],
    GOOD + "zipf = nan": ["tenants[0].zipf = nan", "from 0 to 5"],
    GOOD + "delays = [{ share = 0.5, between_s = [0, 5] }]": ["delays[0].between_s[0] = 0", "above 0"],
    GOOD + "delays = [{ share = 0.5, between_s = [5, 4] }]": ["delays[0].between_s = (5.0, 4.0)", "[least, most]"],
    GOOD + "bursts = [{ from_s = 1, for_s = 5, factor = 2, share = 0 }]": [
        "bursts[0].share = 0",
        "above 0 and at most 1",
    ],
    GOOD.replace("duration_s = 60", ""): ["duration_s", "is missing"],
    GOOD.replace("-{n}", ""): ["tenants[0].name = 'shop'", "{n}"],
    GOOD + "payload_bytes = [9, 5]": ["payload_bytes = (9, 5)", "[least, most]"],
    GOOD + "payload_bytes = 2000000": ["payload_bytes = 2000000", "max_payload"],
    GOOD + "priorities = { high = -1 }": ["priorities = {'high': -1.0}", "shares"],
    GOOD + "priorities = { urgent = 1 }\ntopic = { priorities = ['a', 'b'] }": ["'urgent'", "a, b"],
    GOOD + "duplicates = 1.0": ["duplicates = 1.0", "below 1"],
    GOOD + "delays = [{ share = 0.5 }]": ["delays[0]", "between_s = [least, most], or every_s"],
    GOOD + "delays = [{ share = 0.7, every_s = 1 }, { share = 0.7, every_s = 2 }]": ["1.4", "at most 1"],
    GOOD + "bursts = [{ from_s = 1, for_s = 5, factor = 2, every_s = 3 }]": ["bursts[0].every_s = 3", "for_s (5)"],
    GOOD + "diurnal = { depth = 2 }": ["diurnal.depth = 2", "from 0 to 1"],
    GOOD + "numbers = [20, 30]": ["numbers = (20, 30)", "kind priority"],
    GOOD + "topic = { kind = 'priority' }": ["numbers = None", "above 16"],
    GOOD + "topic = { kind = 'fixed_time' }": ["fixed_time", "make it 1"],
    GOOD + "topic = { kind = 'range_merge' }": ["time_range_ms", "is missing"],
    GOOD + "topic = { kind = 'stack' }": ["tenants[0].topic.kind = 'stack'"],
    GOOD + "topic = { options = { pacing = 'slow' } }": ["tenants[0].topic.options.pacing = 'slow'"],
    GOOD + "topic = { options = { max_attempts = 0 } }": ["tenants[0].topic", "max_attempts 0"],
    GOOD + "[replay]\nfile = 'a'\nto = 'b'\ntime = 'c'": ["[[tenants]], or one [replay]"],
    "[replay]\nfile = 'demo:ships'\nto = 'b'\ntime = 'c'": ["'demo:ships'", "demo:flights"],
    "[replay]\nfile = 'a'\nto = 'b'\ntime = 'c'\nspeed = 0": ["replay.speed = 0", "above 0"],
    GOOD + "[[tenants]]\nname = 'shop-2'\nqps = 1.0": ["'shop-2'", "two tables"],
    GOOD + "[[tenants]]\nname = 'a-{n}'\nqps = 1.0\ncount = 999_999": ["count = 1000002", "1,000,000"],
    "seed = -1\n" + GOOD: ["seed = -1", "from 0"],
    f"seed = {1 << 63}\n" + GOOD: [f"seed = {1 << 63}", "from 0"],
    GOOD + "topic = { headroom = 0 }": ["topic.headroom = 0", "above 0"],
    GOOD + "topic = { options = { max_payload = 16 } }\npayload_bytes = 8": ["payload_bytes = 8", "the 17", "(16)"],
    GOOD + "topic = { kind = 'fixed_time', priorities = ['a'] }": ["topic.priorities = ('a',)", "leave it out"],
    GOOD + "priorities = { 'very high' = 1 }": ["'very high'", "1 to 32 plain bytes"],
    GOOD + "topic = { kind = 'range_merge', options = { time_range_ms = 9, merge = 'key', fold = 'sum' } }": [
        "payload = 'text'",
        "'number'",
    ],
    "a = ": ["not valid TOML"],
}


@pytest.mark.parametrize(("text", "said"), WRONG.items(), ids=range(len(WRONG)))
def test_what_is_wrong_is_named_with_what_would_be_right(text: str, said: list[str]) -> None:
    with pytest.raises(errors.InvalidSettings) as raised:
        plan_file.parse(text, "plan.toml")
    shown = str(raised.value)
    assert shown.startswith("plan.toml")
    assert "\n" not in shown
    assert [part for part in said if part not in shown] == [], shown


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidSettings, match=r"nowhere\.toml.*No such file"):
        plan_file.read(tmp_path / "nowhere.toml")
