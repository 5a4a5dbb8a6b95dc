"""The chart of `deploy/helm`, rendered by Helm: manifests that Kubernetes takes, and what they promise."""

from __future__ import annotations

import importlib
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import promql_parser
import pytest
import yaml

if platform.machine() != "x86_64":
    pytest.skip("Helm's library has no wheels for this machine", allow_module_level=True)
helm = importlib.import_module("helm_python")

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/emq"
ALERTS = ROOT / "deploy/prometheus/alerts.yml"
VERSION = (ROOT / "VERSION").read_text().strip()

VERSIONS = ("1.27", "1.32", "1.37")
"""The oldest Kubernetes that the chart allows, one between, the newest whose schemas are at hand."""

OF_OPERATORS = {"ServiceMonitor", "PrometheusRule", "ScaledObject"}
"""Kinds whose schemas come with operators, not with Kubernetes."""

EVERYTHING: dict[str, Any] = {
    "image": {"pullSecrets": [{"name": "registry"}], "tag": "0.1.0@sha256:abc"},
    "certificatesSecretName": "certificates",
    "settings": {"EMQ_PUSH_ALLOW": "10.1.0.0/16", "EMQ_SESSION_TIMEOUT_S": 20},
    "hosts": {"app": "shop.handlers", "autoscaling": {"enabled": True}},
    "api": {
        "autoscaling": {"enabled": False},
        "ingress": {"enabled": True, "className": "nginx", "annotations": {"a.example/b": "c"}},
    },
    "trail": {"enabled": True, "storageClassName": "shared"},
    "monitoring": {"serviceMonitor": True, "alerts": True, "labels": {"release": "prometheus"}},
    "networkPolicy": {"monitoringNamespace": "monitoring", "ingressNamespace": "ingress"},
}

Manifest = dict[str, Any]


def rendered(values: Manifest | None = None, release: str = "shop") -> list[Manifest]:
    with helm.Chart.load(str(CHART)) as chart:
        texts = chart.render(values or {}, name=release, namespace="emq-online")
    found = (yaml.safe_load_all(text) for name, text in texts.items() if name.endswith(".yaml"))
    return [manifest for manifests in found for manifest in manifests if manifest]


@pytest.fixture(scope="module")
def plain() -> list[Manifest]:
    return rendered()


@pytest.fixture(scope="module")
def everything() -> list[Manifest]:
    return rendered(EVERYTHING)


def one(manifests: list[Manifest], kind: str, component: str = "") -> Manifest:
    suffix = f"-{component}" if component else ""
    [found] = [m for m in manifests if m["kind"] == kind and m["metadata"]["name"] == f"emq-shop{suffix}"]
    return found


def pods(manifests: list[Manifest]) -> Iterator[tuple[Manifest, Manifest]]:
    """Yield the labels and the specification of each pod."""
    for manifest in manifests:
        if manifest["kind"] in ("StatefulSet", "Deployment", "Job"):
            template = manifest["spec"]["template"]
            yield template["metadata"]["labels"], template["spec"]


def environment(pod: Manifest) -> dict[str, Any]:
    [container] = pod["containers"]
    names = [entry["name"] for entry in container["env"]]
    assert len(names) == len(set(names)), "a variable is set twice"
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "values", [{}, EVERYTHING, {"networkPolicy": {"enabled": False}}], ids=["plain", "all", "open"]
)
def test_every_manifest_is_one_by_the_schemas_of_kubernetes(values: Manifest, version: str) -> None:
    manifests = rendered(values)
    assert len({(m["kind"], m["metadata"]["name"]) for m in manifests}) == len(manifests) >= 8
    for manifest in manifests:
        if manifest["kind"] not in OF_OPERATORS:
            kubernetes_validate.validate(manifest, version, strict=True)


def test_a_wrong_manifest_would_be_noticed(plain: list[Manifest]) -> None:
    wrong = yaml.safe_load(yaml.safe_dump(one(plain, "StatefulSet", "host")))
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 90
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_without_values_nothing_needs_an_operator_and_with_all_every_part_is_there(
    plain: list[Manifest], everything: list[Manifest]
) -> None:
    kinds = {m["kind"] for m in plain}
    assert not kinds & OF_OPERATORS
    assert {"StatefulSet", "Deployment", "Job", "HorizontalPodAutoscaler", "NetworkPolicy"} <= kinds
    assert {*OF_OPERATORS, "Ingress", "PersistentVolumeClaim"} <= {m["kind"] for m in everything}


