"""Others' firewall rules: what is said of them is what becomes of packets.

For each ruleset a packet is sent with it, then the ruleset goes and a second one is sent: the first
was dropped if the second one is what arrives. Nothing waits for a packet that does not come.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from limpet.agent.settings import Settings
from limpet.base.node_state import NodeState
from limpet.base.ownership import TUNNEL_GROUP
from limpet.base.settings import DnsSettings, RelaySettings
from limpet.cli.doctor.cluster.relays import relay_port_findings
from limpet.cli.doctor.findings import Finding, Level
from limpet.cli.doctor.firewall.examine import examine_firewall
from limpet.cli.doctor.target import InboundPort
from limpet.datapath.node.forward import ensure_forward_accept
from tests.beds.namespaces import Netns, NetnsFactory
from tests.datapath.node.test_forward import CHECKOUT, _runtimes, nft_in, runtimes_environment
from tests.waiting import PATIENCE_S

__all__ = ["_runtimes"]

PORT = 25252
OUT_PORT = 25353
"""Of what the node sends: at the other one connection tracking would take packets for answers."""
NODE, OUTSIDE, POD, FAR_POD = "198.51.100.1", "198.51.100.2", "10.244.7.2", "10.244.9.2"
SETTINGS = Settings()
STATE = NodeState(
    segments=(ip_network("10.244.7.0/24"),), cluster_cidrs=(ip_network("10.244.0.0/16"),)
)


@dataclass(frozen=True, slots=True)
class World:
    """pod - limpet0 of the node - limwg0 - far pod; the node's up0 - outside."""

    node: Netns
    outside: Netns
    pod: Netns
    far: Netns
    sockets: dict[str, socket.socket]

    def nft(self, rules: str) -> None:
        self.node.run("nft", rules)

    def clear(self) -> None:
        self.node.run("nft", "flush ruleset")

    def arrives(self, sender: str, receiver: str, address: str) -> bool:
        """Whether a packet gets there; then there are no rules any more."""
        here, there = self.sockets[sender], self.sockets[receiver]
        with suppress(PermissionError):  # what an output chain drops is told to the sender
            here.sendto(b"first", (address, there.getsockname()[1]))
        self.clear()
        here.sendto(b"second", (address, there.getsockname()[1]))
        got = there.recv(64)
        if got == b"first":
            assert there.recv(64) == b"second"
        return got == b"first"

    def findings(
        self,
        *ports: InboundPort,
        allowed: bool = False,
        running: bool = True,
        settings: Settings = SETTINGS,
    ) -> list[Finding]:
        with self.node.entered():
            return list(examine_firewall(settings, STATE, ports, allowed=allowed, running=running))


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    factory = NetnsFactory()
    try:
        world = build(factory)
        yield world
        for opened in world.sockets.values():
            opened.close()
    finally:
        factory.close()


