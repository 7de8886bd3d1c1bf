"""kube-proxy is found by what it leaves in the kernel, whichever iptables it has."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from limpet.datapath.services.kube_proxy import find_kube_proxy
from tests.beds.namespaces import Netns, NetnsFactory
from tests.datapath.node.test_forward import CHECKOUT, runtimes_environment

LISTED = Path("/proc/thread-self/net/ip_tables_names")
"""Tables of the older iptables, of the thread's network namespace."""


@pytest.fixture(scope="module", autouse=True)
def _runtimes() -> None:
    """The iptables commands are in build/runtimes."""
    subprocess.run([CHECKOUT / "scripts" / "fetch-runtimes"], check=True)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_netns: NetnsFactory) -> Netns:
    for name, value in runtimes_environment(CHECKOUT, tmp_path).items():
        monkeypatch.setenv(name, value)
    return make_netns()


@pytest.fixture
def older(node: Netns) -> Netns:
    """A node whose kernel has the older iptables."""
    if not LISTED.exists():
        pytest.skip("this kernel has no tables of the older iptables")
    return node


def found(node: Netns) -> str:
    with node.entered():
        return find_kube_proxy()


def tables(node: Netns) -> str:
    with node.entered():
        return LISTED.read_text(encoding="ascii")


@pytest.mark.parametrize("table", ["nat", "filter"])
@pytest.mark.parametrize("name", ["iptables", "ip6tables"])
def test_its_chain_is_found_in_the_older_iptables_and_others_chains_are_not(
    older: Netns, name: str, table: str
) -> None:
    def legacy(*words: str) -> None:
        older.run(f"{name}-legacy", "-t", table, *words)

    legacy("-N", "OTHER")
    legacy("-A", "OTHER", "-m", "comment", "--comment", "KUBE-SERVICES", "-j", "RETURN")
    legacy("-N", "KUBE-SERVICES-OLD")
    assert found(older) == ""
    legacy("-N", "KUBE-SERVICES")
    assert found(older) == f"{name}-legacy chain KUBE-SERVICES"
    legacy("-X", "KUBE-SERVICES")
    assert found(older) == ""


def test_a_chain_among_more_rules_than_are_read_is_found_in_the_other_table(
    older: Netns, tmp_path: Path
) -> None:
    rules = tmp_path / "rules"
    lines = ["-A KUBE-SERVICES -m comment --comment some -j RETURN"] * 15_000
    nat = ["*nat", ":KUBE-SERVICES -", *lines, "COMMIT", ""]
    rules.write_text("\n".join(nat), encoding="ascii")
    older.run("iptables-legacy-restore", str(rules))
    assert found(older) == ""
    older.run("iptables-legacy", "-N", "KUBE-SERVICES")
    assert found(older) == "iptables-legacy chain KUBE-SERVICES"


def test_who_looks_for_it_makes_no_table_of_the_older_iptables(older: Netns) -> None:
    """It would track connections from then on."""
    assert found(older) == ""
    with older.entered():
        assert LISTED.read_text(encoding="ascii") == ""


def test_it_is_found_by_what_it_has_in_nftables_and_as_ipvs(node: Netns) -> None:
    assert found(node) == ""
    node.run("ip6tables-nft", "-t", "nat", "-N", "KUBE-SERVICES")
    assert found(node) == "ip6tables chain KUBE-SERVICES"
    node.run("iptables-nft", "-t", "nat", "-N", "KUBE-SERVICES")
    assert found(node) == "iptables chain KUBE-SERVICES"
    node.run("nft", "add table ip kube-proxy; add chain ip kube-proxy services")
    assert found(node) == "nftables table kube-proxy"
    node.run("ip", "link", "add", "kube-ipvs0", "type", "bridge")  # a dummy link in the field
    assert found(node) == "ipvs, with the link kube-ipvs0"
