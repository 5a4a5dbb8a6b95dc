"""What `deploy/` says and sets: files that parse, names that exist, stops that are long enough."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from emq.runtime.settings import Settings
from emq_cli.commands import app

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = sorted(
    path
    for path in DEPLOY.rglob("*")
    if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts and path.name != ".env"
)
PAGES = [p for p in FILES if p.suffix == ".md"]
COMPOSE = DEPLOY / "compose/compose.yaml"
IMAGE = DEPLOY / "image/Dockerfile"
SYSTEMD = DEPLOY / "systemd"
PYPROJECT = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
VERSION = (DEPLOY.parent / "VERSION").read_text().strip()

PROCESSES = {("upgrade", "--tables"), ("host",), ("api",)}
"""The commands that make the whole product."""

SECONDS_BEYOND_DRAINS = 30.0
"""What a stop needs beside two waits for messages in flight: the handover, the last checkpoint, the farewell."""


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return loaded


def unit(name: str) -> list[str]:
    return [line for line in (SYSTEMD / name).read_text().splitlines() if line and not line.startswith("#")]


def names(path: Path) -> str:
    return str(path.relative_to(DEPLOY))


# ------------------------------------------------------------------------------------------------------ names exist


@pytest.mark.parametrize("path", FILES, ids=names)
def test_every_emq_variable_is_a_setting(path: Path) -> None:
    known = {f"EMQ_{name.upper()}" for name in Settings.__struct_fields__}
    named = set(re.findall(r"\bEMQ_[A-Z_]*[A-Z]", path.read_text()))
    assert named <= known


def commands_in(text: str) -> set[tuple[str, ...]]:
    """The commands, with their options, of the code in a page or file."""
    spans = re.findall(r"`([^`\n]+)`", text) + re.findall(r"^ {4}(.+)$", text, re.MULTILINE)
    found = set()
    for span in spans:
        for words in re.findall(r"(?:^|[ /])(?:emq|docker compose run --rm host) ((?:[\w'./:<-][^ |#`]* ?)+)", span):
            found.add(tuple(words.split()))
    return found


@pytest.mark.parametrize("path", PAGES, ids=names)
def test_every_command_and_option_that_a_page_names_exists(path: Path) -> None:
    for words in commands_in(path.read_text()):
        if not re.fullmatch(r"[a-z]+", words[0]):
            continue
        command, named = typer.main.get_command(app), list(words)
        while named and hasattr(command, "commands"):
            assert named[0] in command.commands, f"there is no command `emq {' '.join(words)}`"
            command = command.commands[named.pop(0)]
        options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert {word for word in words if word.startswith("--")} <= options | {"--help"}, " ".join(words)


def test_the_pages_are_searched_for_commands() -> None:
    found = {words[0] for path in PAGES for words in commands_in(path.read_text())}
    assert {"topic", "host", "hosts", "drain", "plan", "stats", "settings"} <= found


@pytest.mark.parametrize("path", PAGES, ids=names)
def test_every_file_that_a_page_links_to_is_there(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_the_urls_are_of_stores_and_clusters_that_there_are() -> None:
    entry_points = (DEPLOY.parent / "pyproject.toml").read_text()
    host = compose()["services"]["host"]["environment"]
    assert f'"{host["EMQ_STORE"].partition(":")[0]}" = ' in entry_points
    assert host["EMQ_CLUSTER"].startswith("zookeeper://")
    assert host["EMQ_CLUSTER"].endswith("zk1:2181,zk2:2181,zk3:2181")


def test_the_image_has_every_extra_that_a_process_needs() -> None:
    extras = PROJECT["optional-dependencies"]
    [production] = extras["production"]
    left_out = {"reload", "demo", "spark", "servers", "testing", "production", "all"}
    assert set(production.removeprefix("emq[").removesuffix("]").split(",")) == extras.keys() - left_out
    assert "extras=${EXTRAS:-production}" in (DEPLOY / "image/install").read_text()
    assert "ARG EXTRAS=production" in IMAGE.read_text()


def test_the_image_is_made_by_the_steps_for_everybody_of_files_that_are_there_and_not_ignored() -> None:
    kept = {line[1:] for line in (DEPLOY / "image/Dockerfile.dockerignore").read_text().split() if line[0] == "!"}
    copied = set()
    for line in IMAGE.read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            copied |= {word for word in line.split()[1:-1] if not word.startswith("--")}
    assert copied == kept
    assert all((DEPLOY.parent / path).exists() for path in copied)
    packages = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    assert {package.partition("/")[0] for package in packages["packages"]} <= copied
    assert "deploy/image/install . /opt/emq" in IMAGE.read_text()
    steps = [line for line in IMAGE.read_text().splitlines() if not line.startswith("#")]
    assert not [line for line in steps if re.search(r"\b(pip|uv|venv)\b", line)], "a second list of steps"


def test_all_ways_start_the_same_processes_of_this_version() -> None:
    services = compose()["services"].values()
    ours = [service for service in services if service["image"].startswith("${IMAGE:-emq:")]
    assert {tuple(service["command"]) for service in ours} == PROCESSES
    started = [line for path in SYSTEMD.glob("*.service") for line in unit(path.name) if line.startswith("ExecStart=")]
    assert {tuple(line.split()[1:]) for line in started} == PROCESSES
    assert {service["image"] for service in ours} == {"${IMAGE:-emq:" + VERSION + "}"}
    chart = yaml.safe_load((DEPLOY / "helm/emq/Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == VERSION


def test_every_process_of_compose_is_rootless_and_read_only_and_asked_whether_it_is_ready() -> None:
    services = compose()["services"]
    assert "USER 10001:10001" in IMAGE.read_text()
    for name in ("tables", "host", "api"):
        service = services[name]
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert "user" not in service
    for name, port in (("host", "9464"), ("api", "8080")):
        asked = services[name]["healthcheck"]["test"][-1]
        setting = {"host": "EMQ_METRICS", "api": "EMQ_API"}[name]
        assert f":{port}/readyz" in asked
        assert services[name]["environment"][setting] == f":{port}"
        assert services[name]["depends_on"]["tables"]["condition"] == "service_completed_successfully"


# ------------------------------------------------------------------------------------------------ stops are long enough


def needed_s() -> float:
    return 2 * Settings().drain_s + SECONDS_BEYOND_DRAINS


def test_systemd_and_compose_wait_for_a_handover_and_a_drain() -> None:
    [line] = [line for line in unit("emq-host@.service") if line.startswith("TimeoutStopSec=")]
    assert float(line.partition("=")[2]) >= needed_s()
    assert "KillSignal=SIGTERM" in unit("emq-host@.service")
    assert float(compose()["services"]["host"]["stop_grace_period"].removesuffix("s")) >= needed_s()


# -------------------------------------------------------------------------------------------------------------- systemd


@pytest.mark.parametrize("name", ["emq-host@.service", "emq-api.service"])
def test_hosts_and_api_start_after_the_tables_and_take_the_common_part(name: str) -> None:
    assert {"Wants=emq-tables.service", "After=emq-tables.service"} <= set(unit(name))
    assert "EnvironmentFile=/etc/emq/emq.env" in unit(name)
    assert name.startswith("emq-"), "systemd finds emq-.service.d by the beginning of the name"
    assert "ProtectSystem=strict" in unit("emq-.service.d/common.conf")


def test_the_file_of_one_host_goes_before_the_file_of_all() -> None:
    files = [line for line in unit("emq-host@.service") if line.startswith("EnvironmentFile=")]
    assert files == ["EnvironmentFile=/etc/emq/emq.env", "EnvironmentFile=-/etc/emq/emq-%i.env"]
    assert not any(line.startswith("EnvironmentFile") for line in unit("emq-.service.d/common.conf")), "it comes last"


# -------------------------------------------------------------------------------------------------------------- compose


def test_compose_has_the_whole_cluster_and_makes_it_of_the_nodes_that_there_are() -> None:
    services = compose()["services"]
    made = services["valkey-cluster"]["command"][2:]
    nodes = [s["networks"]["emq"]["ipv4_address"] for n, s in services.items() if re.fullmatch(r"valkey\d", n)]
    assert made == [f"{address}:6379" for address in nodes]
    assert len(set(nodes)) == len(nodes) == 6
    assert [services[f"zk{i}"]["environment"]["ZOO_MY_ID"] for i in (1, 2, 3)] == ["1", "2", "3"]
    assert {"postgres", "valkey-cluster", "tables", "host", "api"} <= services.keys()
    assert "container_name" not in services["host"], "a named container cannot be scaled"


def test_compose_publishes_the_api_alone_keeps_no_password_and_its_volumes_are_declared() -> None:
    data = compose()
    assert data["services"]["api"]["ports"] == ["${API_ADDRESS:-127.0.0.1:8080}:8080"]
    used = {mount.partition(":")[0] for s in data["services"].values() for mount in s.get("volumes", ())}
    assert {name for name in used if not name.startswith(".")} == data["volumes"].keys()
    for called, service in data["services"].items():
        assert called == "api" or "ports" not in service
        for name, value in service.get("environment", {}).items():
            assert not re.search("PASSWORD|KEY$", name) or value.startswith("${")


def test_every_variable_of_compose_has_a_default_or_an_example() -> None:
    examples = set(re.findall(r"^([A-Z_]+)=", (DEPLOY / "compose/env.example").read_text(), re.MULTILINE))
    for name, rest in re.findall(r"\$\{([A-Z_]+)([^}]*)\}", COMPOSE.read_text()):
        assert rest.startswith((":-", ":?")), name
        assert name in examples or name.endswith("_IMAGE"), name
