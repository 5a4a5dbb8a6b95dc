"""What is written about metrics: the page of docs/, the alert rules and the board of deploy/ name those that exist."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

import emq
from emq.groups.events import GROUP_LOOPS
from emq.host.lag_sampler import Part
from emq.observe.metrics import exposition, host_families
from emq.observe.metrics.collector import HostCollector
from emq_push.attempt_log import AttemptLog
from support.promql import faults
from support.scraped import Scraped

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/metrics.md").read_text()
DEPLOY = ROOT / "deploy/prometheus"
BOARD = DEPLOY / "grafana-emq.json"
ROW = re.compile(r"^\| `(emq_\w+)` \| (\w+) \| (.*?) \| (.*) \|$", re.MULTILINE)


async def scrape() -> Scraped:
    """Return the page of a host that has everything of which a page tells."""
    app = emq.App("memory:", options=emq.Settings())
    app.monitor.counts = True
    app.handler("*")(_handle)
    async with app:
        await app.create_topic("t", 10)
        async with app.running() as host:
            app.records.append(AttemptLog(lambda: app.database, "online", app.host_name))
            await host.lag.look()
            return Scraped("".join(exposition.pieces(host_families.of_process(app))))


async def _handle(message: emq.Message) -> None:
    pass


def rules() -> list[dict[str, Any]]:
    loaded = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(BOARD.read_text())["panels"]
    return found


def board_expressions() -> Iterator[str]:
    """Yield what the board asks for, as Grafana sends it."""
    for panel in panels():
        for target in panel.get("targets", ()):
            yield target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$handler", ".*")


async def test_a_registry_of_prometheus_client_tells_the_same() -> None:
    app = emq.App("memory:", options=emq.Settings())
    registry = CollectorRegistry()
    registry.register(HostCollector(app))
    done = asyncio.Event()

    @app.handler('[o\udc80]d"d*')
    async def handle(message: emq.Message) -> None:
        done.set()

    async with app:
        await app.create_topic('od"d-topic', 10)
        async with app.running() as host:
            await app.publish('od"d-topic', b"x")
            await asyncio.wait_for(done.wait(), 20)
            await host.lag.look()
            own = Scraped("".join(exposition.pieces(host_families.of_process(app))))
            theirs = Scraped(generate_latest(registry).decode())
    assert theirs.value("emq_started_total", handler='[o?]d"d*') == 1
    assert theirs.series() == own.series()
    assert theirs.series().keys() >= {"emq_wait_seconds_bucket", "emq_handler_seconds_sum"}
    changing = ("_seconds", "process_")
    assert {k: f.samples for k, f in theirs.families.items() if not any(x in k for x in changing)} == {
        k: f.samples for k, f in own.families.items() if not any(x in k for x in changing)
    }


def test_the_snippet_of_the_page_registers_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    [snippet] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    registry = CollectorRegistry()
    monkeypatch.setattr("prometheus_client.REGISTRY", registry)
    found: dict[str, Any] = {}
    exec(snippet, found)
    assert found["app"].monitor.counts
    assert "emq_info" in generate_latest(registry).decode()


async def test_the_page_lists_every_metric_with_its_type_and_labels() -> None:
    scraped = await scrape()
    listed = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in ROW.findall(PAGE)}
    found = {
        name: (family.type, {label for s in family.samples for label in s.labels} - {"le"})
        for name, family in scraped.families.items()
    }
    assert listed == found
    assert len(ROW.findall(PAGE)) == len(listed), "a metric is listed twice"


async def test_the_page_has_the_meaning_that_the_host_tells() -> None:
    scraped = await scrape()
    meanings = {name: meaning for name, _, _, meaning in ROW.findall(PAGE)}
    assert meanings == {name: family.documentation for name, family in scraped.families.items()}


def test_the_page_explains_every_part_of_the_lag() -> None:
    explained = set(re.findall(r"^\| `(\w+)` \| [^|]* \|$", PAGE, re.MULTILINE))
    assert explained == {part.value for part in Part} | {"in_flight"}


async def test_names_follow_the_rules_of_prometheus() -> None:
    for name, family in (await scrape()).families.items():
        assert re.fullmatch(r"emq_[a-z][a-z0-9_]*", name)
        assert name.endswith("_total") == (family.type == "counter"), name
        assert family.documentation.endswith("."), name
        if family.type == "histogram":
            assert name.endswith("_seconds")


async def test_every_alert_asks_for_metrics_that_exist() -> None:
    scraped = await scrape()
    found = [fault for rule in rules() for fault in faults(rule["expr"], scraped)]
    assert not found, "\n".join(found)


async def test_what_alerts_see_grow_is_there_before_it_grows() -> None:
    """`increase` takes the first value of a series as given: a counter that appears with 1 has not grown."""
    scraped = await scrape()
    for loop in GROUP_LOOPS:
        assert scraped.value("emq_loop_failures_total", loop=loop) == 0
    for outcome in ("succeeded", "retried", "dead", "expired"):
        assert scraped.value("emq_outcomes_total", handler="*", outcome=outcome) == 0


def test_alerts_compare_no_hosts_of_two_environments_with_each_other() -> None:
    [differ] = [rule["expr"] for rule in rules() if rule["alert"] == "EMQPlansDiffer"]
    assert re.findall(r"(max|min) by \(job, environment\)", differ) == ["max", "min"]


def test_every_alert_is_one_that_prometheus_loads() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) > 10
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
        for text in rule["annotations"].values():
            for label in re.findall(r"\$labels\.(\w+)", text):
                aggregated = re.search(r"by \(([^)]*)\)", rule["expr"])
                kept = re.split(r",\s*", aggregated[1]) if aggregated else ["instance", "loop", "kind"]
                assert label in kept, f"{rule['alert']} names the label {label}, which its expression drops"
            assert text.count("{{") == text.count("}}")


async def test_every_panel_of_the_board_asks_for_metrics_that_exist() -> None:
    scraped = await scrape()
    expressions = list(board_expressions())
    found = [fault for expression in expressions for fault in faults(expression, scraped)]
    assert len(expressions) > 25
    assert not found, "\n".join(found)


def test_the_board_is_one_that_grafana_loads() -> None:
    board = json.loads(BOARD.read_text())
    assert board["schemaVersion"] >= 36
    assert {"title", "uid", "panels", "templating", "time", "refresh"} <= set(board)
    variables = {variable["name"] for variable in board["templating"]["list"]}
    assert len({panel["id"] for panel in panels()}) == len(panels())
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, f"{panel['title']} lies over another panel"
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["fieldConfig"]["defaults"].get("unit") or panel["type"] == "heatmap"
        for target in panel["targets"]:
            used = set(re.findall(r"\$\{?(\w+)", json.dumps([target["expr"], target["datasource"]])))
            assert used <= variables | {"__rate_interval"}
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            left = target["expr"].partition(" - on ")[0]  # a match of many with one keeps the labels of the left side
            kept = re.findall(r"by \(([^)]*)\)", left)
            assert shown <= ({x for by in kept for x in re.split(r",\s*", by)} if kept else {"instance"})


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("sum(emq_nonsense_total)", "there is no metric 'emq_nonsense_total'"),
        ("rate(emq_started_total{topic='a'}[1m])", "emq_started_total has no label 'topic'"),
        ("emq_lag_messages{part=~'ready|lost'}", "emq_lag_messages has no part ['lost']"),
        ("rate(emq_groups_owned[1m])", "rate of emq_groups_owned, which is a gauge"),
        ("sum by (tenant) (emq_groups_owned)", "no series has the label 'tenant'"),
        ("histogram_quantile(0.9, sum(rate(emq_wait_seconds_bucket[1m])))", "the buckets are added up over `le`"),
        ("histogram_quantile(0.9, emq_groups_owned)", "quantile of emq_groups_owned, which has no buckets"),
        ("sum(emq_groups_owned", "unclosed"),
    ],
)
async def test_a_wrong_expression_is_found(expression: str, fault: str) -> None:
    assert fault in "\n".join(faults(expression, await scrape()))


def test_the_sample_configuration_loads_the_rules_from_ports_that_hosts_serve() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    assert [(DEPLOY / name).exists() for name in config["rule_files"]] == [True]
    [job] = config["scrape_configs"]
    assert job["job_name"] == "emq"
    for group in job["static_configs"]:
        assert all(re.fullmatch(r"[\w.-]+:946\d", target) for target in group["targets"])