@pytest.mark.parametrize("values", [{}, EVERYTHING])
def test_every_pod_is_rootless_and_read_only_and_has_its_secrets_by_reference(values: Manifest) -> None:
    found = list(pods(rendered(values)))
    assert len(found) == 3
    commands = set()
    for labels, pod in found:
        [container] = pod["containers"]
        commands.add((labels["app.kubernetes.io/component"], tuple(container["args"])))
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 10001
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["envFrom"] == [{"secretRef": {"name": "emq-urls"}}]
        assert {"EMQ_STORE", "EMQ_DATABASE", "EMQ_CLUSTER", "EMQ_SECRET_KEY"}.isdisjoint(environment(pod))
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert commands == {("tables", ("upgrade", "--tables")), ("host", ("host",)), ("api", ("api",))}


def test_all_pods_run_the_image_of_this_version(plain: list[Manifest], everything: list[Manifest]) -> None:
    assert {pod["containers"][0]["image"] for _, pod in pods(plain)} == {f"registry.example.com/emq:{VERSION}"}
    assert {pod["containers"][0]["image"] for _, pod in pods(everything)} == {
        "registry.example.com/emq:0.1.0@sha256:abc"
    }


@pytest.mark.parametrize("drain_s", [0, 10, 45])
def test_kubernetes_waits_for_a_handover_and_a_drain(drain_s: int) -> None:
    pod = one(rendered({"drainSeconds": drain_s}), "StatefulSet", "host")["spec"]["template"]["spec"]
    assert environment(pod)["EMQ_DRAIN_S"] == str(drain_s)
    assert pod["terminationGracePeriodSeconds"] == 2 * drain_s + 30


def test_hosts_are_named_after_their_pods_and_restarted_one_by_one(everything: list[Manifest]) -> None:
    hosts = one(everything, "StatefulSet", "host")["spec"]
    variables = environment(hosts["template"]["spec"])
    assert variables["EMQ_HOST_NAME"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert (variables["EMQ_APP"], variables["EMQ_TRAIL"]) == ("shop.handlers", "/var/lib/emq/trail")
    assert (variables["EMQ_PUSH_ALLOW"], variables["EMQ_SESSION_TIMEOUT_S"]) == ("10.1.0.0/16", "20")
    assert hosts["updateStrategy"] == {"type": "RollingUpdate"}
    assert hosts["serviceName"] == one(everything, "Service", "host")["metadata"]["name"]
    assert one(everything, "PodDisruptionBudget", "host")["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize(
    ("kind", "component", "setting"), [("StatefulSet", "host", "METRICS"), ("Deployment", "api", "API")]
)
def test_pods_are_asked_where_they_serve(plain: list[Manifest], kind: str, component: str, setting: str) -> None:
    pod = one(plain, kind, component)["spec"]["template"]["spec"]
    [container] = pod["containers"]
    [port] = container["ports"]
    assert environment(pod)[f"EMQ_{setting}"] == f":{port['containerPort']}"
    for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}
    waits = container.get("startupProbe")
    assert (waits is not None) == (component == "api"), "hosts answer while they wait for their servers, the API not"
    [served] = one(plain, "Service", component)["spec"]["ports"]
    assert served["targetPort"] == port["name"]


def selected(selector: Manifest, manifests: list[Manifest]) -> set[str]:
    """Return the components of the pods that a selector selects."""
    return {
        labels["app.kubernetes.io/component"] for labels, _ in pods(manifests) if selector.items() <= labels.items()
    }


def test_everything_selects_the_pods_that_it_is_for(everything: list[Manifest]) -> None:
    for component, kind in (("host", "StatefulSet"), ("api", "Deployment")):
        workload = one(everything, kind, component)["spec"]
        spread = workload["template"]["spec"]["topologySpreadConstraints"][0]["labelSelector"]
        selectors = [
            workload["selector"]["matchLabels"],
            spread["matchLabels"],
            one(everything, "Service", component)["spec"]["selector"],
            one(everything, "PodDisruptionBudget", component)["spec"]["selector"]["matchLabels"],
            one(everything, "NetworkPolicy", component)["spec"]["podSelector"]["matchLabels"],
        ]
        assert [selected(selector, everything) for selector in selectors] == [{component}] * len(selectors)
    policy = one(everything, "NetworkPolicy")["spec"]
    assert selected(policy["podSelector"]["matchLabels"], everything) == {"tables", "host", "api"}
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in policy, "what no other policy allows is refused"
    watched = one(everything, "ServiceMonitor", "host")["spec"]["selector"]["matchLabels"]
    assert watched.items() <= one(everything, "Service", "host")["metadata"]["labels"].items()
    assert not watched.items() <= one(everything, "Service", "api")["metadata"]["labels"].items()