@pytest.fixture(autouse=True)
def _environment(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in runtimes_environment(CHECKOUT, tmp_path).items():
        monkeypatch.setenv(name, value)
    yield
    world.clear()


def build(make: NetnsFactory) -> World:
    node, outside, pod, far = (make(name) for name in ("node", "outside", "pod", "far"))
    node.ip(
        "link add limpet0 type bridge",
        f"link add p0 type veth peer name eth0 netns {pod.name}",
        f"link add up0 type veth peer name eth0 netns {outside.name}",
        f"link add limwg0 type veth peer name eth0 netns {far.name}",
        "link set limpet0 alias limpet",
        f"link set limwg0 alias limpet group {TUNNEL_GROUP}",
        "link set p0 master limpet0 alias limpet",
        "address add 10.244.7.1/24 dev limpet0",
        f"address add {NODE}/24 dev up0",
        "address add 10.244.9.1/24 dev limwg0",
        *(f"link set {link} up" for link in ("limpet0", "p0", "up0", "limwg0")),
    )
    node.sysctl("net/ipv4/ip_forward", "1")
    for host, address in ((outside, OUTSIDE), (pod, POD), (far, FAR_POD)):
        gateway = f"{address.rpartition('.')[0]}.1"
        host.ip(
            f"address add {address}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {gateway}",
        )
    sockets = {}
    for name, host in (("node", node), ("outside", outside), ("pod", pod), ("far", far)):
        sockets[name] = host.open_socket(4, socket.SOCK_DGRAM)
        sockets[name].bind(("0.0.0.0", PORT))
        sockets[name].settimeout(PATIENCE_S)
    for name, host in (("sender", node), ("receiver", outside)):
        sockets[name] = host.open_socket(4, socket.SOCK_DGRAM)
        sockets[name].bind(("0.0.0.0", OUT_PORT))
        sockets[name].settimeout(PATIENCE_S)
    world = World(node, outside, pod, far, sockets)
    # Neighbours are known before anything is judged by the order of packets.
    for here, there, address in (
        ("outside", "node", NODE),
        ("pod", "far", FAR_POD),
        ("far", "pod", POD),
        ("pod", "outside", OUTSIDE),
        ("outside", "pod", POD),
    ):
        assert world.arrives(here, there, address)
    return world


def chain(hook: str, *rules: str, policy: str = "accept", more: str = "") -> str:
    kind = f"type filter hook {hook} priority 0; policy {policy};"
    lines = "\n".join((kind, *rules))
    return f"table inet site {{\n{more}\nchain base {{\n{lines}\n}}\n}}"


# What comes to the node itself.

TUNNEL = InboundPort(PORT, "other sites do not reach it")
CLOSED = "base drops (policy drop), and no rule of it seems to let UDP port 25252 in"


@pytest.mark.parametrize(
    ("rules", "words", "comes"),
    [
        (chain("input"), "", True),
        (chain("input", "ct state established accept", policy="drop"), CLOSED, False),
        (chain("input", "udp dport 25252 accept", policy="drop"), "", True),
        (chain("input", "udp dport { 53, 25000-26000 } accept", policy="drop"), "", True),
        (chain("input", "udp dport != 53 counter accept", policy="drop"), "", True),
        (
            chain("input", "meta l4proto { tcp, udp } th dport 25252 accept", policy="drop"),
            "",
            True,
        ),
        (chain("input", "udp dport vmap { 53: drop, 25252: accept }", policy="drop"), "", True),
        (chain("input", 'iifname "up0" accept', policy="drop"), "", True),
        (chain("input", 'iifname "up*" meta l4proto udp accept', policy="drop"), "", True),
        (chain("input", "ip saddr 198.51.100.0/24 accept", policy="drop"), "", True),
        (chain("input", "ct state new udp dport 25252 accept", policy="drop"), "", True),
        (chain("input", 'iifname "lo" accept', policy="drop"), CLOSED, False),
        (
            chain("input", "udp sport 53 accept", "tcp dport 25252 accept", policy="drop"),
            CLOSED,
            False,
        ),
        (chain("input", "udp dport { 53, 2525 } accept", policy="drop"), CLOSED, False),
        (chain("input", "udp dport != 25252 accept", policy="drop"), CLOSED, False),
        (chain("input", "ip protocol tcp accept", policy="drop"), CLOSED, False),
        (
            chain(
                *("input", "udp dport @open accept"),
                policy="drop",
                more="set open { type inet_service; flags interval; elements = { 53, 100-200 }; }",
            ),
            CLOSED,
            False,
        ),
        (
            chain("input", "tcp dport 22 accept", "counter reject with icmpx admin-prohibited"),
            "base drops (rule `reject with icmpx admin-prohibited`), and no rule",
            False,
        ),
        (
            chain("input", "udp dport 25252 drop"),
            "base drops what is sent to UDP port 25252: rule `udp dport 25252 drop`",
            False,
        ),
        (chain("input", 'iifname "up0" udp dport 25000-26000 drop'), "base drops what is", False),
        (chain("prerouting", "udp dport 25252 drop"), "base drops what is sent to UDP", False),
        (
            chain(
                *("input", 'iifname vmap { "up0": jump deep, "other": drop }'),
                more="chain deep { tcp dport 22 accept; udp dport 25252 counter drop; }",
            ),
            "rule `udp dport 25252 drop` in chain deep",
            False,
        ),
        (
            chain(
                *("input", "udp dport @closed drop"),
                more="set closed { type inet_service; elements = { 25252 }; }",
            ),
            "rule `udp dport @closed drop`",
            False,
        ),
        (chain("input", 'iifname "other" udp dport 25252 drop'), "", True),
        (chain("input", "udp dport 25252 meta mark 5 drop"), "", True),
        (chain("input", "udp dport 25252 ip saddr 203.0.113.0/24 drop"), "", True),
        (chain("input", "ip saddr . udp dport { 203.0.113.1 . 25252 } drop"), "", True),
        (chain("input", "ip saddr 203.0.113.0/24 drop", "ct state invalid drop"), "", True),
        (chain("input", "tcp dport 25252 drop", "ip6 saddr ::/0 drop"), "", True),
        (chain("input", "udp dport 25252 accept", "drop"), "", True),
        (chain("input", "udp dport 25252 return", "drop"), "", True),
    ],
)
def test_what_is_said_of_a_chain_is_what_becomes_of_packets_to_the_port(
    world: World, rules: str, words: str, comes: bool
) -> None:
    world.nft(rules)

    found = [finding for finding in world.findings(TUNNEL) if finding.level is not Level.OK]

    assert [words in finding.what for finding in found] == ([True] if words else [])
    assert all(finding.why and finding.advice for finding in found)
    assert world.arrives("outside", "node", NODE) is comes


OUT = InboundPort(OUT_PORT, "other sites do not reach it", from_any=False)
KEPT_IN = "let out what this node sends to UDP port 25353"


@pytest.mark.parametrize(
    ("rules", "words", "leaves"),
    [
        (chain("output"), "", True),
        (chain("output", policy="drop"), KEPT_IN, False),
        (chain("output", "ct state established accept", policy="drop"), KEPT_IN, False),
        (chain("output", "udp dport 25353 accept", policy="drop"), "", True),
        (chain("output", "udp sport 25353 accept", policy="drop"), "", True),
        (chain("output", 'oifname "up0" accept', policy="drop"), "", True),
        (chain("output", 'oifname "lo" accept', policy="drop"), KEPT_IN, False),
        (
            chain("output", "udp dport 25353 drop"),
            "base drops what this node sends to UDP port 25353: rule `udp dport 25353 drop`",
            False,
        ),
        (chain("output", "tcp dport 25353 drop", "ip6 daddr ::/0 drop"), "", True),
        (chain("postrouting", "udp dport 25353 drop"), "base drops what this node sends", False),
    ],
)
def test_what_is_said_of_a_chain_is_what_becomes_of_packets_of_the_node_itself(
    world: World, rules: str, words: str, leaves: bool
) -> None:
    world.nft(rules)

    found = [finding for finding in world.findings(OUT) if finding.level is not Level.OK]

    assert [words in finding.what for finding in found] == ([True] if words else [])
    assert all(finding.why and finding.advice for finding in found)
    assert world.arrives("sender", "receiver", OUTSIDE) is leaves


def test_what_leaves_from_a_port_of_the_kernels_choice_is_let_out_by_where_it_goes(
    world: World,
) -> None:
    """As VXLAN does; and no node sends to what others have otherwise, as its tunnel's port."""
    world.nft(chain("output", "udp sport 25353 accept", policy="drop"))
    for port, is_named in (
        (InboundPort(OUT_PORT, "none", from_any=True), True),
        (InboundPort(OUT_PORT, "none"), False),
    ):
        found = [each for each in world.findings(port) if each.level is not Level.OK]
        assert [KEPT_IN in each.what for each in found] == ([True] if is_named else [])


def test_what_the_node_sends_by_ipv6_is_judged_by_itself(world: World) -> None:
    world.nft(chain("output", "meta nfproto ipv6 udp dport 25353 drop"))
    assert [each.level for each in world.findings(OUT)] == [Level.OK]
    world.node.ip("address add 2001:db8:25::1/64 dev up0 nodad")
    try:
        found = [each for each in world.findings(OUT) if each.level is not Level.OK]
    finally:
        world.node.ip("address delete 2001:db8:25::1/64 dev up0")

    assert [each.id for each in found] == ["port-closed"]
    assert "drops what this node sends to UDP port 25353" in found[0].what


@pytest.mark.parametrize(
    ("commands", "words", "comes"),
    [
        (["-P INPUT DROP"], "ip filter INPUT drops (policy drop), and no rule", False),
        (["-P INPUT DROP", "-A INPUT -p udp --dport 25252 -j ACCEPT"], "", True),
        (["-P INPUT DROP", "-A INPUT -p udp -m multiport --dports 1,25252 -j ACCEPT"], "", True),
        (
            ["-P INPUT DROP", "-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"],
            "INPUT drops (policy drop), and no rule",
            False,
        ),
        (
            ["-N LAN", "-A INPUT -i up+ -j LAN", "-A LAN -p udp --dport 25252 -j REJECT"],
            "INPUT drops what is sent to UDP port 25252: rule `udp dport 25252",
            False,
        ),
        (["-A INPUT -p udp -m multiport --dports 1,25252 -j DROP"], "INPUT drops what is", False),
        (["-A INPUT -j LOG", "-A INPUT -p udp --dport 53 -j DROP"], "", True),
    ],
)
def test_iptables_rules_are_judged_with_extensions_that_nft_does_not_show(
    world: World, commands: list[str], words: str, comes: bool
) -> None:
    for command in commands:
        world.node.run("iptables-nft", *command.split())

    found = [finding.what for finding in world.findings(TUNNEL) if finding.level is not Level.OK]

    assert [words in what for what in found] == ([True] if words else [])
    assert world.arrives("outside", "node", NODE) is comes


def test_rules_that_nothing_can_read_whole_are_not_guessed_at(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "-A INPUT -m string --string x --algo bm -j DROP"
    world.node.run("iptables-nft", *command.split())
    assert [each.level for each in world.findings(TUNNEL)] == [Level.OK]

    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")
        (found,) = world.findings(TUNNEL)

    assert (found.level, "rules are not known" in found.what) == (Level.WARN, True)
    assert "extensions of iptables, which is not installed" in found.what


def test_extensions_that_are_not_on_this_machine_are_not_overlooked(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # One that no other test uses: what this process has once loaded it knows for ever.
    for command in ("-P INPUT DROP", "-A INPUT -m u32 --u32 0=0 -j ACCEPT"):
        world.node.run("iptables-nft", *command.split())
    libxtables = ctypes.CDLL("libxtables.so.12")

    with monkeypatch.context() as patch:
        patch.setenv("XTABLES_LIBDIR", str(tmp_path))
        libxtables.xtables_init()  # it reads that once
        assert "u32" not in world.node.run("nft", "list ruleset")
        patch.setenv("PATH", "")
        (found,) = world.findings(TUNNEL)
    libxtables.xtables_init()

    assert (found.level, "which is not installed" in found.what) == (Level.WARN, True)


def test_rules_and_links_of_the_machine_stay_as_they_are(world: World) -> None:
    world.nft(chain("input", 'iif "up0" counter accept', "udp dport 1 counter", policy="drop"))
    looks = [("nft", "list ruleset"), ("ip", "-br", "address"), ("ip", "-br", "link")]
    before = [world.node.run(*look) for look in looks]

    assert [each.level for each in world.findings(TUNNEL)] == [Level.OK]

    assert [world.node.run(*look) for look in looks] == before


def test_ports_that_one_rule_closes_are_named_together(world: World) -> None:
    world.nft(chain("input", policy="drop"))
    ports = (
        InboundPort(7471, "harm"),
        InboundPort(8472, "harm"),
        InboundPort(21000, "pairs", last=22999, untracked=True),
        InboundPort(443, "sites", protocol="tcp"),
    )

    (found,) = [each for each in world.findings(*ports) if each.level is not Level.OK]

    assert "let UDP port 7471 and 8472 and 21000 to 22999 and TCP port 443 in" in found.what
    assert found.why == "harm; pairs; sites"


def test_a_range_that_is_let_in_by_half_is_not_let_in(world: World) -> None:
    relay = InboundPort(21000, "pairs", last=22999)
    for rule, said in (("21000-21999", 1), ("21000-22999", 0)):
        world.nft(chain("input", f"udp dport {rule} accept", policy="drop"))
        assert sum(each.level is not Level.OK for each in world.findings(relay)) == said
        world.clear()


# Pods' questions for names.

NAMES = "169.254.20.10"
DEAF = 'iif "lo" accept'
"""As hosts' firewalls have it: the node is answered, and who comes from elsewhere is not."""


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (chain("input"), ""),
        (chain("input", DEAF, "ct state established accept", policy="drop"), "policy drop"),
        (chain("input", 'iifname "limpet0" th dport 53 accept', policy="drop"), ""),
        (chain("input", 'iifname "limpet0" tcp dport 53 accept', policy="drop"), "policy drop"),
        (chain("input", 'iifname "limpet0" accept', "reject"), ""),
        (chain("input", f"ip daddr {NAMES} drop"), f"rule `ip daddr {NAMES} drop`"),
        (chain("forward", policy="drop"), ""),
    ],
)
def test_what_is_said_of_pods_questions_for_names_is_what_becomes_of_them(
    world: World, rules: str, words: str
) -> None:
    on = Settings(dns=DnsSettings(dns="on", listen=(ip_address(NAMES), ip_address("fd00::53"))))
    world.node.ip(f"address replace {NAMES}/32 dev lo")
    world.nft(rules)
    found = [each for each in world.findings(settings=on) if each.id == "firewall-drops-names"]

    assert [words in each.what for each in found] == ([True] if words else [])
    assert all(f"questions for names at {NAMES}: " in each.what for each in found)
    assert all(each.id != "firewall-drops-names" for each in world.findings())
    with world.node.open_socket(4, socket.SOCK_DGRAM) as asked:
        asked.bind((NAMES, 53))
        asked.settimeout(PATIENCE_S)
        asker = world.sockets["pod"]
        asker.sendto(b"first", (NAMES, 53))
        world.clear()
        asker.sendto(b"second", (NAMES, 53))
        assert (asked.recv(64) == b"first") is (not words)
    world.node.ip(f"address del {NAMES}/32 dev lo")


# Pods' packets.


@pytest.mark.parametrize(
    ("rules", "words", "to_far", "to_outside"),
    [
        (chain("forward"), "", True, True),
        (
            chain("forward", 'iifname "limpet0" oifname "limwg0" drop'),
            "drops pods' packets through the tunnel limwg0: rule",
            False,
            True,
        ),
        (
            chain("forward", 'oifname "up0" ip saddr 10.244.0.0/16 drop'),
            "drops pods' packets over up0: rule",
            True,
            False,
        ),
        (
            chain("forward", 'iifname "limpet0" drop'),
            "drops pods' packets through the tunnel limwg0 and over up0: rule",
            False,
            False,
        ),
        (chain("postrouting", 'oifname "limwg0" drop'), "packets through the tunnel", False, True),
        (chain("prerouting", 'iifname "limpet0" drop'), "through the tunnel limwg0", False, False),
        (chain("forward", 'iifname "limpet0" meta mark 5 drop'), "", True, True),
        (chain("forward", 'oifname "limwg0" ip daddr 10.244.8.0/24 drop'), "", True, True),
        (chain("forward", 'iifname "limpet0" ip daddr 169.254.169.254 drop'), "", True, True),
        (chain("forward", 'iifname "limpet0" tcp dport 25 drop'), "", True, True),
        (chain("forward", "ct state invalid drop", 'iifname "docker0" drop'), "", True, True),
        (
            chain("forward", 'oifname "limwg0" accept', 'iifname "limwg0" accept', "drop"),
            "drops (its last rule is drop) and has no accept rule of Limpet",
            True,
            False,
        ),
    ],
)
def test_what_is_said_of_a_chain_is_what_becomes_of_pods_packets(
    world: World, rules: str, words: str, to_far: bool, to_outside: bool
) -> None:
    for receiver, address, comes in (("far", FAR_POD, to_far), ("outside", OUTSIDE, to_outside)):
        world.nft(rules)
        found = [each.what for each in world.findings() if each.level is not Level.OK]
        assert [words in what for what in found] == ([True] if words else [])
        assert world.arrives("pod", receiver, address) is comes


DOCKER = [
    "-P FORWARD DROP",
    "-N DOCKER-USER",
    "-A FORWARD -j DOCKER-USER",
    "-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "-A FORWARD -i docker0 -j ACCEPT",
]


def docker(world: World, *more: str) -> list[Finding]:
    for command in (*DOCKER, *more):
        world.node.run("iptables-nft", *command.split())
    return world.findings()


def test_the_chain_of_docker_is_an_error_that_says_what_to_do(world: World) -> None:
    (found,) = docker(world)

    assert found.level is Level.ERROR
    assert "nftables chain ip filter FORWARD drops (policy drop) and has no accept" in found.what
    assert "--allow-forward" in found.advice
    assert not world.arrives("pod", "far", FAR_POD)


def test_a_person_may_let_pods_pass_in_a_chain_of_docker(world: World) -> None:
    (found,) = docker(
        world, "-A DOCKER-USER -i limpet0 -j ACCEPT", "-A DOCKER-USER -o limpet0 -j ACCEPT"
    )

    assert (found.level, "but lets pods' packets of limpet0 pass" in found.what) == (Level.OK, True)
    assert world.arrives("pod", "far", FAR_POD)


def keep_accept_rules(world: World) -> None:
    with nft_in(world.node) as nft:
        ensure_forward_accept(nft, ["limpet0"])


def refuse_before_them(world: World) -> None:
    keep_accept_rules(world)
    world.node.run("iptables-nft", *["-I", "FORWARD", "-i", "limpet0", "-j", "DROP"])


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        (lambda _world: None, Level.ERROR, "and the accept rules for limpet0 are not in it"),
        (keep_accept_rules, Level.OK, "but lets pods' packets of limpet0 pass"),
        (refuse_before_them, Level.ERROR, "drops pods' packets through the tunnel limwg0 and over"),
    ],
)
def test_with_allow_forward_it_is_said_whether_our_rules_do_it(
    world: World, change: Callable[[World], None], level: Level, words: str
) -> None:
    docker(world)
    change(world)

    (found,) = world.findings(allowed=True)

    assert (found.level, words in found.what) == (level, True)
    assert world.arrives("pod", "far", FAR_POD) is (level is Level.OK)


