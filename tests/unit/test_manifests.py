"""deploy/limpet.yaml is what its parts say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from limpet.agent.settings import Settings
from limpet.cli.install.units.service import CAPABILITIES

CHECKOUT = Path(__file__).resolve().parents[2]
DEPLOY = CHECKOUT / "deploy"


def objects() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "limpet.yaml").read_text()))


def pods() -> dict[str, dict[str, Any]]:
    """Specifications of pods by the name of what makes them."""
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in objects()
        if each["kind"] in ("DaemonSet", "Deployment")
    }


def test_it_was_written_from_the_present_parts(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(CHECKOUT / "scripts" / "write-manifests", tmp_path / "scripts")
    for part in ("crds", "manifests"):
        shutil.copytree(DEPLOY / part, tmp_path / "deploy" / part)
    for file in ("dns.yaml", "monitoring.yaml", "page.yaml"):
        shutil.copy(DEPLOY / file, tmp_path / "deploy")

    subprocess.run([tmp_path / "scripts" / "write-manifests"], check=True)

    written = [path for path in (tmp_path / "deploy").rglob("*.yaml") if path.is_file()]
    assert len(written) > 2 * len(list((DEPLOY / "manifests").iterdir()))
    for fresh in written:
        present = DEPLOY / fresh.relative_to(tmp_path / "deploy")
        assert present.read_text() == fresh.read_text(), "run scripts/write-manifests"


def test_all_containers_run_the_image_of_this_checkout_without_writing_to_its_root() -> None:
    for pod in pods().values():
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            assert container["image"] == "limpet.dev/limpet:dev"
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]


def test_the_agents_pod_has_no_power_that_the_systemd_unit_lacks() -> None:
    (agent,) = pods()["limpet-agent"]["containers"]
    added = agent["securityContext"]["capabilities"]["add"]

    assert {f"CAP_{each}" for each in added} < set(CAPABILITIES)


def test_every_path_that_an_agent_keeps_things_at_is_the_nodes() -> None:
    pod = pods()["limpet-agent"]
    (agent,) = pod["containers"]
    volumes = {each["name"]: each.get("hostPath", {}).get("path") for each in pod["volumes"]}
    mounted = {each["mountPath"]: volumes[each["name"]] for each in agent["volumeMounts"]}
    folders = Settings().folders

    for folder in (folders.state_dir, folders.data_dir, folders.run_dir, folders.socket.parent):
        assert mounted[str(folder)] == str(folder)


def test_each_added_capability_has_its_reason_beside_it() -> None:
    text = (DEPLOY / "manifests" / "30-agent.yaml").read_text()

    named = re.findall(r"^ +- [A-Z_]+(.*)$", text, re.MULTILINE)
    assert len(named) == 5
    assert all(rest.startswith("  # ") for rest in named)


def test_controllers_run_at_the_edge_only_where_there_is_nothing_else() -> None:
    """Nodes with the agent as a service are those of the edge, behind a NAT of their site."""
    affinity = pods()["limpet-controller"]["affinity"]["nodeAffinity"]
    wished = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    (agents,) = pods()["limpet-agent"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]

    assert [each["preference"] for each in sorted(wished, key=lambda each: each["weight"])] == [
        agents,
        {
            "matchExpressions": [
                {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}
            ]
        },
    ]


def _leaves(values: dict[str, Any], before: str = "") -> Iterator[str]:
    """Whole name of each value that a person sets; a map with content is a folder of them."""
    for key, value in values.items():
        if isinstance(value, dict) and value and key != "labels":
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield before + key


def test_each_value_of_the_chart_has_a_row_in_the_documentation_and_nothing_else_has() -> None:
    page = (CHECKOUT / "docs" / "kubernetes.md").read_text()
    table = page.split("| value | by itself | what it is |", 1)[1].split("\n\n", 1)[0]
    cells = [line.split(" | ") for line in table.splitlines()[2:]]
    told = [name for first, *_ in cells for name in re.findall(r"`([\w.]+)`", first)]
    values = yaml.safe_load((DEPLOY / "chart" / "values.yaml").read_text())

    assert sorted(told) == sorted(_leaves(values))
    for first, by_itself, meaning in cells:
        assert meaning.removesuffix(" |"), first
        for name in re.findall(r"`([\w.]+)`", first):
            default = values
            for key in name.split("."):
                default = default[key]
            if default != "" or by_itself == '`""`':
                shown = re.search(r"`([^`]+)`", by_itself)
                assert shown, first
                assert yaml.safe_load(shown[1]) == default, first


@pytest.mark.parametrize("name", ["agent", "controller"])
def test_the_chart_has_the_manifests_settings_in_a_form_that_each_helm_reads(name: str) -> None:
    """TOML is read from Helm 3.17 on; before, the whole chart could not be read for that word."""
    templates = DEPLOY / "chart" / "templates"
    texts = {path.name: path.read_text() for path in templates.iterdir()}
    assert not [each for each, text in texts.items() if re.search(r"\b(from|to)Toml\b", text)]

    (defined,) = re.findall(
        rf'define "limpet\.{name}\.settings" \}}\}}\n(.*?)\{{\{{- end',
        "".join(texts.values()),
        re.S,
    )
    (told,) = [each for each in objects() if f"{name}.toml" in each.get("data", {})]
    wanted = tomllib.loads(told["data"][f"{name}.toml"])
    assert json.loads(defined.replace("{{ .Release.Namespace }}", "limpet-system")) == wanted
