"""Goes over every command: one kind of mistake has one exit code and one line, whatever the command."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from emq_cli import exit_codes
from emq_cli.commands import app
from support import every_command
from support.emq_shell import Shell, shell
from support.every_command import ARGUMENTS, SPARK, JavaStarted

COMMANDS = every_command.commands()
OWN = ("demo", "trial")
"""Commands with a place of their own: they take no --store."""

HOSTS = ("up", "run", "host", "api serve")
CLUSTER = ("upgrade", "plan", "hosts", "drain", "weight")
"""Commands that look into the cluster and the database, not into the store."""

LOCAL = ("settings", "size", "schedule levels", "topic options", "audit", "load", "trail verify")
"""Commands that open no store with the arguments of `ARGUMENTS`, or only after other checks."""

HOSTILE = ("", "\udcff")
MORE_HOSTILE = ("x" * 3_000, "9" * 40, "latin.txt")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as the commands expect it; each test has a copy."""
    directory = tmp_path_factory.mktemp("filled")
    with pytest.MonkeyPatch.context() as patch:
        every_command.fill(shell(directory, patch), directory)
    return directory


@pytest.fixture
def emq(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    every_command.start_nothing(monkeypatch)
    return shell(tmp_path, monkeypatch)


def test_no_command_is_forgotten_here() -> None:
    assert COMMANDS.keys() == ARGUMENTS.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, emq: Shell) -> None:
    for option in ("-h", "--help"):
        assert "Usage: emq" in emq(f"{name} {option}")


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_usage_of_every_command_is_one_line_and_2(name: str, emq: Shell) -> None:
    said = emq.refused(f"{name} {ARGUMENTS[name]} --no-such-option", code=exit_codes.WRONG)
    assert f"see: emq {name} --help" in said
    if not any(p.nargs == -1 for p in COMMANDS[name].params):
        emq.refused(f"{name} {ARGUMENTS[name]} one too many of them", code=exit_codes.WRONG)
    if any(p.required for p in COMMANDS[name].params):
        assert "missing" in emq.refused(name, code=exit_codes.WRONG)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in OWN])
def test_a_wrong_setting_of_every_command_is_one_line_and_2(name: str, emq: Shell, tmp_path: Path) -> None:
    line = f"{name} {ARGUMENTS[name]}"
    emq.refused(f"{line} --env production", code=exit_codes.WRONG)
    if name in (*HOSTS, *LOCAL):
        return
    for file in ("nowhere.toml", ".", "latin.txt"):
        assert file in emq.refused(f"{line} --settings {file}", code=exit_codes.WRONG)
    if name not in CLUSTER:
        assert "nonsense" in emq.refused(f"{line} --store nonsense:", code=exit_codes.WRONG)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in (*OWN, *HOSTS, *LOCAL, *CLUSTER)])
def test_a_store_out_of_reach_is_one_line_and_4(name: str, emq: Shell) -> None:
    pytest.importorskip("redis")
    where = "--store redis://127.0.0.1:1 --database sqlite:///emq.db"
    said = emq.refused(f"{name} {ARGUMENTS[name]} {where}", code=exit_codes.UNREACHABLE)
    assert "127.0.0.1:1" in said


@pytest.mark.parametrize(
    "line",
    [
        *(f"{command} none" for command in ("dead list", "dead replay", "lag", "offsets show", "schedule levels")),
        *(f"scheduling {command} none" for command in ("export", "show", "verify", "what-if")),
        *(f"topic {command} none" for command in ("drain", "list", "pause", "resume", "show")),
        *(f"{command} none --yes" for command in ("dead purge", "offsets reset", "scheduling delete", "topic delete")),
        *(f"{command} none id" for command in ("dead show", "schedule recall", "schedule show", "scheduling cancel")),
        *(f"{command} shop id" for command in ("dead show", "schedule recall", "schedule show")),
        *(f"scheduling status {pool} id" for pool in ("none", "sms")),
        *(f"trace id --topic {topic}" for topic in ("none", "shop")),
        "publish none x",
        "publish - ",
        "schedule list none",
        "scheduling set none resource acme weight=2",
        "scheduling submit absent code x",
        "scheduling submit sms none x",
        "topic set none qps=1",
    ],
)
def test_what_is_not_there_is_one_line_and_1(line: str, emq: Shell) -> None:
    emq.refused(line, code=exit_codes.FAILED, stdin='{"payload": 1, "topic": "none"}')


