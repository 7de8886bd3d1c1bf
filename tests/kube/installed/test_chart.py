"""deploy/chart with a real Helm: it says what deploy/limpet.yaml says, refuses nonsense, and is
installed, upgraded and taken away at a real API server."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import yaml

from limpet.agent.settings import Settings as AgentSettings
from limpet.agent.settings import parse_settings as parse_agent_settings
from limpet.controller.settings import parse_settings as parse_controller_settings
from limpet.lab.command import LabError, run_command
from limpet.lab.kube.control_plane import ControlPlane
from limpet.lab.kube.programs import find_programs
from tests.kube.definitions import wait_until_served

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
CHART = DEPLOY / "chart"
SPACE = "limpet-system"
Objects = dict[tuple[str, str], dict[str, Any]]


def helm(*words: str, folder: Path | None = None) -> str:
    """What it prints. `folder`: where it may keep what it learns. Raises: LabError."""
    home = ("env", f"HOME={folder}") if folder else ()
    return run_command(*home, str(find_programs("helm") / "helm"), *words)


def objects(text: str) -> Objects:
    found = [each for each in yaml.safe_load_all(text) if each]
    named = {(each["kind"], each["metadata"]["name"]): each for each in found}
    assert len(named) == len(found)
    return named


def rendered(values: dict[str, Any] | None = None, *, namespace: str = SPACE) -> Objects:
    words = ["template", "limpet", str(CHART), "-n", namespace]
    for key, value in (values or {}).items():
        words += ["--set-json", f"{key}={json.dumps(value)}"]
    return objects(helm(*words))


def plain(found: Objects) -> Objects:
    """With settings as values, so that their order and comments do not count, and without what only
    one of the two needs."""
    for (kind, name), each in found.items():
        if kind == "ConfigMap":
            each["data"] = {key: tomllib.loads(text) for key, text in each["data"].items()}
        if name in ("limpet-agent", "limpet-controller") and "template" in each.get("spec", {}):
            each["spec"]["template"]["metadata"].pop("annotations", None)
    found.pop(("Namespace", SPACE), None)
    return found


def settings(found: Objects, name: str) -> dict[str, Any]:
    data: dict[str, str] = found["ConfigMap", f"limpet-{name}"]["data"]
    return tomllib.loads(data[f"{name}.toml"])


def pod(found: Objects, kind: str, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = found[kind, name]["spec"]["template"]["spec"]
    return spec


def test_helm_finds_nothing_to_complain_of() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["appVersion"], chart["version"]) == ("dev", "0.0.0-dev")


def test_with_its_own_values_it_is_what_kubectl_applies() -> None:
    assert plain(rendered()) == plain(objects((DEPLOY / "limpet.yaml").read_text()))


def test_the_service_monitors_are_those_of_the_file_beside_it_and_metrics_are_reached() -> None:
    found = rendered({"serviceMonitor.enabled": True, "serviceMonitor.labels": {"release": "p"}})

    wanted = objects((DEPLOY / "monitoring.yaml").read_text())
    for key, each in wanted.items():
        labels = found[key]["metadata"]["labels"]
        if each["kind"] == "ServiceMonitor":
            assert labels.pop("release") == "p"
        assert found[key] == each
    assert settings(found, "agent")["metrics_listen"] == ["[::]:9471"]
    assert settings(found, "controller")["metrics_listen"] == ["[::]:9472"]
    names = rendered({"serviceMonitor.enabled": True, "dns.enabled": True})
    assert settings(names, "agent")["dns_metrics_listen"] == ["[::]:9473"]
    assert not wanted.keys() & rendered().keys()


@pytest.mark.parametrize(
    ("listen", "expected"),
    [
        ([], ["127.0.0.1:9471"]),
        ("10.0.0.5:9471", ["10.0.0.5:9471", "127.0.0.1:9471"]),
        (["[::]:9000"], ["[::]:9000", "127.0.0.1:9471"]),
        (["0.0.0.0:9471"], ["0.0.0.0:9471"]),
        (["[::1]:9471", "127.0.0.1:9471"], ["[::1]:9471", "127.0.0.1:9471"]),
    ],
)
def test_the_kubelets_probes_are_answered_wherever_metrics_are_served(
    listen: object, expected: list[str]
) -> None:
    found = rendered({"agent.settings": {"metrics_listen": listen}})

    assert settings(found, "agent")["metrics_listen"] == expected
    assert settings(found, "controller")["metrics_listen"] == ["127.0.0.1:9472"]
    (agent,) = pod(found, "DaemonSet", "limpet-agent")["containers"]
    assert agent["livenessProbe"]["tcpSocket"] == {"host": "127.0.0.1", "port": 9471}


@pytest.mark.parametrize("word", ["on", "off"])
def test_a_word_of_a_values_file_that_yaml_takes_for_a_truth_value_is_that_word(
    word: str, tmp_path: Path
) -> None:
    """Helm reads files by YAML 1.1, in which `on` and `off` without quotes are true and false."""
    keys = [
        each.encode_name
        for part in msgspec.structs.fields(AgentSettings)
        if isinstance(part.type, type) and issubclass(part.type, msgspec.Struct)
        for each in msgspec.structs.fields(part.type)
        if {"on", "off"}
        <= {word for form in (each.type, *get_args(each.type)) for word in get_args(form)}
    ]
    assert "services" in keys
    written = "".join(f"{key}: {word}, " for key in keys)
    file = tmp_path / "values.yaml"
    file.write_text(f"agent: {{settings: {{{written}port_mapping: {word}}}}}\n")

    found = objects(helm("template", "limpet", str(CHART), "-n", SPACE, "-f", str(file)))

    said = settings(found, "agent")
    assert {key: said[key] for key in keys} == dict.fromkeys(keys, word)
    assert said["port_mapping"] == (word == "on")
    parse_agent_settings(said, "the chart")


def test_alerts_and_dashboards_are_those_of_the_files_beside_it() -> None:
    labels = {"release": "p"}
    found = rendered(
        {
            "prometheusRule.enabled": True,
            "prometheusRule.labels": labels,
            "dashboards.enabled": True,
        }
    )

    (rule,) = objects((DEPLOY / "monitoring" / "prometheusrule.yaml").read_text()).values()
    rule["metadata"]["labels"] |= labels
    assert found["PrometheusRule", "limpet"] == rule
    boards = found["ConfigMap", "limpet-dashboards"]
    assert boards["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert boards["data"] == {
        path.name: path.read_text() for path in (DEPLOY / "monitoring").glob("*.json")
    }


def test_names_are_those_of_the_file_beside_it_and_agents_know_of_them() -> None:
    found = rendered({"dns.enabled": True, "agent.settings": {"dns_domain": "edge.example"}})

    wanted = objects((DEPLOY / "dns.yaml").read_text())
    for key, each in wanted.items():
        if key[0] == "DaemonSet":
            found[key]["spec"]["template"]["metadata"].pop("annotations")
        assert found[key] == each
    ours = parse_agent_settings(settings(found, "agent"), "the chart").dns
    assert (ours.dns, ours.domain) == ("on", "edge.example")
    assert not wanted.keys() & rendered().keys()
    more = rendered(
        {
            "dns.enabled": True,
            "dns.maxSurge": 2,
            "dns.nodeSelector": {"edge": "yes"},
            "dns.resources": {"limits": {"memory": "96Mi"}},
            "dns.tolerations": [{"key": "edge", "operator": "Exists"}],
        }
    )
    spec = more["DaemonSet", "limpet-dns"]["spec"]
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxSurge": 2, "maxUnavailable": 0}
    names = spec["template"]["spec"]
    assert names["nodeSelector"] == {"kubernetes.io/os": "linux", "edge": "yes"}
    assert names["containers"][0]["resources"] == {"limits": {"memory": "96Mi"}}
    assert names["tolerations"] == [{"key": "edge", "operator": "Exists"}]


def test_the_page_is_that_of_the_file_beside_it_and_stands_open_only_where_a_value_says_so() -> (
    None
):
    found = rendered({"page.enabled": True})

    wanted = objects((DEPLOY / "page.yaml").read_text())
    for key, each in wanted.items():
        if key[0] == "Deployment":
            found[key]["spec"]["template"]["metadata"].pop("annotations")
        assert found[key] == each
    assert not wanted.keys() & rendered().keys()
    assert ("Service", "limpet-page") not in found
    assert parse_controller_settings(settings(found, "controller"), "").looks.page_listen is None
    more = rendered(
        {
            "page.enabled": True,
            "page.public": True,
            "page.names": ["limpet.example.org"],
            "page.tlsSecret": "page-tls",
        }
    )
    looks = parse_controller_settings(settings(more, "controller"), "the chart").looks
    assert (looks.page_listen, looks.page_names) == ("[::]:7480", ("limpet.example.org",))
    assert str(looks.page_certificate) == "/etc/limpet-page/tls.crt"
    spec = pod(more, "Deployment", "limpet-page")
    assert {"name": "tls", "secret": {"secretName": "page-tls"}} in spec["volumes"]
    (port,) = more["Service", "limpet-page"]["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (443, "page")
    chosen = more["Service", "limpet-page"]["spec"]["selector"].items()
    labels = more["Deployment", "limpet-page"]["spec"]["template"]["metadata"]["labels"]
    assert chosen <= labels.items()


@pytest.mark.parametrize(
    ("listen", "is_asked"),
    [
        ("0.0.0.0:7480", True),
        ("[::]:7480", True),
        ("203.0.113.9:7480", False),
        ("[::]:7481", False),
    ],
)
def test_a_page_that_the_kubelet_would_ask_in_vain_is_refused(listen: str, is_asked: bool) -> None:
    values = {"page.enabled": True, "controller.settings": {"page_listen": listen}}
    if is_asked:
        assert settings(rendered(values), "controller")["page_listen"] == listen
    else:
        with pytest.raises(LabError, match="never be ready"):
            rendered(values)
        rendered({**values, "page.enabled": False})  # where there is no page nobody asks


def test_services_at_the_socket_get_the_mounts_that_the_manifest_has_as_comments() -> None:
    found = rendered({"agent.ebpf": True})

    text = (DEPLOY / "limpet.yaml").read_text()
    wanted = pod(objects(text.replace("# - {name: ", "- {name: ")), "DaemonSet", "limpet-agent")
    agent = pod(found, "DaemonSet", "limpet-agent")
    assert agent["volumes"] == wanted["volumes"]
    assert agent["containers"][0]["volumeMounts"] == wanted["containers"][0]["volumeMounts"]
    assert (
        len(wanted["volumes"]) == len(pod(rendered(), "DaemonSet", "limpet-agent")["volumes"]) + 2
    )
    assert settings(found, "agent")["services_backend"] == "auto"
    assert "services_backend" not in settings(rendered(), "agent")


def test_values_get_to_where_they_belong_and_both_programs_take_their_settings() -> None:
    toleration = {"key": "edge", "operator": "Exists", "effect": "NoSchedule"}
    found = rendered(
        {
            "image": {"repository": "registry.example/limpet", "tag": "1.2.3"},
            "image.pullSecrets": [{"name": "pull"}],
            "podCidrs": ["10.9.0.0/16", "fd00:9::/48"],
            "serviceCidrs": ["10.96.0.0/12"],
            "kubernetesServer": "https://192.0.2.1:6443",
            "cni": {"binDir": "/usr/libexec/cni", "confDir": "/etc/cni/other.d"},
            "agent.settings": {"peer_port": 7999, "allow_forward": True, "rest_s": 2.5},
            "agent.resources": {"limits": {"memory": "128Mi"}},
            "agent.tolerations": [toleration],
            "agent.nodeSelector": {"edge": "yes"},
            "agent.maxUnavailable": 3,
            "controller.replicas": 3,
            "controller.settings": {"vxlan_id": 7},
            "controller.resources": {"requests": {"cpu": "1"}},
        },
        namespace="elsewhere",
    )

    agent, controller = (
        pod(found, "DaemonSet", "limpet-agent"),
        pod(found, "Deployment", "limpet-controller"),
    )
    (install,), (main,) = agent["initContainers"], agent["containers"]
    for container in (install, main, controller["containers"][0]):
        assert container["image"] == "registry.example/limpet:1.2.3"
    assert agent["imagePullSecrets"] == controller["imagePullSecrets"] == [{"name": "pull"}]
    assert "/usr/libexec/cni" in install["args"]
    paths = {each["name"]: each.get("hostPath", {}).get("path") for each in agent["volumes"]}
    assert paths["cni-configurations"] == "/etc/cni/other.d"
    assert main["resources"] == {"limits": {"memory": "128Mi"}}
    assert agent["tolerations"] == [toleration]
    assert agent["nodeSelector"] == {"kubernetes.io/os": "linux", "edge": "yes"}
    update = found["DaemonSet", "limpet-agent"]["spec"]["updateStrategy"]["rollingUpdate"]
    assert update["maxUnavailable"] == 3
    assert found["Deployment", "limpet-controller"]["spec"]["replicas"] == 3
    assert controller["containers"][0]["resources"] == {"requests": {"cpu": "1"}}
    assert parse_agent_settings(settings(found, "agent"), "the chart")
    for program in ("agent", "controller"):
        assert settings(found, program)["kubernetes_server"] == "https://192.0.2.1:6443"
    ours = parse_controller_settings(settings(found, "controller"), "the chart")
    assert [str(each) for each in ours.cluster.pod_cidrs] == ["10.9.0.0/16", "fd00:9::/48"]
    assert (ours.cluster.vxlan_id, ours.place.namespace) == (7, "elsewhere")
    texts = json.dumps([*found.values()])
    assert SPACE not in texts
    assert "system:serviceaccount:elsewhere:limpet-agent" in texts


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"controler": {}}, "controler"),
        ({"podCidrs": ["10.0.0.0"]}, "podCidrs"),
        ({"podCidrs": ["10.0.0.0/8", "fd00::/48", "fd01::/48"]}, "podCidrs"),
        ({"controller": {"replicas": 0}}, "replicas"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"agent": {"settings": {"a": {"b": 1}}}}, "settings"),
        ({"agent": {"maxUnavailable": "all"}}, "maxUnavailable"),
        ({"agent": {"tolerations": [{"effect": "NoWay"}]}}, "tolerations"),
        ({"kubernetesServer": "http://192.0.2.1:6443"}, "kubernetesServer"),
        ({"cni": {"binDir": "opt/cni/bin"}}, "binDir"),
    ],
    ids=lambda each: each if isinstance(each, str) else None,
)
def test_nonsense_is_refused_by_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(LabError, match=named):
        rendered(values)


def test_the_api_server_takes_all_of_it(api: ControlPlane) -> None:
    """Dry, so that nothing is left; what is Prometheus' operator's needs definitions."""
    for kind in ("ServiceMonitor", "PrometheusRule"):
        definition = _definition_of_the_operator(kind)
        api.kubectl("apply", "-f", "-", stdin=json.dumps(definition))
        name = definition["metadata"]["name"]
        wait_until_served(api, name)
    api.kubectl("create", "namespace", "dry")
    enabled = ("serviceMonitor", "prometheusRule", "dashboards")
    switches = [word for each in enabled for word in ("--set", f"{each}.enabled=true")]
    text = helm("template", "limpet", str(CHART), "-n", "dry", *switches)

    said = api.kubectl("apply", "--dry-run=server", "-f", "-", stdin=text)

    assert said.count("(server dry run)") == len(objects(text))


def _definition_of_the_operator(kind: str) -> dict[str, Any]:
    """As Prometheus' operator has it, but for what it looks at."""
    names = {"plural": f"{kind.lower()}s", "kind": kind, "singular": kind.lower()}
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": names,
            "versions": [version],
        },
    }


