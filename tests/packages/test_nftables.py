"""Every Debian's libnftables takes our tables, and lists them so that they are known again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from limpet.cluster.datagrams import shared_port
from limpet.datapath.node.ports.ruleset import plan_frame
from limpet.datapath.policy.ruleset import LocalPort, plan_tables
from limpet.datapath.tunnel.ipsec import port
from limpet.policies.compiler import compile_sides
from limpet.policies.labels import Selector
from limpet.policies.policy import IpBlock, Key, Policy, PolicyPod, PolicyRule, PolicyWorld
from limpet.relay.server import forwarding
from limpet.relay.server.pairs import ForwardingEntry, PairEnd, UdpFlow
from tests.packages.roots import PACKAGES, SUITES, RootMachine
from tests.unit.datapath.node.test_ruleset import ruleset_of_a_node
from tests.unit.datapath.overlay import test_filter as overlay

pytestmark = pytest.mark.timeout(900)

_SERVICES = Path(__file__).parents[1] / "unit/datapath/services/table.nft"
_TRIAL = """
import json, sys
from limpet.linux.netlink.transactions import NftablesSocket
from limpet.linux.nftables import Nftables
with NftablesSocket() as netlink:
    nft = Nftables(netlink=netlink)
    assert nft.shares, "it does not take a socket that is given"
    nft.close()
for text in json.load(sys.stdin):
    _, family, name = text.split("{")[0].split()
    nft = Nftables(name, family=family)
    nft.put_table(text)
    assert not nft.keep(text), f"{family} {name} is taken for another"
    listed = nft.list_table()
    assert "# count" not in listed and "hook output priority dstnat;" not in listed, listed
    nft.close()
    print(family, name)
"""


def tables() -> Iterator[str]:
    """Of each kind that a node may have, with something in it."""
    yield ruleset_of_a_node()
    yield _SERVICES.read_text()
    yield overlay.GOLDEN
    yield plan_frame(wide=False)
    yield shared_port.ruleset(51820, {4: 40000, 6: 40001})
    yield port.ruleset(4500, 4501)
    places = [
        UdpFlow((ip_address(f"203.0.113.{n}"), 51820), ip_address("192.0.2.1")) for n in (1, 2)
    ]
    ends = [PairEnd("a", "b", 21000, 21001, places[0]), PairEnd("b", "a", 21001, 21000, places[1])]
    entries = [ForwardingEntry(ends[0], places[1]), ForwardingEntry(ends[1], places[0])]
    elements = forwarding.elements_of(entries, limited=True, named=(21000, 21001))
    yield forwarding.ruleset((21000, 22999), 51820, 10**6, elements)
    pod = PolicyPod(Key("shop", "web"), (ip_address("10.0.0.2"), ip_address("fd00::2")), {})
    rule = PolicyRule((IpBlock(ip_network("203.0.113.0/24"), (ip_network("203.0.113.8/30"),)),))
    policy = Policy(Key("shop", "p"), Selector(), frozenset({"egress"}), (), (rule,))
    sides = compile_sides(PolicyWorld({policy.key: policy}, {}, {pod.key: pod}), [pod])
    planned = plan_tables(sides, [LocalPort(pod.key, "", "", "", pod.addresses)])
    yield from (each.text for each in (planned.inet, planned.bridge) if each)


@pytest.mark.parametrize("suite", SUITES)
def test_it_takes_our_tables_and_they_are_known_again(
    suite: str, deb: Path, tmp_path: Path
) -> None:
    (tmp_path / "limpet.deb").write_bytes(deb.read_bytes())
    with RootMachine(suite, tmp_path) as machine:
        machine.apt("install", f"{PACKAGES}/limpet.deb", "python3", "nftables")
        machine.run("ip", "netns", "add", "tables")
        ours = list(tables())
        said = machine.run(
            *("python3", "-c", _TRIAL),
            netns="tables",
            env={"PYTHONPATH": "/usr/lib/limpet/site-packages"},
            stdin=json.dumps(ours),
        )
        assert len(said.splitlines()) == len(ours)
