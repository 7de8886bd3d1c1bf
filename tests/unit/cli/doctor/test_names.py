"""What doctor makes of how names are answered, and of whom pods ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from limpet import __version__
from limpet.base.settings import DnsSettings
from limpet.cli.doctor.findings import Level
from limpet.cli.doctor.names.examine import SANDBOXES, find_elsewhere
from limpet.cli.doctor.names.findings import (
    address_findings,
    kubelet_findings,
    pod_findings,
    status_findings,
)
from limpet.dns.status.answers import NamesStatus, Upstream

USED = Upstream(address="192.0.2.53", state="used")
HEALTHY = NamesStatus(
    version=__version__,
    pid=7,
    pod="",
    trouble="",
    services=12,
    silent=0,
    gone=0,
    kept=0,
    kept_bytes=0,
    questions={},
    upstreams=[USED],
)
LOOP = "left out: it sends our questions back to us"
AWAY = "does not answer (3 times in a row)"
OURS = ("169.254.20.10", "fd5b:9ad1:7e3c::53")


def test_what_is_well_is_said_in_a_line() -> None:
    (found,) = status_findings(HEALTHY)

    assert (found.level, found.what) == (Level.OK, "names of 12 Services are answered")


@pytest.mark.parametrize(
    ("change", "level", "said"),
    [
        ({"version": "0.0.1"}, Level.WARN, "answered by version 0.0.1"),
        ({"services": None}, Level.ERROR, "no Service of the cluster was ever heard of"),
        ({"trouble": "services stay as they were: cut"}, Level.ERROR, "services stay as they were"),
        ({"upstreams": []}, Level.WARN, "no name server is known"),
        ({"upstreams": [Upstream(address="a", state=LOOP)]}, Level.ERROR, "back to us"),
        ({"upstreams": [Upstream(address="a", state=AWAY)]}, Level.ERROR, "a does not answer"),
        (
            {"upstreams": [USED, Upstream(address="a", state=AWAY)]},
            Level.WARN,
            "a does not answer",
        ),
    ],
    ids=["version", "nothing heard", "stale", "no upstream", "loop", "away", "one of two away"],
)
def test_what_is_wrong_is_said_with_what_to_do(
    change: dict[str, Any], level: Level, said: str
) -> None:
    found = [
        each for each in status_findings(replace(HEALTHY, **change)) if each.level is not Level.OK
    ]

    assert [each.level for each in found] == [level]
    assert said in found[0].what
    assert found[0].why
    assert found[0].advice


def test_an_address_where_nobody_answers_is_an_error() -> None:
    (found,) = address_findings(["fd5b:9ad1:7e3c::53"])

    assert (found.level, "fd5b:9ad1:7e3c::53" in found.what) == (Level.ERROR, True)


def test_a_kubelet_that_tells_pods_to_ask_others_is_told() -> None:
    assert not [*kubelet_findings(None, OURS, "/k")]
    assert not [*kubelet_findings(["10.96.0.10", "169.254.20.10"], OURS, "/k")]
    for told, words in ((["10.96.0.10"], "ask 10.96.0.10 for names (/k)"), ([], "ask nobody")):
        (found,) = kubelet_findings(told, OURS, "/k")
        assert words in found.what
        assert 'clusterDNS: ["169.254.20.10"]' in found.advice


def test_pods_that_look_for_names_of_the_cluster_elsewhere_are_named(tmp_path: Path) -> None:
    def sandbox(name: str, resolv_conf: str) -> None:
        path = tmp_path / SANDBOXES.replace("*", f"id-{name}")
        path.parent.mkdir(parents=True)
        path.write_text(resolv_conf)
        (path.parent / "hostname").write_text(f"{name}\n")

    search = "search default.svc.cluster.local svc.cluster.local cluster.local\n"
    sandbox("here", f"nameserver 169.254.20.10\n{search}")
    sandbox("both", f"nameserver 10.96.0.10\nnameserver 169.254.20.10\n{search}")
    sandbox("old", f"nameserver 10.96.0.10\n{search}")
    sandbox("host", "nameserver 192.0.2.53\nsearch example.com\n")

    elsewhere = find_elsewhere((tmp_path, tmp_path / "missing"), DnsSettings())

    assert elsewhere == {"old": ("10.96.0.10",)}
    (found,) = pod_findings(elsewhere, "cluster.local")
    words = "names of cluster.local are asked of others than this node by 1 pod: old (10.96.0.10)"
    assert words in found.what
    assert not [*pod_findings({}, "cluster.local")]
    many = {f"p{n}": ("10.96.0.10",) for n in range(9)}
    assert "and 6 more" in next(pod_findings(many, "cluster.local")).what