def test_it_is_installed_upgraded_and_taken_away_and_what_was_granted_stays(
    api: ControlPlane, tmp_path: Path
) -> None:
    at = ("-n", SPACE, f"--kubeconfig={api.kubeconfig}")

    def definition() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            api.kubectl("get", "crd", "communities.limpet.dev", "-o", "json")
        )
        return found

    told = helm("install", "limpet", str(CHART), *at, "--create-namespace", folder=tmp_path)
    assert "limpet connectivity test" in told
    wait_until_served(api, "communities.limpet.dev")
    community = {
        "apiVersion": "limpet.dev/v1alpha1",
        "kind": "Community",
        "metadata": {"name": "harbour"},
        "spec": {"members": ["crane-1"]},
    }
    api.kubectl("create", "-f", "-", stdin=json.dumps(community))
    older = {"spec": {"names": {"shortNames": ["older"]}}}
    api.kubectl("patch", "crd", "communities.limpet.dev", "--type=merge", "-p", json.dumps(older))

    # Another version of the chart has another definition, which is upgraded with it.
    fresh = tmp_path / "chart"
    run_command("cp", "-r", str(CHART), str(fresh))
    template = fresh / "templates" / "00-definitions.yaml"
    template.write_text(template.read_text().replace("shortNames: [comm]", "shortNames: [newer]"))
    helm("upgrade", "limpet", str(fresh), *at, "--set", "controller.replicas=3", folder=tmp_path)
    assert definition()["spec"]["names"]["shortNames"] == ["newer"]
    replicas = api.kubectl(
        *("get", "deployment", "limpet-controller", "-n", SPACE, "-o", "jsonpath={.spec.replicas}")
    )
    assert replicas == "3"

    helm("uninstall", "limpet", *at, folder=tmp_path)
    assert "No resources found" in _get(api, "daemonsets,deployments,configmaps")
    assert api.kubectl("get", "communities", "-o", "name").split() == [
        "community.limpet.dev/harbour"
    ]
    helm("install", "limpet", str(CHART), *at, folder=tmp_path)
    assert definition()["spec"]["names"]["shortNames"] == ["comm"]


def _get(api: ControlPlane, kinds: str) -> str:
    found = api.kubectl(
        "get", kinds, "-n", SPACE, "-l", "app.kubernetes.io/part-of=limpet", "-o", "name"
    )
    return found or "No resources found"
