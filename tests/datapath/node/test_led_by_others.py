"""What another program leads from pod to pod of one node, as kube-proxy does for its Services."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.beds.namespaces import NetnsFactory, talk
from tests.beds.node_bed import GATEWAYS, NodeBed

_ASKED = ("10.96.0.10", "fd96::10")
_LEADS = """
table inet others {{
    chain services {{
        type nat hook prerouting priority dstnat; policy accept;
        ip daddr {asked[0]} tcp dport 80 dnat ip to {pod[0]}:8080
        ip6 daddr {asked[1]} tcp dport 80 dnat ip6 to [{pod[1]}]:8080
    }}
}}
"""


@pytest.fixture
def bed(make_netns: NetnsFactory) -> Iterator[NodeBed]:
    bed = NodeBed(make_netns)
    yield bed
    bed.close()


@pytest.mark.parametrize("is_filtered", [False, True])
def test_a_pod_is_answered_by_whom_it_was_led_to_on_its_own_node(
    bed: NodeBed, is_filtered: bool
) -> None:
    """Where bridges show nftables nothing the answer would come past what has led the question,
    from an address that was not asked; the asker is seen as the node there. Else as itself."""
    bed.outside()  # which has a route for the address that is asked
    for name in ("iptables", "ip6tables"):
        bed.node.sysctl(f"net/bridge/bridge-nf-call-{name}", str(int(is_filtered)))
    asks, asked = bed.pod("one", 2), bed.pod("two", 3)
    bed.node.run("nft", _LEADS.format(asked=_ASKED, pod=asked.addresses))
    for number, any_address in enumerate(("0.0.0.0", "::")):
        with asked.netns.listening(any_address, 8080) as server:
            seen = asks.addresses[number] if is_filtered else GATEWAYS[number]
            assert talk(asks.netns, _ASKED[number], 80, server) == seen
            # Without a lead nothing is other than it was.
            assert talk(asks.netns, asked.addresses[number], 8080, server) == asks.addresses[number]
    bed.node.sysctl("net/bridge/bridge-nf-call-iptables", str(int(not is_filtered)))
    assert bed.settle(), "rules go by what bridges show now"
    assert bed.settle() == []
