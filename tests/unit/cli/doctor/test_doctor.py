"""What doctor makes of the agent's words, and of a machine without Limpet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from limpet import __version__
from limpet.agent.client import AnotherVersion, typed
from limpet.agent.settings import Settings
from limpet.agent.status import Status
from limpet.cli.doctor.doctor import agent_findings, unheard
from limpet.cli.doctor.examine import examine_network_daemons
from limpet.cli.doctor.findings import Level

SOUND: dict[str, Any] = {
    "version": __version__,
    "pid": 7,
    "uptime_s": 9.0,
    "ready": True,
    "cluster": None,
    "bridge": "limpet0",
    "mtu_bytes": 1450,
    "cluster_cidrs": [],
    "reasons": [],
    "attachments": 3,
    "segments": [
        {"prefix": "10.244.7.0/24", "size": 253, "live": 3, "resting": 0, "bound": 9, "free": 241}
    ],
    "networks": [],
    "unknown_keys": [],
    "findings": [],
    "last_round": {"changes": 0, "failed": [], "took_ms": 1.0},
}


def levels(**changes: Any) -> dict[str, str]:
    """What is not `ok`, with its level."""
    found = agent_findings(typed({**SOUND, **changes}, Status))
    return {f.what: f.level.value for f in found if f.level is not Level.OK}


def segment(free: int, bound: int) -> list[dict[str, Any]]:
    return [{**SOUND["segments"][0], "free": free, "bound": bound}]


def test_a_sound_agent_is_all_ok() -> None:
    assert levels() == {}


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({"ready": False, "reasons": ["no segments"]}, "error", "no segments"),
        ({"version": "0.0.1"}, "warn", "0.0.1"),
        (
            {"last_round": {"changes": 1, "failed": ["set up bridge x: EPERM"], "took_ms": 1}},
            "error",
            "set up bridge x: EPERM",
        ),
        ({"segments": segment(free=0, bound=0)}, "error", "10.244.7.0/24"),
        ({"segments": segment(free=20, bound=0)}, "warn", "20 of 253"),
        (
            {"findings": [{"path": "/x/10.0.0.1", "problem": "is empty", "advice": "look"}]},
            "warn",
            "/x/10.0.0.1: is empty",
        ),
        ({"unknown_keys": [{"network": "edge", "key": "mut"}]}, "warn", "'mut'"),
    ],
)
def test_what_is_wrong_is_said_with_its_level(
    changes: dict[str, Any], level: str, words: str
) -> None:
    ((what, found),) = levels(**changes).items()

    assert found == level
    assert words in what


def test_addresses_of_absent_pods_count_as_free() -> None:
    assert levels(segments=segment(free=0, bound=240)) == {}


@pytest.mark.parametrize("lacking", [{"ready"}, {"segments", "findings"}])
def test_an_agent_that_speaks_as_another_version_does_is_to_be_restarted(lacking: set[str]) -> None:
    status = {key: value for key, value in SOUND.items() if key not in lacking}

    with pytest.raises(AnotherVersion) as failure:
        typed(status, Status)
    found = unheard(Settings(), failure.value)

    assert found.level is Level.ERROR
    assert "the agent that runs is older or newer than this command" in found.what
    assert "systemctl restart limpet-agent" in found.advice


def test_every_finding_that_is_not_ok_says_why_and_what_to_do() -> None:
    changes = {
        "ready": False,
        "reasons": ["x"],
        "version": "0",
        "segments": segment(0, 0) + segment(5, 0),
        "findings": [{"path": "/x", "problem": "y", "advice": "z"}],
        "unknown_keys": [{"network": "n", "key": "k"}],
        "last_round": {"changes": 0, "failed": ["x"], "took_ms": 0},
    }

    for finding in agent_findings(typed({**SOUND, **changes}, Status)):
        assert finding.level is Level.OK or (finding.why and finding.advice)


def test_programs_that_set_networks_up_are_named_until_they_are_told_of_us(tmp_path: Path) -> None:
    (tmp_path / "run/NetworkManager").mkdir(parents=True)
    (tmp_path / "run/systemd/netif").mkdir(parents=True)
    assert len(list(examine_network_daemons("limpet0", tmp_path))) == 2

    for path, text in (
        ("etc/NetworkManager/conf.d/limpet.conf", "unmanaged-devices=interface-name:lim*"),
        ("etc/systemd/networkd.conf.d/limpet.conf", "[Network]\nManageForeignRoutes=no\n"),
    ):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    assert list(examine_network_daemons("limpet0", tmp_path)) == []