def test_our_own_tables_are_not_another_s(world: World) -> None:
    for table in ("limpet", "limpet_overlay", "limpet_relay"):
        hook = "{ type filter hook input priority 0; policy drop; }"
        world.nft(f"add table inet {table}; add chain inet {table} base {hook}")

    assert [each.level for each in world.findings(TUNNEL)] == [Level.OK]


# Whose ports they are.


def test_a_program_at_a_port_of_the_relay_is_named_and_the_agent_itself_is_not(
    world: World,
) -> None:
    settings = Settings(relay=RelaySettings(ports=(PORT - 1, PORT + 1)))
    others = Settings(relay=RelaySettings(ports=(2000, 2001)))
    with world.node.entered():
        (found,) = relay_port_findings(settings, agent_pid=None)
        assert list(relay_port_findings(settings, agent_pid=os.getpid())) == []
        assert list(relay_port_findings(others, agent_pid=None)) == []

    assert found.level is Level.ERROR
    assert f"{PORT} by " in found.what
    assert f"(process {os.getpid()})" in found.what


def test_ports_that_the_kernel_gives_to_programs_are_no_relay_s_until_they_are_reserved(
    world: World,
) -> None:
    settings = Settings(relay=RelaySettings(ports=(40000, 40999)))
    world.node.sysctl("net/ipv4/ip_local_port_range", "32768 60999")
    with world.node.entered():
        (found,) = relay_port_findings(settings, agent_pid=None)
    assert "net.ipv4.ip_local_reserved_ports=40000-40999" in found.advice

    world.node.sysctl("net/ipv4/ip_local_reserved_ports", "53,40000-40999")
    with world.node.entered():
        assert list(relay_port_findings(settings, agent_pid=None)) == []
