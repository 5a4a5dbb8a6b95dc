"""What `deploy/` says and sets: files that parse, names that exist, stops that are long enough."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from emq.runtime.settings import Settings
from emq_cli.commands import app

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = sorted(p for p in DEPLOY.rglob("*") if p.is_file() and "__pycache__" not in p.parts and p.name != ".env")
PAGES = [p for p in FILES if p.suffix == ".md"]
COMPOSE = DEPLOY / "compose/compose.yaml"
UNITS = ("emq.service", "emq-host@.service")

READ_BY_THE_UNIT = {"EMQ_HOST_ARGS"}

SECONDS_BEYOND_DRAINS = 30.0
"""What a stop needs beside two waits for messages in flight: the handover, the last checkpoint, the farewell."""


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return loaded


def manifests() -> dict[str, dict[str, Any]]:
    found = {}
    for path in sorted((DEPLOY / "kubernetes/base").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            found[document["kind"]] = document
    return found


def unit(name: str) -> list[str]:
    return [line for line in (DEPLOY / name).read_text().splitlines() if line and not line.startswith("#")]


def names(path: Path) -> str:
    return str(path.relative_to(DEPLOY))


# ------------------------------------------------------------------------------------------------------ names exist


@pytest.mark.parametrize("path", FILES, ids=names)
def test_every_emq_variable_is_a_setting(path: Path) -> None:
    known = {f"EMQ_{name.upper()}" for name in Settings.__struct_fields__} | READ_BY_THE_UNIT
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
    root = typer.main.get_command(app)
    for words in commands_in(path.read_text()):
        if not re.fullmatch(r"[a-z]+", words[0]):
            continue
        assert words[0] in root.commands, f"there is no command `emq {words[0]}`"  # type: ignore[attr-defined]
        command = root.commands[words[0]]  # type: ignore[attr-defined]
        if hasattr(command, "commands"):
            assert words[1] in command.commands, f"there is no command `emq {words[0]} {words[1]}`"
            command = command.commands[words[1]]
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


def test_the_image_has_every_extra_that_the_urls_need() -> None:
    extras = re.search(r"'\.\[([a-z,]+)\]'", (DEPLOY / "Dockerfile").read_text())
    assert extras is not None
    assert {"redis", "postgres", "zookeeper", "push"} <= set(extras[1].split(","))


def test_the_image_is_made_of_files_that_are_there_and_not_ignored() -> None:
    kept = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().split() if line.startswith("!")}
    copied = set()
    for line in (DEPLOY / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            copied |= {word for word in line.split()[1:-1] if not word.startswith("--")}
    assert copied == kept
    assert all((DEPLOY.parent / path).exists() for path in copied)


# ------------------------------------------------------------------------------------------------ stops are long enough


def needed_s() -> float:
    return 2 * Settings().drain_s + SECONDS_BEYOND_DRAINS


@pytest.mark.parametrize("name", UNITS)
def test_systemd_waits_for_a_handover_and_a_drain(name: str) -> None:
    [line] = [line for line in unit(name) if line.startswith("TimeoutStopSec=")]
    assert float(line.partition("=")[2]) >= needed_s()
    assert "KillSignal=SIGTERM" in unit(name)


def test_compose_and_kubernetes_wait_for_a_handover_and_a_drain() -> None:
    assert float(compose()["services"]["host"]["stop_grace_period"].removesuffix("s")) >= needed_s()
    assert manifests()["StatefulSet"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= needed_s()


# -------------------------------------------------------------------------------------------------------------- systemd


def test_the_units_differ_in_names_only() -> None:
    one, many = (set(unit(name)) for name in UNITS)
    assert many - one == {
        "Description=EMQ host %i",
        "Environment=EMQ_HOST_NAME=%H-%i",
        "EnvironmentFile=-/etc/emq/emq-%i.env",
        "ExecStart=/opt/emq/bin/emq host",
    }
    assert one - many == {"Description=EMQ host", "ExecStart=/opt/emq/bin/emq host $EMQ_HOST_ARGS"}


# -------------------------------------------------------------------------------------------------------------- compose


def test_compose_has_the_whole_cluster_and_makes_it_of_the_nodes_that_there_are() -> None:
    services = compose()["services"]
    made = services["valkey-cluster"]["command"][2:]
    nodes = [s["networks"]["emq"]["ipv4_address"] for n, s in services.items() if re.fullmatch(r"valkey\d", n)]
    assert made == [f"{address}:6379" for address in nodes]
    assert len(set(nodes)) == len(nodes) == 6
    assert [services[f"zk{i}"]["environment"]["ZOO_MY_ID"] for i in (1, 2, 3)] == ["1", "2", "3"]
    assert {"postgres", "host", "valkey-cluster"} <= services.keys()
    assert "container_name" not in services["host"], "a named container cannot be scaled"


def test_compose_publishes_no_port_keeps_no_password_and_its_volumes_are_declared() -> None:
    data = compose()
    used = {mount.partition(":")[0] for s in data["services"].values() for mount in s.get("volumes", ())}
    assert {name for name in used if not name.startswith(".")} == data["volumes"].keys()
    for service in data["services"].values():
        assert "ports" not in service
        for name, value in service.get("environment", {}).items():
            assert "PASSWORD" not in name or value.startswith("${")


def test_every_variable_of_compose_has_a_default_or_an_example() -> None:
    examples = set(re.findall(r"^([A-Z_]+)=", (DEPLOY / "compose/env.example").read_text(), re.MULTILINE))
    for name, rest in re.findall(r"\$\{([A-Z_]+)([^}]*)\}", COMPOSE.read_text()):
        assert rest.startswith((":-", ":?")), name
        assert name in examples or name.endswith("_IMAGE"), name


# ----------------------------------------------------------------------------------------------------------- kubernetes


def test_hosts_are_named_after_their_pods_and_restarted_one_by_one() -> None:
    kinds = manifests()
    spec = kinds["StatefulSet"]["spec"]
    [container] = spec["template"]["spec"]["containers"]
    [name] = [variable for variable in container["env"] if variable["name"] == "EMQ_HOST_NAME"]
    assert name["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    assert spec["updateStrategy"]["type"] == "RollingUpdate"
    assert "readinessProbe" in container
    assert "livenessProbe" not in container
    assert kinds["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1


def test_everything_in_kubernetes_selects_the_hosts() -> None:
    kinds = manifests()
    labels = kinds["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert kinds["StatefulSet"]["spec"]["selector"]["matchLabels"] == labels
    assert kinds["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert kinds["Service"]["spec"]["selector"] == labels
    assert kinds["StatefulSet"]["spec"]["serviceName"] == kinds["Service"]["metadata"]["name"]
