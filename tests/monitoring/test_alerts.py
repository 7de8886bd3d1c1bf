"""Each alert fires when it should and not before, and nothing else does; by promtool.

A healthy cluster of two nodes, a controller and names is what each case starts from, and a case
says which of its figures are others.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

from limpet.cli.main import app
from tests.monitoring.prometheus import ALERTS, CHECKOUT, program, rules

AGENT = '{job="limpet-agent", instance="a"%s}'
OTHER = '{job="limpet-agent", instance="b"%s}'
CLOUD = '{job="limpet-controller", instance="c"%s}'
NAMES = '{job="limpet-dns", instance="a"%s}'


def series(name: str, where: str, **labels: str) -> str:
    more = "".join(f', {key}="{value}"' for key, value in labels.items())
    return name + where % more


def of_agent(where: str) -> dict[str, str]:
    names: dict[str, float] = {
        "ready": 1,
        "disk_trouble": 0,
        "findings": 0,
        "pod_forged_packets": 3,
        "forged_packets": 5,
        "policy_dropped_packets": 7,
        "policies_troubled": 0,
        "tunnel_trouble": 0,
        "relay_trouble": 0,
        "controller_connected": 1,
        "controller_refuses": 0,
        "cloned": 0,
        "removed": 0,
        "peer_claims": 0,
        "former_key_documents": 0,
        "services_troubled": 0,
        "services_left_out": 0,
        "services_connected": 1,
        "silent_peers": 0,
    }
    found = {series(f"limpet_agent_{name}", where): f"{value}x500" for name, value in names.items()}
    for rung, count in {"route": 1, "relay": 0, "unreached": 0, "apart": 5}.items():
        found[series("limpet_agent_peers", where, rung=rung)] = f"{count}x500"
    for state, count in {"live": 100, "bound": 20, "free": 134}.items():
        found[series("limpet_agent_addresses", where, segment="10.0.0.0/24", state=state)] = (
            f"{count}x500"
        )
    return found | {
        series("limpet_agent_disk_free_bytes", where, folder="state"): "1e9x500",
        series("limpet_agent_disk_size_bytes", where, folder="state"): "8e9x500",
        series("limpet_agent_disk_free_files", where, folder="state"): "1e5x500",
        series("up", where): "1x500",
        series("limpet_agent_uptime_seconds", where): "0+60x500",
        series("limpet_agent_last_round_failures", where, part="node"): "0x500",
        series("limpet_agent_snapshot_revision", where): "100+1x500",
        series("limpet_agent_cluster_key_info", where, key="ab12"): "1x500",
        series("limpet_agent_info", where, version="1.0.0"): "1x500",
        series("limpet_agent_relays", where, state="answering"): "1x500",
        series("limpet_agent_relays", where, state="silent"): "1x500",
        series("limpet_agent_peer_round_trip_seconds", where, rung="route", quantile="0.5"): (
            "0.002x500"
        ),
    }


def healthy() -> dict[str, str]:
    """Values by series, a minute apart."""
    return {
        **of_agent(AGENT),
        **of_agent(OTHER),
        series("up", CLOUD): "1x500",
        series("limpet_controller_leads", CLOUD): "1x500",
        series("limpet_controller_info", CLOUD, version="1.0.0"): "1x500",
        series("limpet_controller_revision", CLOUD): "100+1x500",
        series("limpet_controller_recovering", CLOUD): "0x500",
        series("limpet_controller_store_trouble", CLOUD): "0x500",
        series("limpet_controller_disk_free_bytes", CLOUD, folder="state"): "1e7x500",
        series("limpet_controller_disk_size_bytes", CLOUD, folder="state"): "5e7x500",
        series("limpet_controller_disk_free_files", CLOUD, folder="state"): "1e5x500",
        series("limpet_controller_cloned_nodes", CLOUD): "0x500",
        series("limpet_controller_addresses_held_twice", CLOUD): "0x500",
        series("limpet_controller_cluster_key_info", CLOUD, key="ab12"): "1x500",
        series("limpet_controller_segments", CLOUD, family="ipv4", state="held"): "100x500",
        series("limpet_controller_segments", CLOUD, family="ipv4", state="resting"): "6x500",
        series("limpet_controller_segments", CLOUD, family="ipv4", state="free"): "150x500",
        series("up", NAMES): "1x500",
        series("limpet_dns_info", NAMES, version="1.0.0"): "1x500",
        series("limpet_dns_services_known", NAMES): "1x500",
        series("limpet_dns_trouble", NAMES): "0x500",
        series("limpet_dns_upstream_up", NAMES, upstream="192.0.2.53"): "1x500",
        series("limpet_dns_questions_total", NAMES, outcome="cluster"): "0+600x500",
        series("limpet_dns_questions_total", NAMES, outcome="forwarded"): "0+60x500",
        series("limpet_dns_questions_total", NAMES, outcome="failed"): "0+3x500",
    }


class Case(NamedTuple):
    """What is another than in the healthy cluster; None: it is not there at all."""

    changed: Mapping[str, str | None]
    beside: tuple[str, ...] = ()
    """Other alerts that fire then, too."""


def agent(name: str, values: str, **labels: str) -> dict[str, str | None]:
    return {series(f"limpet_agent_{name}", AGENT, **labels): values}


def cloud(name: str, values: str | None, **labels: str) -> dict[str, str | None]:
    return {series(f"limpet_controller_{name}", CLOUD, **labels): values}


def names(name: str, values: str, **labels: str) -> dict[str, str | None]:
    return {series(f"limpet_dns_{name}", NAMES, **labels): values}


def addresses(live: int, bound: int, free: int) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for state, count in {"live": live, "bound": bound, "free": free}.items():
        found |= agent("addresses", f"{count}x500", segment="10.0.0.0/24", state=state)
    return found


# A fault begins at the ninetieth sample, so that what is compared with the past has one.
BEGINS = 90
CASES = {
    "LimpetAgentDown": Case({series("up", AGENT): "1x89 0x400"}),
    "LimpetNodeNotReady": Case(agent("ready", "1x89 0x400")),
    "LimpetNodeNotAsPlanned": Case(agent("last_round_failures", "0x89 2x400", part="node")),
    "LimpetAgentRestarts": Case(
        agent("uptime_seconds", "0+60x89" + " 0+60x4" * 5 + " 0+60x400"),
    ),
    "LimpetDefect": Case(agent("unexpected_errors_total", "_x90 1x400", part="metrics")),
    "LimpetDiskTrouble": Case(agent("disk_trouble", "0x89 1x400")),
    "LimpetDiskNearlyFull": Case(agent("disk_free_bytes", "1e9x89 1e6x400", folder="state")),
    "LimpetAddressRecords": Case(agent("findings", "0x89 1x400")),
    "LimpetPodForges": Case(agent("pod_forged_packets", "0x89 0+300x400")),
    "LimpetAddressesNearlyGone": Case(addresses(240, 0, 14)),
    "LimpetAddressesGone": Case(addresses(254, 0, 0)),
    "LimpetSegmentsNearlyGone": Case(
        {
            **cloud("segments", "240x500", family="ipv4", state="held"),
            **cloud("segments", "10x500", family="ipv4", state="free"),
        }
    ),
    "LimpetAddressHeldTwice": Case(cloud("addresses_held_twice", "0x89 2x400")),
    "LimpetPeersUnreached": Case(
        {
            **agent("peers", "9x500", rung="route"),
            **agent("silent_peers", "0x89 1x400"),
        }
    ),
    "LimpetNodeIsolated": Case(
        agent("peers", "0x89 5x400", rung="unreached"), beside=("LimpetPeersUnreached",)
    ),
    "LimpetOnRelayLong": Case(agent("peers", "0x89 2x400", rung="relay")),
    "LimpetRoundTripLong": Case(
        agent("peer_round_trip_seconds", "0.002x89 0.9x400", rung="route", quantile="0.5")
    ),
    "LimpetTunnelTrouble": Case(agent("tunnel_trouble", "0x89 1x400")),
    "LimpetNoRelay": Case(agent("relays", "1x89 0x400", state="answering")),
    "LimpetRelayTrouble": Case(agent("relay_trouble", "0x89 1x400")),
    "LimpetForgedPackets": Case(agent("forged_packets", "0x89 0+300x400")),
    "LimpetControllerLost": Case(agent("controller_connected", "1x89 0x400")),
    "LimpetControllerRefuses": Case(agent("controller_refuses", "0x89 1x400")),
    "LimpetControllerNotScraped": Case(cloud("leads", "1x89")),
    "LimpetNoLeader": Case(cloud("leads", "1x89 0x400")),
    "LimpetTwoLeaders": Case(
        {'limpet_controller_leads{job="limpet-controller", instance="d"}': "0x89 1x400"}
    ),
    "LimpetControllerStore": Case(cloud("store_trouble", "0x89 1x400")),
    "LimpetRecovering": Case(cloud("recovering", "0x89 1x400")),
    "LimpetNodeBehind": Case(agent("snapshot_revision", "100+1x89 189x400")),
    "LimpetVersionsMixed": Case(
        {
            **agent("info", "1x89 _x400", version="1.0.0"),
            **agent("info", "_x90 1x400", version="1.1.0"),
        }
    ),
    "LimpetCloned": Case(cloud("cloned_nodes", "0x89 1x400")),
    "LimpetClaims": Case(agent("peer_claims", "0x89 1x400")),
    "LimpetFormerKey": Case(agent("former_key_documents", "0x89 1x400")),
    "LimpetKeyBehind": Case(
        {
            **agent("cluster_key_info", "1x89 _x400", key="ab12"),
            **agent("cluster_key_info", "_x90 1x400", key="cd34"),
        }
    ),
    "LimpetNodeRemoved": Case(agent("removed", "0x89 1x400")),
    "LimpetServicesTroubled": Case(agent("services_troubled", "0x89 1x400")),
    "LimpetServicesLeftOut": Case(agent("services_left_out", "0x89 4x400")),
    "LimpetServicesStale": Case(agent("services_connected", "1x89 0x400")),
    "LimpetPoliciesTroubled": Case(agent("policies_troubled", "0x89 1x400")),
    "LimpetPoliciesDrop": Case(agent("policy_dropped_packets", "0x89 0+1200x400")),
    "LimpetNamesDown": Case({series("up", NAMES): "1x89 0x400"}),
    "LimpetNamesUnknown": Case(names("services_known", "1x89 0x400")),
    "LimpetNamesTrouble": Case(names("trouble", "0x89 1x400")),
    "LimpetNamesUpstream": Case(names("upstream_up", "1x89 0x400", upstream="192.0.2.53")),
    "LimpetNamesFail": Case(names("questions_total", "0x89 0+90x400", outcome="failed")),
}
OTHERS_OFF = {
    "the other one of two is off": {
        **agent("peers", "1x89 0x400", rung="route"),
        **agent("peers", "0x89 1x400", rung="unreached"),
    },
    "two of three are off": {
        **agent("peers", "2x500", rung="route"),
        **agent("silent_peers", "0x89 2x400"),
    },
}
"""A node of few cannot tell whose the trouble is."""
_NEVER_SILENT = {"LimpetAddressesNearlyGone", "LimpetAddressesGone", "LimpetSegmentsNearlyGone"}
"""Their cases are so from the beginning."""


_LONG_M = 60


def minutes(duration: str) -> int:
    """Of Prometheus' spelling."""
    return int(duration[:-1]) * {"m": 1, "h": 60}[duration[-1]]


