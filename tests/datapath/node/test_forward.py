"""Another's FORWARD chain that drops: seen, opened for our bridge, left as it was."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from limpet.base import ownership
from limpet.base.ownership import NFT_POLICY_TABLE
from limpet.datapath.node.forward import (
    HandleNftables,
    ensure_forward_accept,
    read_forward_chains,
    remove_forward_accept,
    unreadable_legacy_tables,
)
from tests.beds.namespaces import Netns, NetnsFactory

CHECKOUT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module", autouse=True)
def _runtimes() -> None:
    """The iptables commands are in build/runtimes."""
    subprocess.run([CHECKOUT / "scripts" / "fetch-runtimes"], check=True)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_netns: NetnsFactory) -> Netns:
    for name, value in runtimes_environment(CHECKOUT, tmp_path).items():
        monkeypatch.setenv(name, value)
    return make_netns()


def runtimes_environment(checkout: Path, folder: Path) -> dict[str, str]:
    """Environment in which the unpacked iptables commands run, with a lock of their own."""
    runtimes = checkout / "build" / "runtimes" / "usr"
    (libraries,) = (runtimes / "lib").glob("*-linux-gnu")
    return {
        "PATH": f"{runtimes}/sbin:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(libraries),
        "XTABLES_LIBDIR": str(libraries / "xtables"),
        "XTABLES_LOCKFILE": str(folder / "xtables.lock"),
    }


@contextlib.contextmanager
def nft_in(node: Netns) -> Iterator[HandleNftables]:
    with node.entered():
        nft = HandleNftables()
        try:
            yield nft
        finally:
            nft.close()


def causes(node: Netns) -> dict[str, str]:
    with nft_in(node) as nft:
        return {str(chain): chain.cause for chain in read_forward_chains(nft)}


def test_a_node_without_filters_has_no_forward_chain(node: Netns) -> None:
    assert causes(node) == {}


def test_no_table_of_ours_is_anothers(node: Netns) -> None:
    """That of policies drops, and is to."""
    ours = [value for name, value in vars(ownership).items() if name.startswith("NFT_")]
    assert NFT_POLICY_TABLE in ours
    for table in ours:
        chain = "type filter hook forward priority filter; policy drop;"
        node.run("nft", f"add table inet {table}; add chain inet {table} forward {{ {chain} }}")

    assert causes(node) == {}
    with nft_in(node) as nft:
        assert not ensure_forward_accept(nft, ["limpet0"])


def test_a_policy_of_drop_is_found_in_every_family(node: Netns) -> None:
    for family in ("ip", "ip6", "inet"):
        node.run("nft", f"add table {family} theirs")
        node.run(
            "nft",
            f"add chain {family} theirs walk "
            "{ type filter hook forward priority 7; policy drop; }",
        )

    assert causes(node) == {
        f"nftables chain {family} theirs walk": "policy drop" for family in ("ip", "ip6", "inet")
    }


def test_a_last_rule_that_drops_is_found_also_through_a_jump(node: Netns) -> None:
    node.run(
        "nft",
        """
        table inet firewalld {
            chain refuse {
                counter log prefix "no; way " reject with icmpx type admin-prohibited
            }
            chain walk {
                type filter hook forward priority 10; policy accept;
                ct state established,related accept
                jump refuse
            }
        }
        """,
    )

    (cause,) = causes(node).values()
    assert cause.startswith("its last rule is reject with icmpx")


def test_a_chain_that_drops_only_some_is_not_taken_for_one_that_drops(node: Netns) -> None:
    node.run(
        "nft",
        """
        table inet theirs {
            chain walk {
                type filter hook forward priority 0; policy accept;
                ct state invalid drop
                ip saddr { 192.0.2.1, 192.0.2.2, 192.0.2.3, 192.0.2.4, 192.0.2.5, 192.0.2.6 } drop
            }
            chain input { type filter hook input priority 0; policy drop; }
        }
        """,
    )

    assert causes(node) == {"nftables chain inet theirs walk": ""}


def test_our_rules_let_pods_through_and_stand_in_the_chain_once(
    node: Netns, make_netns: NetnsFactory
) -> None:
    pod, outside = make_netns(), make_netns()
    build_router(node, pod, outside)
    node.run("iptables-nft", "-P", "FORWARD", "DROP")
    node.run("iptables-nft", "-A", "FORWARD", "-s", "192.0.2.77", "-j", "ACCEPT")
    before = node.run("iptables-nft", "-S", "FORWARD")
    assert not reaches(pod, "198.51.100.2")

    with nft_in(node) as nft:
        assert ensure_forward_accept(nft, ["limpet0"])
        assert not ensure_forward_accept(nft, ["limpet0"])

        assert reaches(pod, "198.51.100.2")
        assert reaches(outside, "192.0.2.2")
        assert node.run("iptables-nft", "-S", "FORWARD").splitlines() == [
            "-P FORWARD DROP",
            "-A FORWARD -o limpet0 -m comment --comment limpet -j ACCEPT",
            "-A FORWARD -i limpet0 -m comment --comment limpet -j ACCEPT",
            "-A FORWARD -s 192.0.2.77/32 -j ACCEPT",
        ]
        assert "limpet0" in node.run("iptables-nft", "-nvL", "FORWARD")
        assert "limpet0" in node.run("iptables-nft-save")

        assert remove_forward_accept(nft) == ["nftables chain ip filter FORWARD"]
    assert node.run("iptables-nft", "-S", "FORWARD") == before
    assert not reaches(pod, "198.51.100.2")


def test_rules_follow_the_bridges_and_go_when_the_chain_drops_no_more(node: Netns) -> None:
    node.run("iptables-nft", "-P", "FORWARD", "DROP")
    with nft_in(node) as nft:
        ensure_forward_accept(nft, ["limpet0", "limpet1"])
        assert ensure_forward_accept(nft, ["limpet1", "limpet2"])
        (chain,) = read_forward_chains(nft)
        assert [chain.accepts(f"limpet{n}") for n in (0, 1, 2)] == [False, True, True]
        assert len(chain.rules) == 4

        node.run("iptables-nft", "-P", "FORWARD", "ACCEPT")
        assert ensure_forward_accept(nft, ["limpet1", "limpet2"])
        (chain,) = read_forward_chains(nft)
        assert chain.rules == ()


def test_iptables_legacy_chains_are_opened_and_left_as_they_were(node: Netns) -> None:
    for command in ("iptables-legacy", "ip6tables-legacy"):
        node.run(command, "-N", "REFUSE")
        node.run(command, "-A", "REFUSE", "-j", "REJECT")
        node.run(command, "-A", "FORWARD", "-i", "eth7", "-j", "ACCEPT")
        node.run(command, "-A", "FORWARD", "-m", "comment", "--comment", "the rest", "-j", "REFUSE")
    before = node.run("iptables-legacy", "-S"), node.run("ip6tables-legacy", "-S")
    found = causes(node)
    assert found == {
        "iptables-legacy chain FORWARD": "its last rule is REJECT",
        "ip6tables-legacy chain FORWARD": "its last rule is REJECT",
    }

    with nft_in(node) as nft:
        assert ensure_forward_accept(nft, ["limpet0"])
        assert not ensure_forward_accept(nft, ["limpet0"])
        assert all(chain.accepts("limpet0") for chain in read_forward_chains(nft))
        rules = node.run("iptables-legacy", "-S", "FORWARD").splitlines()
        assert rules[1:3] == [
            "-A FORWARD -o limpet0 -m comment --comment limpet -j ACCEPT",
            "-A FORWARD -i limpet0 -m comment --comment limpet -j ACCEPT",
        ]
        assert len(remove_forward_accept(nft)) == 2
    assert (node.run("iptables-legacy", "-S"), node.run("ip6tables-legacy", "-S")) == before


def test_legacy_tables_without_their_command_are_named(
    node: Netns, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    node.run("iptables-legacy", "-P", "FORWARD", "DROP")

    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        with node.entered():
            assert unreadable_legacy_tables() == ["iptables-legacy"]
        assert causes(node) == {}


def build_router(node: Netns, pod: Netns, outside: Netns) -> None:
    """pod 192.0.2.2 - limpet0 of the node - 198.51.100.2 outside."""
    node.run("ip", "link", "add", "limpet0", "type", "bridge")
    node.run("ip", "link", "add", "p0", "type", "veth", "peer", "name", "eth0", "netns", pod.name)
    node.run("ip", "link", "add", "up0", "type", "veth", "peer", "eth0", "netns", outside.name)
    node.run("ip", "link", "set", "p0", "master", "limpet0", "up")
    for link, address in (("limpet0", "192.0.2.1/24"), ("up0", "198.51.100.1/24")):
        node.run("ip", "address", "add", address, "dev", link)
        node.run("ip", "link", "set", link, "up")
    node.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
    for netns, prefix in ((pod, "192.0.2"), (outside, "198.51.100")):
        netns.run("ip", "address", "add", f"{prefix}.2/24", "dev", "eth0")
        netns.run("ip", "link", "set", "eth0", "up")
        netns.run("ip", "route", "add", "default", "via", f"{prefix}.1")


def reaches(netns: Netns, address: str) -> bool:
    ping = ["nsenter", f"--net={netns.path}", "ping", "-q", "-c1", "-W1", address]
    return subprocess.run(ping, capture_output=True, timeout=30).returncode == 0