@pytest.mark.parametrize("hostile", [HOSTILE, pytest.param(MORE_HOSTILE, marks=pytest.mark.long)], ids=["few", "more"])
@pytest.mark.parametrize("name", COMMANDS)
def test_no_value_of_a_parameter_makes_a_traceback(name: str, hostile: tuple[str, ...], emq: Shell) -> None:
    command = COMMANDS[name]
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    for parameter in every_command.own_parameters(command):
        for value in hostile:
            if (name, parameter.name, value) == ("top", "count", "9" * 40):  # that is right, and takes a while
                continue
            if parameter.param_type_name == "option":
                line = [*ARGUMENTS[name].split(), parameter.opts[0], value]
            else:
                line = _with_argument(ARGUMENTS[name].split(), arguments.index(parameter), value)
            _refused_or_done(name, line)


def _with_argument(line: list[str], place: int, value: str) -> list[str]:
    """Return the line with another argument at a place; options of these lines come last, or take no value."""
    if not line or line[0].startswith("-"):
        return [value, *line]
    return [*line[:place], value, *line[place + 1 :]]


def _refused_or_done(name: str, line: list[str]) -> None:
    result = CliRunner().invoke(app, [*name.split(), *line])
    if isinstance(result.exception, JavaStarted):
        assert name in SPARK
        return
    assert result.exception is None or isinstance(result.exception, SystemExit), (line, result.exception)
    assert result.exit_code in range(5), line
    if result.exit_code not in (0, exit_codes.VOID):
        assert result.stderr.startswith("emq: "), line
        assert result.stderr.count("\n") == 1, line
        assert len(result.stderr) < 1_500, line


@pytest.mark.parametrize(
    "line",
    [
        "audit nowhere",
        *(f"audit trail --memory {size}" for size in ("lots", "1m")),
        *("audit trail --max-skew soon", "audit trail --report no/where.html", "audit trail --ledger trail"),
        *("audit trail --findings topics.toml", "audit trail --since topics.toml", "audit trail --topics nowhere.toml"),
        *(f"load {plan} --ledger ledger" for plan in ("nowhere.toml", "latin.txt")),
        *(
            f"load plan.toml --ledger ledger --{option}"
            for option in ("duration soon", "duration 0s", "memory 2", "partitions 7", "run a/b", "store memory:")
        ),
        *(f"trial {wrong}" for wrong in ("nowhere.toml", "--duration soon", "--memory 2t", "--keep .")),
        "trial --report no/where.html",
    ],
)
def test_java_does_not_start_for_wrong_arguments(line: str, emq: Shell) -> None:
    """If it did, `every_command.start_nothing` would make it an error that the command does not expect."""
    pytest.importorskip("pyspark")
    emq.refused(line, code=exit_codes.WRONG)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("topic set shop name=x", "name may not change"),
        ("topic set shop expiring=true", "has no setting 'expiring'"),
        ("dead purge shop", "--yes"),
        ("topic delete shop", "--yes"),
        ("offsets reset shop", "--yes"),
        ("scheduling delete sms", "--yes"),
        ("scheduling set sms resource acme weight=0", "weight 0 must be above 0"),
        ("scheduling set sms resource acme wait=1", "did you mean 'weight'?"),
        ("scheduling submit sms code x --deadline soon", "--deadline"),
        ("scheduling submit sms code x --cost requests", "LIMIT=UNITS"),
    ],
)
def test_a_wrong_value_is_one_line_and_2(line: str, said: str, emq: Shell) -> None:
    assert said in emq.refused(line, code=exit_codes.WRONG)


def test_commands_that_ask_are_told_yes_in_the_same_words() -> None:
    asking = {name: p.opts for name, command in COMMANDS.items() for p in command.params if p.name == "yes"}
    assert asking.keys() == {
        *("api key delete", "dead purge", "drain", "family delete", "offsets reset", "scheduling delete"),
        "push types delete",
        *("store orphans", "topic delete", "weight", "topic drain", "topic pause", "topic resume", "topic set"),
    }
    assert {*map(tuple, asking.values())} == {("--yes", "-y")}


@pytest.mark.parametrize("name", ["dead list", "lag", "schedule list", "topic list", "topic options"])
def test_a_pattern_is_optional(name: str, emq: Shell) -> None:
    emq(name)
    emq(f"{name} *")


def test_a_group_without_a_command_shows_its_help_as_wrong_usage(emq: Shell) -> None:
    for group in ("", "topic", "dead", "schedule", "scheduling", "offsets", "trail"):
        assert "Usage: emq" in emq(group, code=exit_codes.WRONG)


def test_the_version_is_told(emq: Shell) -> None:
    from importlib import metadata

    assert emq("--version") == f"emq {metadata.version('emq')}\n"


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(name: str, emq: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_EMQ_COMPLETE", f"complete_{name}")
    monkeypatch.setenv("COMP_WORDS", "emq topic cre")
    monkeypatch.setenv("COMP_CWORD", "2")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "emq topic cre")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    assert "create" in CliRunner().invoke(app, [], prog_name="emq").output