def firing(at_m: int, *alerts: str) -> dict[str, object]:
    """These fire at that minute, and no others."""
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(alerts)]
    return {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": f"{at_m}m",
        "exp_samples": samples,
    }


def case(name: str, waits_m: int, interval_m: int) -> dict[str, object]:
    """`waits_m`: how long it has to hold; `interval_m`: between samples."""
    found = CASES[name]
    begins_m = 0 if name in _NEVER_SILENT else BEGINS * interval_m
    # What looks at an hour of the past takes that hour to say it.
    looks_m = 75 if name == "LimpetNodeBehind" else 20
    silent = [begins_m - interval_m] if begins_m else []
    if begins_m and waits_m > interval_m:
        silent.append(begins_m + waits_m - interval_m)
    return {
        "name": name,
        "interval": f"{interval_m}m",
        "input_series": listed({**healthy(), **found.changed}),
        "promql_expr_test": [
            *map(firing, silent),
            firing(begins_m + waits_m + looks_m, name, *found.beside),
        ],
    }


def listed(values: Mapping[str, str | None]) -> list[dict[str, str]]:
    return [{"series": name, "values": value} for name, value in values.items() if value]


@pytest.mark.parametrize("interval_m", [1, 4])
def test_each_fires_when_it_should_and_nothing_else_does(tmp_path: Path, interval_m: int) -> None:
    """What has to hold for a day is looked at less often: it is a day for promtool, too."""
    waits_m = {rule["alert"]: minutes(rule.get("for", "0m")) for rule in rules()}
    assert set(CASES) == set(waits_m), "each alert has a case"
    tests = [
        case(name, waits, interval_m)
        for name, waits in waits_m.items()
        if (waits > _LONG_M) is (interval_m > 1)
    ]
    nothing = {
        "name": "healthy",
        "interval": f"{interval_m}m",
        "input_series": listed(healthy()),
        "promql_expr_test": [firing(200 * interval_m)],
    }
    few = [
        {
            "name": name,
            "interval": f"{interval_m}m",
            "input_series": listed({**healthy(), **changed}),
            "promql_expr_test": [firing(200 * interval_m, "LimpetPeersUnreached")],
        }
        for name, changed in OTHERS_OFF.items()
    ]
    file = tmp_path / "tests.yaml"
    whole = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": f"{interval_m}m",
        "tests": [*tests, nothing, *few],
    }
    file.write_text(json.dumps(whole), encoding="utf-8")

    done = subprocess.run(
        [program("promtool"), "test", "rules", file], capture_output=True, text=True
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_takes_them() -> None:
    done = subprocess.run(
        [program("promtool"), "check", "rules", "--lint-fatal", ALERTS],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_each_says_what_it_is_and_what_to_do(rule: Mapping[str, dict[str, str]]) -> None:
    said = rule["annotations"]

    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(said) == {"summary", "description", "what_to_do", "runbook_url"}
    assert len(said["summary"]) < 120
    page, _, section = said["runbook_url"].partition("#")
    assert f"## {rule['alert']}\n" in (CHECKOUT / page).read_text(encoding="utf-8")
    assert section == str(rule["alert"]).lower()


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_each_command_that_it_names_exists(rule: Mapping[str, dict[str, str]]) -> None:
    for words in re.findall(r"`limpet ([^`]*)`", rule["annotations"]["what_to_do"]):
        assert _is_a_command(words.split()), f"limpet {words}"


def _is_a_command(words: list[str]) -> bool:
    command = typer.main.get_command(app)
    while words and hasattr(command, "get_command") and not words[0].startswith("-"):
        command = command.get_command(None, words.pop(0))
        if command is None:
            return False
    options = {option for parameter in command.params for option in parameter.opts}
    return {word for word in words if word.startswith("-")} <= options