def test_the_ingress_leads_to_the_api_by_tls_and_its_controller_alone_may_pass(everything: list[Manifest]) -> None:
    ingress = one(everything, "Ingress", "api")["spec"]
    [rule] = ingress["rules"]
    [path] = rule["http"]["paths"]
    service = one(everything, "Service", "api")
    assert path["backend"]["service"] == {"name": service["metadata"]["name"], "port": {"name": "http"}}
    assert ingress["tls"] == [{"hosts": [rule["host"]], "secretName": "emq-tls"}]
    for component, namespace in (("api", "ingress"), ("host", "monitoring")):
        [allowed] = one(everything, "NetworkPolicy", component)["spec"]["ingress"]
        [sender] = allowed["from"]
        assert allowed["ports"] == [{"port": one(everything, "Service", component)["spec"]["ports"][0]["targetPort"]}]
        assert sender["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": namespace}


def test_the_tables_come_first_and_need_nothing_that_comes_later(everything: list[Manifest]) -> None:
    job = one(everything, "Job", "tables")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    volumes = {volume["name"] for volume in job["spec"]["template"]["spec"]["volumes"]}
    assert volumes == {"tmp", "certificates"}, "the claim of the trail is made after the hook"


def test_an_autoscaler_alone_decides_how_many_there_are(plain: list[Manifest], everything: list[Manifest]) -> None:
    assert one(plain, "StatefulSet", "host")["spec"]["replicas"] == 3
    assert "replicas" not in one(plain, "Deployment", "api")["spec"]
    assert one(plain, "HorizontalPodAutoscaler", "api")["spec"]["scaleTargetRef"]["name"] == "emq-shop-api"
    assert "replicas" not in one(everything, "StatefulSet", "host")["spec"]
    assert one(everything, "Deployment", "api")["spec"]["replicas"] == 2


def test_hosts_are_scaled_by_metrics_that_there_are(everything: list[Manifest]) -> None:
    scaled = one(everything, "ScaledObject", "host")["spec"]
    assert scaled["scaleTargetRef"]["name"] == one(everything, "StatefulSet", "host")["metadata"]["name"]
    known = set(re.findall(r"^\| `(emq_\w+)`", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE))
    queries = [trigger["metadata"]["query"] for trigger in scaled["triggers"]]
    assert len(queries) == 2
    for query in queries:
        promql_parser.parse(query)
        assert set(re.findall(r"emq_\w+", query)) <= known
        assert 'job="emq-shop-host", namespace="emq-online"' in query
    assert all(float(trigger["metadata"]["threshold"]) > 0 for trigger in scaled["triggers"])


@pytest.mark.parametrize("release", ["shop", "emq", "emq-mail"])
def test_the_alerts_are_those_of_prometheus_and_look_at_the_hosts(release: str) -> None:
    manifests = rendered(EVERYTHING, release)
    [rules] = [m for m in manifests if m["kind"] == "PrometheusRule"]
    assert rules["spec"] == yaml.safe_load(ALERTS.read_text())
    [monitor] = [m for m in manifests if m["kind"] == "ServiceMonitor"]
    assert rules["metadata"]["labels"]["release"] == monitor["metadata"]["labels"]["release"] == "prometheus"
    [service] = [m for m in manifests if m["kind"] == "Service" and m["metadata"]["name"].endswith("-host")]
    # The operator takes the name of the Service for the job.
    assert service["metadata"]["name"].startswith("emq")


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"hosts": {"replica": 3}}, "replica"),
        ({"environment": "production"}, "environment"),
        ({"drainSeconds": 1.5}, "drainSeconds"),
        ({"secretName": ""}, "secretName"),
        ({"settings": {"EMQ_DRAIN_S": "30"}}, "EMQ_DRAIN_S"),
        ({"settings": {"EMQ_STORE": "redis://u:p@h"}}, "EMQ_STORE"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(values: Manifest, named: str) -> None:
    with pytest.raises(helm.errors.HelmValuesError, match=named):
        rendered(values)
