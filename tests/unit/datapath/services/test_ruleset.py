"""The text of the table of Services, whole."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from limpet.base.addresses import packed
from limpet.datapath.services.ruleset import (
    Pick,
    base_text,
    record_name,
    record_rules,
    surroundings_text,
)
from limpet.datapath.services.state import Surroundings

TABLE = Path(__file__).with_name("table.nft")
PICKS = {
    "pick_tcp_4_2": Pick(4, "TCP", at_node=False, near=2),
    "node_udp_6_3_local1": Pick(6, "UDP", at_node=True, near=3, local=1),
    "pick_sctp_4_1_local0": Pick(4, "SCTP", at_node=False, near=1, local=0),
    "pick_tcp_4_2_sticky": Pick(4, "TCP", at_node=False, near=2, sticky=True),
    "node_tcp_6_2_local2_sticky": Pick(6, "TCP", at_node=True, near=2, local=2, sticky=True),
}
AROUND = Surroundings(
    pods=(ip_network("10.244.7.0/24"), ip_network("fd00:7::/64")),
    cluster=(ip_network("10.244.0.0/16"), ip_network("fd00::/16")),
    gateways=(ip_address("10.244.7.1"), ip_address("fd00:7::1")),
    node_ports=(ip_network("192.0.2.0/24"), ip_network("198.51.100.1/32")),
    reached=frozenset({(ip_address("10.96.4.4"), 0), (ip_address("198.51.100.4"), 0)}),
    services=(ip_network("10.96.0.0/12"), ip_network("fd96::/112")),
    links=frozenset(map(ip_network, ("10.97.0.0/24", "10.0.0.0/8", "192.0.2.0/24"))),
)
SERVERS = frozenset({packed("fd96::3"), packed("192.0.2.3")})


def whole() -> str:
    bridged = Surroundings(is_bridge_filtered=True)
    return "\n".join(
        [
            base_text(),
            *(pick.rules() for pick in PICKS.values()),
            record_rules(4, "UDP", 60),
            record_rules(6, "TCP", 60),
            surroundings_text(AROUND, SERVERS),
            surroundings_text(bridged, is_affine=True),
        ]
    )


def test_the_table_is_as_it_was_read_by_a_person() -> None:
    """Written by `python -m tests.unit.datapath.services.test_ruleset`; to be read then."""
    assert whole() == TABLE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PICKS)
def test_chains_that_differ_have_names_that_differ(name: str) -> None:
    assert PICKS[name].name == name
    assert f"chain {name} {{" in PICKS[name].rules()
    assert record_name(4, "UDP", 60) != record_name(4, "TCP", 60)


if __name__ == "__main__":
    TABLE.write_text(whole(), encoding="utf-8")
