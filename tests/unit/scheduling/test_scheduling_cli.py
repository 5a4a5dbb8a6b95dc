"""`emq scheduling`: pools as operators see and change them, and tasks."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
import pytest

from emq.database import Database
from emq_cli import exit_codes
from emq_scheduling.records.cancels import Cancels
from emq_scheduling.records.ends import End, EndLog
from emq_scheduling.records.progress import Key, Progress, Told
from emq_scheduling.records.snapshot import (
    CostView,
    KeyLimitView,
    LimitView,
    PoolState,
    ResourceView,
    Snapshot,
    TypeView,
    Waits,
)
from emq_scheduling.records.snapshots import Snapshots
from emq_scheduling.scheduling import Scheduling
from emq_scheduling.submission import Receipt
from support.emq_shell import Shell, shell

POOL = """
name = "sms"

[types.code]
priority = 0
longest_wait_s = 5

[types.notice]

[resources.acme]
limits = [{name = "requests", amount = 50, per = "second"}]

[resources.acme-1]
parent = "acme"
limits = [{name = "requests", amount = 10, per = "second"}, {name = "slots", amount = 4, per = "in_flight"}]
takes = ["code", "notice"]
"""


@pytest.fixture
def emq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    made = shell(tmp_path, monkeypatch)
    (tmp_path / "sms.toml").write_text(POOL)
    made("scheduling import sms.toml")
    return made


def in_database(*writes: Snapshot | End) -> None:
    async def write() -> None:
        database = await Database.open("sqlite:///emq.db")
        log = EndLog(lambda: database, "online", lambda: "host-1")
        for each in writes:
            if isinstance(each, Snapshot):
                await Snapshots(database, "online").save(each)
            else:
                log.add(each)
        await log.flush()
        await database.close()

    asyncio.run(write())


def test_a_pool_is_listed_exported_and_imported_again(emq: Shell, tmp_path: Path) -> None:
    [line] = emq.json("scheduling pools")
    shown = {"pool": "sms", "version": 1, "resources": 2, "types": 2}
    assert line == {**shown, "waiting": None, "running": None, "host": None}
    emq("scheduling export sms -o again.toml")
    assert emq("scheduling export sms") == (tmp_path / "again.toml").read_text()
    assert emq.json("scheduling import again.toml")["version"] == 2
    (tmp_path / "again.json").write_text(emq("scheduling export sms --format json"))
    emq("scheduling import again.json")
    assert emq("scheduling export sms") == (tmp_path / "again.toml").read_text()


def test_a_wrong_file_changes_nothing(emq: Shell, tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text(POOL.replace('parent = "acme"', 'parent = "acne"'))
    said = emq.refused("scheduling import wrong.toml", code=exit_codes.WRONG)
    assert "pool 'sms': resource 'acme-1': parent 'acne' is not known; did you mean 'acme'" in said
    assert "nowhere" in emq.refused("scheduling import nowhere.toml")
    assert emq.json("scheduling pools")[0]["version"] == 1


def test_a_change_is_live_and_warns_of_what_it_leaves_without_a_resource(emq: Shell) -> None:
    for i in range(3):
        emq(f"scheduling submit sms notice payload-{i}")
    text = emq("scheduling set sms resource acme-1 takes=code limits.slots=8")
    assert text == "pool 'sms': changed takes, limits.slots of resource 'acme-1'; version 2\n"
    assert emq.error == "warning: no resource takes type 'notice'; 3 tasks of it wait, and nothing is lost\n"
    pool = emq.json("scheduling show sms")["pool"]
    assert pool["resources"]["acme-1"]["limits"][1] == {"name": "slots", "amount": 8, "per": "in_flight"}


def test_a_task_that_no_resource_can_do_is_refused_with_the_reason(emq: Shell) -> None:
    emq("scheduling set sms resource acme-1 takes=code")
    assert "no resource takes it" in emq.refused("scheduling submit sms notice x", code=exit_codes.FAILED)
    said = emq.refused("scheduling submit sms code x --cost requests=11", code=exit_codes.FAILED)
    assert "costs requests=11 are above 10" in said
    assert "has no task type 'other'" in emq.refused("scheduling submit sms other x", code=exit_codes.FAILED)


def test_a_task_that_starts_in_over_a_day_is_told_so(emq: Shell) -> None:
    in_database(snapshot(time.time()))
    assert emq("scheduling submit sms notice x").endswith(", starts in over a day, as things are\n")


def test_tasks_of_a_key_may_keep_to_one_resource(emq: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str | None, bool]] = []

    async def submit(*_: object, key: str | None, keep: bool, **__: object) -> Receipt:
        given.append((key, keep))
        return Receipt("1")

    monkeypatch.setattr(Scheduling, "submit", submit)
    emq("scheduling submit sms notice x --key chat-7 --keep")
    emq("scheduling submit sms notice x --key chat-7")
    assert given == [("chat-7", True), ("chat-7", False)]


def test_a_task_with_fallbacks_is_submitted_and_its_status_tells_where_it_ran_and_how_far_it_came(emq: Shell) -> None:
    emq("scheduling submit sms code hi --id mine --try @acme-1 --try notice --patience 5s")
    said = emq.refused("scheduling submit sms code hi --try notice", code=exit_codes.WRONG)
    assert "tries begins with 'notice', but the task is of type 'code'" in said
    assert "--patience" in emq.refused("scheduling submit sms code hi --patience soon", code=exit_codes.WRONG)
    base = int(time.time() * 1e6)
    in_database(msgspec.structs.replace(attempt("mine", base), as_type="notice", outcome="running", ended_us=0))
    key = Key("mine", *_of(attempt("mine", base)))
    told = {key: Told(b'{"page":12}', base, base)}

    async def tell() -> None:
        database = await Database.open("sqlite:///emq.db")
        await Progress(database, "online").save("sms", told, [])
        await database.close()

    asyncio.run(tell())
    text = " ".join(emq("scheduling status sms mine").split())
    assert 'progress: {"page":12}, told ' in text
    assert f"{attempt('mine', base).resource} as notice" in text
    found = emq.json("scheduling status sms mine")
    assert (found["progress"], found["attempts"][0]["as_type"]) == ({"page": 12}, "notice")


def _of(end: End) -> tuple[str, str, int]:
    return end.type, end.tenant, end.submitted_us


def test_a_waiting_task_is_found_and_cancelled(emq: Shell) -> None:
    task = emq.json("scheduling submit sms code payload --id mine --tenant shop")["id"]
    assert task == "mine"
    assert emq("scheduling status sms mine") == "task mine: waiting\nit waits in topic 'sms.code.shop'\n"
    emq("scheduling submit sms code payload --id other --try code --try code@acme-1 --patience 5s")
    text = emq("scheduling status sms other")
    assert "fallbacks: code, code@acme-1; it has come to code, 1 of 2" in text
    assert emq.json("scheduling status sms other")["waits"]["tries"] == ["code", "code@acme-1"]
    emq("scheduling cancel sms mine")
    assert "task mine: waiting; somebody asked to cancel it" in emq("scheduling status sms mine")

    async def asked() -> list[str]:
        database = await Database.open("sqlite:///emq.db")
        found = await Cancels(database, "online").latest("sms", 9)
        await database.close()
        return list(found)

    assert asyncio.run(asked()) == ["mine"]


def attempt(task: str, started_us: int, outcome: str = "done", **fields: object) -> End:
    given: dict[str, object] = {"version": 1, "costs": {"requests": 1.0}, "ended_us": started_us + 250_000, **fields}
    return End("sms", task, "code", "", "", started_us - 1_500_000, started_us, "acme-1", outcome=outcome, **given)  # type: ignore[arg-type]


def test_the_attempts_of_a_task_are_shown(emq: Shell) -> None:
    in_database(
        attempt("t1", 1_700_000_000_000_000, "failed", error="HTTP 500"),
        attempt("t1", 1_700_000_009_000_000, attempt=2, result=b"sent", actual={"requests": 2}),
    )
    text = emq("scheduling status sms t1")
    for part in ("task t1: done", "HTTP 500", "1.5 s", "250 ms", "result: sent", "requests 2"):
        assert part in text
    found = emq.json("scheduling status sms t1")
    assert [each["outcome"] for each in found["attempts"]] == ["failed", "done"]
    assert found["attempts"][1]["result"] == "sent"


def test_the_proof_passes_or_names_the_limit_that_was_exceeded(emq: Shell) -> None:
    assert "there is nothing to prove" in emq("scheduling verify sms")
    base = 1_700_000_000_000_000
    in_database(*(attempt(f"t{i}", base + i * 1000, ended_us=base + i * 1000 + 500) for i in range(10)))
    text = emq("scheduling verify sms")
    assert "limits exceeded in 0 seconds; tasks ended twice: 0" in text
    in_database(attempt("t10", base + 999_999), attempt("t0", base + 5_000_000))
    found = emq.json("scheduling verify sms --duplicates 1", code=exit_codes.FAILED)
    over = {f"{each['limit']} of {each['resource']}": each["over_s"] for each in found["limits"]}
    assert over == {"requests of acme": 0, "requests of acme-1": 1, "slots of acme-1": 0}
    assert found["twice"] == ["t0"]


def test_the_kind_of_a_limit_is_set_shown_and_proved(emq: Shell) -> None:
    emq("scheduling set sms resource acme-1", "limits.requests/minute=600 bucket of 50")
    assert "requests 600 a minute (bucket of 50)" in emq("scheduling show sms")
    base = 1_700_000_000_000_000
    in_database(*(attempt(f"t{i}", base + i * 1_000_000, version=2) for i in range(9)))
    assert "requests/minute (bucket)" in emq("scheduling verify sms")
    [proof] = [each for each in emq.json("scheduling verify sms")["limits"] if each["per"] == "minute"]
    assert (proof["kind"], proof["amount"], proof["starts"]) == ("bucket", 50, 9)


def test_limits_by_key_are_set_shown_used_and_proved(emq: Shell) -> None:
    text = emq("scheduling export sms") + '\n[limits.each]\nby = ["tenant", "model"]\namount = 3\nper = "minute"\n'
    Path("sms.toml").write_text(text)
    emq("scheduling import sms.toml")
    emq("scheduling set sms limit each", "amounts.acme,large=5")
    shown = " ".join(emq("scheduling show sms").split())
    assert "each tenant, model each 3 a minute 1" in shown
    assert "lacks; submit it with keys such as model" in emq.refused("scheduling submit sms code hi")
    emq("scheduling submit sms code hi --tenant acme --by model=large")
    assert "is not NAME=VALUE" in emq.refused("scheduling submit sms code hi --by model")
    base = 1_700_000_000_000_000
    in_database(*(attempt(f"t{i}", base + i * 1_000_000, version=3, keys={"model": "m"}) for i in range(4)))
    text = emq("scheduling verify sms", code=exit_codes.FAILED)
    assert "each by tenant, model: ,m" in text
    [proof] = [each for each in emq.json("scheduling verify sms", code=exit_codes.FAILED)["limits"] if each["key"]]
    assert (proof["peak"], proof["amount"], proof["over_s"]) == (4, 3, 1)
    in_database(
        Snapshot(
            *("sms", 3, "host-1", PoolState(time.time())),
            limits={"each": KeyLimitView(2, 1, 9, {"acme,large": 9}, {"acme,large": 7.5})},
        )
    )
    assert "2 1 9 acme,large 9 (7.5 s)" in " ".join(emq("scheduling show sms").split())


def test_a_task_that_ended_twice_fails_the_proof_and_a_start_that_nobody_can_judge_leaves_it_open(emq: Shell) -> None:
    in_database(attempt("t0", 1_700_000_000_000_000), attempt("t0", 1_700_000_005_000_000))
    assert "tasks ended twice: 1\nsuch as t0" in emq("scheduling verify sms", code=exit_codes.FAILED)
    emq("scheduling verify sms --duplicates 1")
    in_database(attempt("t1", 1_700_000_000_000_000, version=7))
    assert "not proved: 1 start" in emq("scheduling verify sms --duplicates 1", code=exit_codes.VOID)


def snapshot(at: float) -> Snapshot:
    limits = (LimitView("requests", "second", 5, 10, 4.0), LimitView("slots", "in_flight", 4, 4, 1.0))
    code = TypeView(waiting=1234, running=1, predicted_wait_s=7.5, waits=Waits(300, 50, 1, 0.9, 4.25, 9, 2))
    return Snapshot(
        *("sms", 1, "host-1", PoolState(at, waiting={"code": 1234, "notice": 0})),
        since=at - 60,
        resources={"acme-1": ResourceView(limits, 1, 3.5, "requests/second of acme-1", factor=0.5, slowed="429")},
        types={"code": code, "notice": TypeView(predicted_wait_s=None)},
    )


def test_a_pool_is_shown_as_its_host_sees_it(emq: Shell) -> None:
    in_database(snapshot(time.time()))
    text = " ".join(emq("scheduling show sms").split())
    for part in (
        *("host-1, since", "code 0 1,234 1 7.5 s 5 s 900 ms 4.25 s 2 1", "notice 1 0 0 over a day - - - - 1"),
        *(
            "requests 4 of 5 (of 10) a second, slots 1 of 4 in flight",
            "requests/second of acme-1",
            "slowed to 50%: 429",
        ),
    ):
        assert part in text
    [line] = emq.json("scheduling pools")
    assert (line["waiting"], line["running"], line["host"]) == (1234, 1, "host-1")


def test_costs_that_differ_from_what_the_pool_says_are_shown(emq: Shell) -> None:
    assert "units that tasks cost" not in emq("scheduling show sms")
    view = TypeView(waiting=400, costs={"tokens": CostView(said=700, charged=900, used=812, waiting=324_800)})
    in_database(Snapshot("sms", 1, "host-1", PoolState(time.time()), types={"code": view}))
    assert "code tokens 700 900 812 324,800" in " ".join(emq("scheduling show sms").split())
    assert emq.json("scheduling show sms")["snapshot"]["types"]["code"]["costs"]["tokens"]["charged"] == 900


def test_a_type_is_told_whether_it_learns(emq: Shell) -> None:
    emq("scheduling set sms type code learns=both")
    assert emq.json("scheduling show sms")["pool"]["types"]["code"]["learns"] == "both"
    assert "learns='maybe' does not fit" in emq.refused("scheduling set sms type code learns=maybe")


def test_an_old_snapshot_does_not_pass_for_the_present(emq: Shell) -> None:
    in_database(snapshot(time.time() - 60))
    text = emq("scheduling show sms")
    assert "none now; host-1 did until" in text
    assert "1,234" not in text
    assert emq.json("scheduling show sms")["snapshot"] is None
    assert emq.json("scheduling pools")[0]["host"] is None


def test_a_pool_with_waiting_tasks_is_deleted_only_by_force(emq: Shell) -> None:
    for tenant in ("", "--tenant shop"):
        emq(f"scheduling submit sms code payload {tenant}")
    said = emq.refused("scheduling delete sms --yes", code=exit_codes.FAILED)
    assert "2 tasks of pool 'sms' wait or run (code 2); let them end, or delete the pool with force" in said
    emq("scheduling show sms")
    assert emq("scheduling delete sms --force --yes") == "deleted pool 'sms' and 2 tasks\n"
    assert emq.json("scheduling pools") == []
    assert emq.json("topic list") == []


def test_topics_of_other_pools_stay(emq: Shell, tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text(POOL.replace('"sms"', '"sms-2"'))
    emq("scheduling import other.toml")
    emq("scheduling submit sms-2 code payload")
    emq("topic create sms.news --qps 1")
    emq("scheduling delete sms --yes")
    left = {topic["name"] for topic in emq.json("topic list")}
    assert left >= {"sms-2..pool", "sms-2.code", "sms.news"}
    assert left.isdisjoint({"sms..pool", "sms.code", "sms.notice"})


def test_a_task_that_comes_during_a_deletion_keeps_the_pool(emq: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    emq("scheduling submit sms code payload")

    async def nothing(*_: object) -> dict[str, int]:
        return {}

    from emq_scheduling import administering

    with monkeypatch.context() as patch:
        patch.setattr(administering, "waiting", nothing)
        emq.refused("scheduling delete sms --yes", code=exit_codes.FAILED)
    assert emq.json("scheduling pools")[0]["version"] > 1
    emq("scheduling submit sms code payload")
    assert "2 tasks" in emq.refused("scheduling delete sms --yes", code=exit_codes.FAILED)


def test_what_if_forecasts_from_what_the_host_sees_and_changes_nothing(emq: Shell) -> None:
    state = PoolState(time.time(), {"code": 300, "notice": 600}, durations={"code": 0.01, "notice": 0.01})
    in_database(Snapshot("sms", 1, "host-1", state))
    changes = ("add acme-2=copy-of:acme-1", "limit acme requests=15/second")
    found = emq.json("scheduling what-if sms", *changes)
    assert found["before"]["drained_s"] == pytest.approx(90, rel=0.02)
    assert found["after"]["drained_s"] == pytest.approx(60, rel=0.02)
    assert found["after"]["starts"]["acme-2"] == pytest.approx(450, rel=0.02)
    text = emq("scheduling what-if sms", *changes)
    assert "after 90 s before the change, and 60 s after it" in text
    assert "acme-2" in text
    assert "acme-2" not in emq("scheduling export sms")


def test_what_if_says_what_comes_and_that_a_backlog_never_ends(emq: Shell) -> None:
    state = PoolState(time.time(), {"code": 1}, {"code": 999.0}, durations={"code": 0.01, "notice": 0.01})
    in_database(Snapshot("sms", 1, "host-1", state))
    changes = [f"limit {name}=5000/second" for name in ("acme requests", "acme-1 requests")]
    text = emq("scheduling what-if sms", *changes, "limit acme-1 slots=none/in_flight")
    assert "before the change tasks still wait in 7 d, after it all tasks have started in " in text
    assert "999" in text


def test_what_if_without_a_host_says_so(emq: Shell) -> None:
    assert "never" not in emq("scheduling what-if sms", "pause acme")
    assert "no host schedules pool 'sms' now" in emq.error
